"""The ops HTTP server: Starlette on uvicorn, in a thread. It only moves bytes: responses are
functions of a request."""

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Self

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.model.errors import SettingsError
from penstock.ops.requests import Access, Answer, Endpoint, OpsRequest, refused
from penstock.process.closing import Closes

_LONGEST = 2**20  # bytes of a request's body
_PATIENCE = 1  # seconds that requests have to end in when the server closes
_LAST = 0.1  # seconds in which connections that were made before are still taken
_DELAY = 1.0  # seconds after which one of too many wrong tokens is answered

log = structlog.get_logger("penstock.ops")


class OpsServer(Closes):
    """Serves until closed. Answers run in a thread pool. Port 0 takes a free one: see `.port`."""

    def __init__(
        self,
        *,
        port: int,
        extra_ports: Sequence[int] = (),
        access: Access,
        endpoints: Sequence[Endpoint],
    ) -> None:
        self.bind = access.bind
        self.port, self._extra_ports, self._endpoints = port, extra_ports, endpoints
        self._access = access
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        return f"http://{host}:{self.port}"

    def __enter__(self) -> Self:
        """Binds and serves from a daemon thread; raises SettingsError if a port is taken."""
        with ExitStack() as opened:
            ports = (self.port, *self._extra_ports)
            listeners = [opened.enter_context(_listener(self.bind, port)) for port in ports]
            closing = opened.pop_all()
        self.port = listeners[0].getsockname()[1]
        config = uvicorn.Config(
            self.app(),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE,
        )
        server = self._server = _Server(config)

        async def serve() -> None:
            await server.serve(listeners)
            # One that was answered at this moment, before all of its body came.
            for connection in [*server.server_state.connections]:
                connection.transport.abort()

        def run() -> None:
            with closing:
                asyncio.run(serve())

        # Outside the main thread uvicorn leaves signals alone.
        self._thread = threading.Thread(target=run, name="ops", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None and thread is not None:
            server.end()
            thread.join(2 * _PATIENCE)

    def app(self) -> Starlette:
        routes = [
            Route(each.path, partial(self._serve, each.answer), methods=[each.method])
            for each in self._endpoints
        ]
        handlers = {HTTPException: self._refuse}
        app = Starlette(routes=routes, exception_handlers=handlers, max_body_size=_LONGEST)
        app.router.redirect_slashes = False
        return app

    async def _serve(self, answer: Answer, asked: Request) -> Response:
        try:
            body = await asked.body()
        except ClientDisconnect:
            return Response(status_code=400)
        request = _request(asked, body)
        if (found := self._access.refusal(request)) is None:
            try:
                found = await run_in_threadpool(answer, request)
            except Exception:
                log.exception("an ops request failed", path=request.path)
                found = refused(500, "internal", "internal error; see the log")
        if found.status_code == 429:
            await asyncio.sleep(_DELAY)
        found.headers.setdefault("Cache-Control", "no-store")
        if asked.method == "HEAD" and isinstance(found, StreamingResponse):
            found = Response(headers=found.headers)
        return found

    async def _refuse(self, asked: Request, error: Exception) -> Response:
        """What has no endpoint: another path or method, or a body that is too long."""
        assert isinstance(error, HTTPException)
        headers = {**(error.headers or {}), "Cache-Control": "no-store"}
        text, info = error.detail, ""
        if error.status_code == 404:
            text = f"there is no {asked.url.path}"
            info = f"there are: {', '.join(each.path for each in self._endpoints if each.what)}"
        elif error.status_code == 405:
            text = f"{asked.url.path} takes {headers['Allow']}"
        denied = self._access.refusal(_request(asked, b""))
        return denied or refused(error.status_code, "http", text, info, headers=headers)


class _Server(uvicorn.Server):
    """Ticks once a second, for the date in its answers; uvicorn's own does ten times."""

    def end(self) -> None:
        """From another thread."""
        self.should_exit = True
        with suppress(AttributeError, RuntimeError):  # it has not begun, or has ended
            self._loop.call_soon_threadsafe(self._ended.set)

    async def main_loop(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), 1.0)
        await asyncio.sleep(_LAST)


def _listener(bind: str, port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off where the protocol is named: 40 ms a response.
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"the ops server can't listen on {bind}:{port}: {error.strerror}",
            "ops.port-taken",
            hint="choose another ops.port or other ops.extra_ports; ops.port: 0 takes a free one",
        ) from error
    return listener


def _request(asked: Request, body: bytes) -> OpsRequest:
    return OpsRequest(
        method=asked.method,
        path=asked.url.path,
        query=dict(asked.query_params),
        headers=dict(asked.headers),
        body=body,
        ids=asked.path_params,
        client=asked.client.host if asked.client else "",
    )
