"""The replication stream as bytes: CopyData messages, as many as one system call brings.

libpq makes and authenticates the connection. It hands out one message a call, though, and that
costs 3.5 us each; on a plain connection we take over its socket and read in bulk. A connection
with TLS is read through libpq, and looks the same from outside.
"""

import os
import select
import socket
import struct

import psycopg
from psycopg.pq import ExecStatus

from penstock.feeds.postgres.connect import Ordinary, take_any_bytes
from penstock.feeds.postgres.failures import backend_error, translating
from penstock.model.errors import Malformed, Unavailable
from penstock.process.closing import closing_on_failure

CHUNK = 256 * 1024  # bytes that one `receive` takes at most, about
_HEADER = struct.Struct(">cI")
_SEND_TIMEOUT = 10.0  # seconds
_LOOKS = 2


class PlainTransport:
    """The socket itself. libpq keeps its own descriptor and does not know of this one."""

    def __init__(self, connection: Ordinary, command: str) -> None:
        self._connection = connection
        self._socket = socket.socket(fileno=os.dup(connection.pgconn.socket))
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._early = b""
        try:
            query = command.encode() + b"\0"
            self._send_all(_HEADER.pack(b"Q", len(query) + 4) + query)
            self._early = self._await_copy()
        except BaseException:
            self._let_go()
            raise

    def _await_copy(self) -> bytes:
        data = b""
        while True:
            while len(data) >= 5:
                tag, length = _HEADER.unpack_from(data)
                if len(data) < length + 1:
                    break
                body, data = data[5 : length + 1], data[length + 1 :]
                if tag == b"W":
                    return data
                if tag == b"E":
                    raise backend_error(body, "starting replication")
                if tag not in b"NS":
                    raise Malformed(
                        f"the server answered START_REPLICATION with {tag!r}", "postgres"
                    )
            if not self.wait(_SEND_TIMEOUT):
                raise Unavailable("the server does not answer START_REPLICATION", "postgres")
            data += self.receive()

    def receive(self) -> bytes:
        """What is there now (backend messages, cut anywhere), without waiting; b"" for nothing.
        Raises Unavailable when the connection is gone."""
        if self._early:
            early, self._early = self._early, b""
            return early
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Unavailable(
                f"the replication connection broke: {error}", "postgres.connection-broke"
            ) from error
        if not data:
            raise Unavailable(
                "the server closed the replication connection", "postgres.connection-broke"
            )
        return data

    def wait(self, timeout: float) -> bool:
        """Until `receive` may return something, or `timeout` seconds; False for the latter."""
        return bool(self._early) or bool(self._poll.poll(max(0, timeout * 1000)))

    def send(self, message: bytes) -> None:
        """Sends one CopyData with this content; raises Unavailable."""
        self._send_all(_HEADER.pack(b"d", len(message) + 4) + message)

    def _send_all(self, data: bytes) -> None:
        self._socket.settimeout(_SEND_TIMEOUT)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Unavailable(
                f"the replication connection broke: {error}", "postgres.connection-broke"
            ) from error
        finally:
            self._socket.setblocking(False)

    def close(self) -> None:
        """Ends the stream and the connection; never raises."""
        try:
            self._send_all(_HEADER.pack(b"c", 4) + _HEADER.pack(b"X", 4))
        except (OSError, Unavailable):
            pass  # the other side is gone already
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._socket.close()
        self._connection.close()


class LibpqTransport:
    """The same by libpq's own reading, for TLS; messages get their header back."""

    def __init__(self, connection: Ordinary, command: str) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        with closing_on_failure(connection), translating("starting replication"):
            self._start(command)

    def _start(self, command: str) -> None:
        self._pgconn.send_query(command.encode())
        self._flush()
        while True:
            self._pgconn.consume_input()
            if not self._pgconn.is_busy():
                break
            if not self.wait(_SEND_TIMEOUT):
                raise Unavailable("the server does not answer START_REPLICATION", "postgres")
        result = self._pgconn.get_result()
        if result is None or result.status != ExecStatus.COPY_BOTH:
            failed = Unavailable("the server did not start replication", "postgres")
            raise psycopg.errors.error_from_result(result) if result else failed

    def receive(self) -> bytes:
        with translating("reading the replication stream"):
            data: list[bytes] = []
            size = idle = 0
            # libpq takes one TLS record at a time, which is one row of a wal sender; and OpenSSL
            # may hold the rest of a record, which no poll shows: so look until twice in vain.
            while size < CHUNK and idle < _LOOKS:
                messages = self._messages()
                idle = 0 if messages else idle + 1
                for message in messages:
                    data += (_HEADER.pack(b"d", len(message) + 4), message)
                    size += len(message)
            return b"".join(data)

    def _messages(self) -> list[bytes]:
        self._pgconn.consume_input()
        messages: list[bytes] = []
        while True:
            length, data = self._pgconn.get_copy_data(1)
            if length < 0 and not messages:
                raise self._ended()
            if length <= 0:
                return messages
            messages.append(bytes(data))

    def _ended(self) -> Exception:
        result = self._pgconn.get_result()
        if result is None or result.status != ExecStatus.FATAL_ERROR:
            return Unavailable("the server ended the replication stream", "postgres")
        return psycopg.errors.error_from_result(result)

    def wait(self, timeout: float) -> bool:
        return bool(self._poll.poll(max(0, timeout * 1000)))

    def send(self, message: bytes) -> None:
        with translating("writing to the replication stream"):
            self._pgconn.put_copy_data(message)
            self._flush()

    def _flush(self) -> None:
        while self._pgconn.flush():
            room = select.poll()  # `select` takes no descriptor above 1,023
            room.register(self._pgconn.socket, select.POLLOUT)
            if not room.poll(_SEND_TIMEOUT * 1000):
                raise Unavailable("the server accepts no data", "postgres")

    def close(self) -> None:
        try:
            self._pgconn.put_copy_end()
            self._flush()
        except (psycopg.Error, OSError, Unavailable):
            pass  # the other side is gone already
        finally:
            self._connection.close()


# The wire of one START_REPLICATION, from its first CopyData on.
Transport = PlainTransport | LibpqTransport


def start(connection: Ordinary, command: str) -> Transport:
    """Sends START_REPLICATION and returns the stream that it opens; takes the connection over.
    Raises what the server says instead, as an error of penstock."""
    take_any_bytes(connection)
    kind = LibpqTransport if connection.pgconn.ssl_in_use else PlainTransport
    return kind(connection, command)
