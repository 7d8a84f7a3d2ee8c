"""What operators see of a running service: the board, the ops server, the METRICS line; and what
webhooks are told."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import orjson
import structlog
from prometheus_client import core
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from penstock.config import Deployment, secrets_of
from penstock.config.parts import PipelinePart
from penstock.leases.holder import instance_name
from penstock.microbatch.run_folder import BOARD
from penstock.model.errors import SettingsError
from penstock.model.version import __version__
from penstock.ops.board import Board
from penstock.ops.history import History
from penstock.ops.logs import LastLines, last_lines, metrics_fields
from penstock.ops.metrics import Additions, families
from penstock.ops.partitions import SHOWN
from penstock.ops.requests import Access, Endpoint, OpsRequest, refused, server_sent
from penstock.ops.respond import PAGES, Asked, StreamInfo, status_endpoints
from penstock.ops.server import OpsServer
from penstock.ops.status import Status, assess
from penstock.ops.telemetry import telemetry
from penstock.ops.webhooks import Notifier
from penstock.process.repeated import Repeated

log = structlog.get_logger("penstock")

METRICS = 15.0  # seconds between two METRICS lines
RECORD = 0.5  # seconds between two looks for the history, so that none is missed
# And between two looks at its health: one takes 7 ms with 1,000 partitions.
HEALTH = 1.0
_CLIENTS = 16
_EVERY = 1.0  # seconds
EVENTS = "server-sent events: the status each second, and the log"


def open_board(pipeline: Deployment, run: Path) -> Board:
    """The board that the reader process and the tasks report to, in the run folder."""
    return Board(run / BOARD, bounds=pipeline.ops.bounds)


class Operations(PipelinePart):
    """Serves /health and the rest, and logs the METRICS line, from `listen` until it is left.
    `standby`: the instance that is waited for, None while the pipeline is ours."""

    def __init__(
        self,
        pipeline: Deployment,
        board: Board,
        *,
        stop: Callable[[], None],
        standby: Callable[[], str | None],
        more: Additions | None = None,
        stream_info: StreamInfo | None = None,
    ) -> None:
        self._deployment = pipeline
        ops = pipeline.ops
        self.access = Access(
            bind=ops.bind, hosts=ops.hosts, token=ops.token, read_token=ops.read_token
        )
        self._board = board
        self._history = History()
        self._standby = standby
        self._asked = partial(
            Asked, access=self.access, stop=stop, stream_info=stream_info,
            more=more, history=self._history,
        )  # fmt: skip
        self._more = more
        self._open = ExitStack()
        self._server: OpsServer | None = None
        self._refused = ""
        self._health = ""
        self._notifier = Notifier(
            ops.notify, board, settled=ops.stalled_after, secrets=secrets_of(pipeline)
        )
        self.endpoints = [
            *status_endpoints(self._asked_by),
            Endpoint("/events", "GET", EventStream(self.status, last_lines()).answer, EVENTS),
            *PAGES,
        ]

    def __enter__(self) -> Self:
        about = {
            "service.name": "penstock",
            "service.version": __version__,
            "service.instance.id": instance_name(),
            "penstock.pipeline": self._deployment.name,
        }
        self._open.enter_context(telemetry(self._board, self._families, about))
        self._open.enter_context(self._notifier)
        steps = (
            ("metrics", self._log_metrics, METRICS),
            ("history", self._record, RECORD),
            ("health", self._watch_health, HEALTH),
        )
        for name, step, seconds in steps:
            self._open.enter_context(Repeated(step, interval=seconds, name=name))
        return self

    def close(self) -> None:
        self._open.close()

    def follow(self, pipeline: Deployment, changed: Collection[str]) -> None:
        self._deployment = pipeline
        self._notifier.hide(secrets_of(pipeline))

    def status(self, partitions: int | None = SHOWN) -> Status:
        """How the pipeline is now; of each backend at most so many partitions (None: all)."""
        pipeline, board = self._deployment, self._board
        return assess(
            board.snapshot(),
            name=pipeline.name,
            version=__version__,
            backends=[backend.name for backend in pipeline.backends],
            started=board.started,
            now=time.monotonic(),
            thresholds=pipeline.ops,
            standby=self._standby(),
            partitions=partitions,
        )

    def listen(self, *, patience: float = 0.0) -> None:
        """Waits `patience` seconds for a port that is taken, and raises SettingsError then."""
        deadline = time.monotonic() + patience
        while self._server is None:
            try:
                self._listen()
            except SettingsError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def try_to_listen(self) -> None:
        """While this instance waits, another one on this host may have the port."""
        if self._server is not None:
            return
        try:
            self._listen()
        except SettingsError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("the ops server waits for its port", error=error.message)

    def _listen(self) -> None:
        ops = self._deployment.ops
        server = OpsServer(
            port=ops.port, extra_ports=ops.extra_ports, access=self.access, endpoints=self.endpoints
        )
        self._server = self._open.enter_context(server)
        log.info("ops server listens", url=server.url)

    def _asked_by(self, request: OpsRequest) -> Asked:
        status = self.status(None if request.query.get("partitions") == "all" else SHOWN)
        return self._asked(request=request, status=status, endpoints=self.endpoints)

    def _log_metrics(self) -> None:
        status, more = self.status(), self._more
        log.info("METRICS", **metrics_fields(status))
        if more and more.line:
            print(more.line(status), flush=True)

    def _families(self) -> Iterator[core.Metric]:
        status = self.status()
        yield from families(status)
        yield from self._more.metrics(status) if self._more else ()

    def _record(self) -> None:
        self._history.record(self._board.snapshot(), time.time())

    def _watch_health(self) -> None:
        self._history.notice(status := self.status(), time.time())
        if status.health != self._health and not (status.starting and not self._health):
            is_calm = not self._health or status.health in ("ok", "standby")
            tell = log.info if is_calm else log.warning
            more = {"warming_up": True} if status.warming_up else {}
            tell("health has changed", health=status.health, reasons=list(status.reasons), **more)
            self._health = status.health
        self._notifier.look(status)


class EventStream:
    """`/events`: the status each second and the log, for a few clients."""

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
