"""Authenticated connections between the driver's processes and Spark's tasks.

multiprocessing's `Connection` and its HMAC challenge: both ends prove that they have the key, and
neither sends it. What follows is not encrypted.
"""

import errno
import os
import secrets
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from multiprocessing.context import AuthenticationError
from pathlib import Path

from penstock.model.errors import SettingsError, Unavailable
from penstock.process.closing import closing_on_failure

# Seconds that a client may take to connect, and for each answer of the challenge.
_PATIENCE = 10.0
# Seconds that a server waits for a fixed port: the process before it may still hold the port.
_PORT_PATIENCE = 10.0
# Seconds of silence after which the kernel asks whether the peer's host is alive.
_KEEPALIVE = 30
_BACKLOG = 64


class Server:
    """Serves each connection in a thread of its own, after the client has proven that it has `key`.

    `address` is `unix:PATH` (without a path: in a new private folder) or `tcp:HOST`, the name under
    which clients reach the server; it listens on `bind` (default: HOST) and `port` (0: a free one).
    After `open`, `address` is what clients connect to. `attend` serves one connection until it
    returns or raises EOFError or OSError.
    """

    def __init__(
        self, address: str, attend: Callable[[Connection], None], *, bind: str = "", port: int = 0
    ) -> None:
        self.address = address
        self.key = secrets.token_bytes(32)
        self._attend, self._bind, self._port = attend, bind, port
        self._listening: socket.socket | None = None
        self._folder: tempfile.TemporaryDirectory[str]  # goes with this object

    def open(self) -> None:
        """Listens; idempotent. Raises Unavailable for a port that stays taken, SettingsError for
        an address that is not this host's, or a path that can't be a socket's."""
        if self._listening is not None:
            return
        kind, _, rest = self.address.partition(":")
        if kind == "unix":
            if not rest:
                self._folder = tempfile.TemporaryDirectory(prefix="penstock-")
            path = rest or f"{self._folder.name}/socket"
            listening = socket.socket(socket.AF_UNIX)
            try:
                listening.bind(path)
            except OSError as error:
                raise SettingsError(
                    f"can't listen on {path}: {error.strerror or error}",
                    "process",
                    hint="set TMPDIR to a folder that is writable and short: a socket's path has"
                    " 107 bytes",
                ) from error
            listening.listen(_BACKLOG)
            self.address = f"unix:{path}"
        else:
            listening = _bound(self._bind or rest, self._port)
            self.address = f"tcp:{rest}:{listening.getsockname()[1]}"
        self._listening = listening
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()

    def close(self) -> None:
        """Takes no more clients; connections that are open end with their clients."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        kind, _, rest = self.address.partition(":")
        with suppress(OSError):
            if kind == "unix":
                Path(rest).unlink()
            # Wakes the thread out of accept; closing alone would not, and would keep the port.
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()

    def _accept(self, listening: socket.socket) -> None:
        while self._listening is listening:
            try:
                taken, _ = listening.accept()
            except OSError:  # closed; or too many open files, which may pass
                time.sleep(0.1)
                continue
            threading.Thread(target=self._serve, args=(taken,), daemon=True).start()

    def _serve(self, taken: socket.socket) -> None:
        # The challenge is here and not in `_accept`: a stalled client must not block accept().
        with suppress(EOFError, OSError, AuthenticationError), _tuned(taken) as connection:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            _limit(connection, 0.0)
            self._attend(connection)


def connect(address: str, key: bytes, *, answers_within: float = 0.0) -> Connection:
    """A connection to a `Server`; raises OSError, EOFError or AuthenticationError. Reading from it
    raises BlockingIOError after `answers_within` seconds (0: never)."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        opened = socket.socket(socket.AF_UNIX)
        opened.connect(rest)
    else:
        host, _, port = rest.rpartition(":")
        opened = socket.create_connection((host, int(port)), _PATIENCE)
        opened.settimeout(None)
    connection = _tuned(opened)
    with closing_on_failure(connection):
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        _limit(connection, answers_within)
    return connection


def hang_up(connection: Connection) -> None:
    """Ends a connection that another thread reads; closing it would not wake that thread."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as ended:
        ended.shutdown(socket.SHUT_RDWR)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + _PORT_PATIENCE
    while True:
        try:
            return socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise SettingsError(
                    f"can't listen on {host}: {error.strerror}",
                    "process",
                    hint="spark.bind (or Spark's spark.driver.bindAddress) must be an address of"
                    " this host, such as 0.0.0.0",
                ) from error
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"the port {port} of {host} is taken",
                    "process",
                    hint="choose another spark.port: it takes a port, and one for each backend",
                ) from error
        time.sleep(0.1)


def _tuned(opened: socket.socket) -> Connection:
    """For the challenge, and for small messages: the kernel would hold back the second of two."""
    if opened.family != socket.AF_UNIX:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE)
    connection = Connection(opened.detach())
    _limit(connection, _PATIENCE)
    return connection


def _limit(connection: Connection, seconds: float) -> None:
    """How long reading waits; 0 is for ever."""
    whole, rest = divmod(seconds, 1)
    wait = struct.pack("ll", int(whole), int(rest * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as options:
        options.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
