"""The HTTP of a stand-in for a service."""

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self


class HttpHandler(BaseHTTPRequestHandler):
    """One connection to `stand_in`."""

    stand_in: Any
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.stand_in.connections.append(self.connection)

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that was killed
            super().handle()

    def body(self) -> bytes:
        """Of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """The answer."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are counted, not logged."""


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    # Connections that wait to be accepted: with the usual 5, of fifty at once some are reset.
    request_queue_size = 128


class HttpStandIn:
    """Serves on a port of loopback from `__enter__` to `__exit__`, and on the same one again."""

    handler: ClassVar[type[HttpHandler]]

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []
        self._port = 0

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        handler = type("Handler", (self.handler,), {"stand_in": self})
        self._http = _Http(("127.0.0.1", self._port), handler)
        self._port = self._http.server_address[1]
        serve = self._http.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self.cut()

    def restart(self) -> None:
        """Every connection breaks; what the server has and its port stay."""
        self.__exit__()
        self.__enter__()

    def cut(self) -> None:
        """Breaks every connection."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()
