"""What `/events` streams to pages: the status each second, and the lines of the log."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from penstock.ops.logs import LastLines
from penstock.ops.requests import OpsRequest, refused, server_sent
from penstock.ops.status import Status

_CLIENTS = 16
_EVERY = 1.0  # seconds


class EventStream:
    """Streams to a few clients; the others ask for `/status` now and then."""

    def __init__(self, status: Callable[[], Status], lines: LastLines) -> None:
        self._status, self._lines = status, lines
        self._clients = 0
        self._made: tuple[float, bytes] = (0.0, b"")

    def answer(self, request: OpsRequest) -> Response:
        """Events; 503 where there are as many clients as there may be."""
        if self._clients < _CLIENTS:
            return server_sent(self.events(request.headers.get("last-event-id", "")))
        text = f"{_CLIENTS} clients have the events already"
        return refused(503, "too_many", text, "ask for /status", headers={"Retry-After": "5"})

    async def events(self, last: str) -> AsyncGenerator[bytes, None]:
        """Server-sent events, until the client goes; `last`: the last of the log that it has."""
        seen = int(last) if last.isdecimal() else 0
        self._clients += 1
        try:
            while True:
                yield b"event: status\ndata: %b\n\n" % await self._current()
                seen, lines = self._lines.after(seen)
                for line in lines:
                    yield b"event: log\nid: %d\ndata: %b\n\n" % (seen, line)
                await asyncio.sleep(_EVERY)
        finally:
            self._clients -= 1

    async def _current(self) -> bytes:
        """The status as JSON; made once a second, however many clients there are."""
        now = asyncio.get_running_loop().time()
        if now - self._made[0] >= _EVERY / 2:
            status = await run_in_threadpool(self._status)
            self._made = now, orjson.dumps(status.to_json(), str)
        return self._made[1]
