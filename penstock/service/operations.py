"""What operators see of a running service: the board, the ops server, the METRICS line."""

import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import structlog

from penstock.config import Deployment
from penstock.microbatch.run_folder import BOARD
from penstock.model.errors import SettingsError
from penstock.model.version import __version__
from penstock.ops.board import Board
from penstock.ops.events import EventStream
from penstock.ops.history import History
from penstock.ops.logs import last_lines, log_metrics
from penstock.ops.metrics import MoreMetrics
from penstock.ops.partitions import SHOWN
from penstock.ops.requests import Access, Endpoint, OpsRequest
from penstock.ops.respond import PAGES, Asked, StreamInfo, status_endpoints
from penstock.ops.server import OpsServer
from penstock.ops.status import Status, assess
from penstock.process.closing import Closes
from penstock.process.repeated import Repeated

log = structlog.get_logger("penstock")

# Seconds between two METRICS lines.
METRICS = 15.0
# And between two looks for the history, so that no second is missed.
RECORD = 0.5
# And between two looks at its health: one takes 7 ms with 1,000 partitions.
HEALTH = 1.0
EVENTS = "server-sent events: the status each second, and the log"


def open_board(pipeline: Deployment, run: Path) -> Board:
    """The board that the reader process and the tasks report to, in the run folder."""
    return Board(run / BOARD, bounds=pipeline.ops.bounds)


class Operations(Closes):
    """Serves /health and the rest, and logs the METRICS line, from `listen` until it is left.

    `standby`: the instance that is waited for, None while the pipeline is ours.
    """

    def __init__(
        self,
        pipeline: Deployment,
        board: Board,
        *,
        stop: Callable[[], None],
        standby: Callable[[], str | None],
        more_metrics: MoreMetrics | None = None,
        stream_info: StreamInfo | None = None,
    ) -> None:
        self._pipeline = pipeline
        ops = pipeline.ops
        self.access = Access(
            bind=ops.bind, hosts=ops.hosts, token=ops.token, read_token=ops.read_token
        )
        self._board = board
        self._history = History()
        self._standby = standby
        self._asked = partial(
            Asked, access=self.access, stop=stop, stream_info=stream_info,
            more_metrics=more_metrics, history=self._history,
        )  # fmt: skip
        self._open = ExitStack()
        self._server: OpsServer | None = None
        self._refused = ""
        self._health = ""
        events = EventStream(self.status, last_lines())
        self.endpoints = [
            *status_endpoints(self._asked_by),
            Endpoint("/events", "GET", events.answer, EVENTS),
            *PAGES,
        ]

    def __enter__(self) -> Self:
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
        self._pipeline = pipeline

    def status(self, partitions: int | None = SHOWN) -> Status:
        """How the pipeline is now; of each backend at most so many partitions (None: all)."""
        pipeline, board = self._pipeline, self._board
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
        """Listens from now on; waits `patience` seconds for a port that is taken, and raises
        SettingsError then."""
        deadline = time.monotonic() + patience
        while self._server is None:
            try:
                self._listen()
            except SettingsError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def try_to_listen(self) -> None:
        """Listens if the port is free: while this instance waits, the other one, on this host, may
        have the port."""
        if self._server is not None:
            return
        try:
            self._listen()
        except SettingsError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("the ops server waits for its port", error=error.message)

    def _listen(self) -> None:
        ops = self._pipeline.ops
        server = OpsServer(
            port=ops.port, extra_ports=ops.extra_ports, access=self.access, endpoints=self.endpoints
        )
        self._server = self._open.enter_context(server)
        log.info("ops server listens", url=server.url)

    def _asked_by(self, request: OpsRequest) -> Asked:
        status = self.status(None if request.query.get("partitions") == "all" else SHOWN)
        return self._asked(request=request, status=status, endpoints=self.endpoints)

    def _log_metrics(self) -> None:
        log_metrics(self.status())

    def _record(self) -> None:
        self._history.record(self._board.snapshot(), time.time())

    def _watch_health(self) -> None:
        status = self.status()
        if status.health != self._health:
            # That a start has just begun is no warning.
            is_calm = not self._health or status.health in ("ok", "standby")
            tell = log.info if is_calm else log.warning
            tell("health has changed", health=status.health, reasons=list(status.reasons))
            self._health = status.health
