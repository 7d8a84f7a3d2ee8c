"""The replication stream as bytes: CopyData messages, as many as one system call brings.

libpq makes and authenticates the connection. It hands out one message a call, though, and that
costs 3.5 us each; on a plain connection we take over its socket and read in bulk. A connection
with TLS is read through libpq, and looks the same from outside.
"""

import os
import select
import socket
import struct
import time

import psycopg
from psycopg.pq import ExecStatus

from penstock.feeds.postgres.connect import Ordinary, take_any_bytes
from penstock.feeds.postgres.failures import backend_error, translating
from penstock.model.errors import Malformed, Unavailable
from penstock.process.closing import closing_on_failure

CHUNK = 256 * 1024  # bytes that one `receive` takes at most, about
_WORTH = 64 * 1024  # bytes that are worth a pass
_LITTLE = 4 * 1024  # bytes: where no more came yet, one long pause does not fill the connection
_PATIENCE = 0.001  # seconds that bytes may gather while more keep coming
_BACKLOG = 8  # looks in a row that brought bytes: no single transaction that somebody waits for
# How the last message begins where nothing is to come soon, and its size: a Commit (in an
# XLogData), and a keepalive.
_COMMIT, _COMMIT_SIZE, _COMMIT_TAG = b"d\0\0\0\x37w", 56, -26
_KEEPALIVE, _KEEPALIVE_SIZE = b"d\0\0\0\x16k", 23
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


class Gatherer:
    """Takes bytes of a transport when they are worth it. A wal sender sends row by row, and to be
    woken for each costs more than the row."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._flow = 0  # looks in a row that brought bytes
        self._usual = (
            0.0  # seconds in which a transaction comes that does not come at once, or less
        )

    def take(self, rest: float, timeout: float) -> list[bytes]:
        """What came within `rest` seconds, or if that is nothing, within `timeout` more; in both
        cases with the rest of its last transaction, as long as that keeps coming. Earlier where
        much comes. Raises Unavailable."""
        begun = time.monotonic()
        taken: list[bytes] = []
        size = self._look(taken)
        while size < _WORTH and (left := begun + rest - time.monotonic()) > 0:
            # Not the whole rest where so much comes that the connection's buffer is the limit.
            time.sleep(min(left, _PATIENCE) if size > _LITTLE else left)
            size += self._look(taken)
        until = begun + rest + timeout
        while timeout > 0 and (not taken or _is_quiet(taken[-1])):
            left = until - time.monotonic()
            if left <= 0 or not self._transport.wait(left):
                return taken
            size += self._look(taken)
        return self._whole(taken, size)

    def _whole(self, taken: list[bytes], size: int) -> list[bytes]:
        """Takes the rest of the last transaction, too."""
        begun, silent = time.monotonic(), 0
        while taken and size < _WORTH and silent < _LOOKS and not _is_end(taken[-1]):
            pause = self._usual - (time.monotonic() - begun)
            if self._flow >= _BACKLOG and len(taken[-1]) < _WORTH / 2:
                pause = 2 * _PATIENCE
            time.sleep(max(_PATIENCE / 4, pause))
            found = self._look(taken)
            size, silent = size + found, 0 if found else silent + 1
        if (took := time.monotonic() - begun) >= _PATIENCE / 4:  # it did not come at once
            # A little less than it took, so that it is found again when it takes less.
            self._usual = min(0.85 * took, _PATIENCE)
        return taken

    def _look(self, taken: list[bytes]) -> int:
        data = self._transport.receive()
        if not data:
            self._flow = 0
            return 0
        taken.append(data)
        self._flow += 1
        return len(data)


def _is_end(data: bytes) -> bool:
    """Whether a transaction probably ends with these bytes: a row may look like it."""
    is_commit = data[-_COMMIT_SIZE:].startswith(_COMMIT) and data[_COMMIT_TAG] == ord("C")
    return is_commit or data[-_KEEPALIVE_SIZE:].startswith(_KEEPALIVE)


def start(connection: Ordinary, command: str) -> Transport:
    """Sends START_REPLICATION and returns the stream that it opens; takes the connection over.
    Raises what the server says instead, as an error of penstock."""
    take_any_bytes(connection)
    kind = LibpqTransport if connection.pgconn.ssl_in_use else PlainTransport
    return kind(connection, command)


def _is_quiet(data: bytes) -> bool:
    """Whether these bytes are keepalives that want no answer: a wal sender that has caught up sends
    them with each transaction."""
    size = _KEEPALIVE_SIZE
    count, more = divmod(len(data), size)
    is_whole = not more and data[::size] == b"d" * count and data[5::size] == b"k" * count
    return is_whole and not any(data[size - 1 :: size])
