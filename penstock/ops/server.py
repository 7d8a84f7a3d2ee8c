"""The ops HTTP server: only moves bytes; `respond` decides what they are."""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import orjson
import structlog

from penstock.model.errors import SettingsError
from penstock.ops.respond import Response
from penstock.process.closing import Closes

# (method, path, query, origin) -> what to send.
Answer = Callable[[str, str, Mapping[str, str], str | None], Response]

log = structlog.get_logger("penstock.ops")


class OpsServer(Closes):
    """Serves until closed. `answer` runs in the request's own thread; `shutdown` is called after
    the answer to POST /shutdown was sent. Port 0 takes a free one: see `.port`."""

    def __init__(
        self, *, bind: str, port: int, answer: Answer, shutdown: Callable[[], None]
    ) -> None:
        self.bind = bind
        self.port = port
        self._answer = answer
        self._shutdown = shutdown
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        return f"http://{host}:{self.port}"

    def __enter__(self) -> Self:
        return self.start()

    def start(self) -> Self:
        """Binds and serves from a daemon thread; raises SettingsError if the port is taken."""
        family = socket.AF_INET6 if ":" in self.bind else socket.AF_INET
        server_class = type("_Server", (_Server,), {"address_family": family})
        handler = type("_Bound", (_Handler,), {"answer": self._answer, "shutdown": self._shutdown})
        try:
            self._server = server_class((self.bind, self.port), handler)
        except OSError as error:
            raise SettingsError(
                f"the ops server can't listen on {self.bind}:{self.port}: {error.strerror}",
                hint="choose another ops.port, or 0 for a free one",
            ) from error
        self.port = self._server.server_address[1]
        serve = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="ops")
        serve.daemon = True
        serve.start()
        return self

    def close(self) -> None:
        """Stops listening."""
        found, self._server = self._server, None
        if found is not None:
            found.shutdown()
            found.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    server_version = "penstock"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 10.0
    answer: Answer
    shutdown: Callable[[], None]

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            found = type(self).answer(self.command, parts.path, query, self.headers.get("Origin"))
        except Exception:
            log.exception("an ops request failed", path=parts.path)
            body = orjson.dumps({"error": "internal error; see the log"})
            found = Response(status=500, content_type="application/json", body=body)
        with contextlib.suppress(OSError):  # the client may have gone
            self._send(found)
        if found.shutdown:
            type(self).shutdown()

    def _send(self, found: Response) -> None:
        self.send_response(found.status)
        self.send_header("Content-Type", found.content_type)
        self.send_header("Content-Length", str(len(found.body)))
        self.send_header("Cache-Control", "no-store")
        # No request here has a body worth reading: the connection ends with the answer.
        self.send_header("Connection", "close")
        for name, value in found.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("ops request", line=format % args)
