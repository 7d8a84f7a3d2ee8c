"""`penstock run`: Spark, the queries, the ops server and the signals, as one process.

A graceful stop lets the batch in flight be published, its position be saved and the source be
acknowledged before Spark goes. Whatever else ends it loses nothing: a start resumes from the
stored position.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import structlog

from penstock.config import Pipeline
from penstock.config.parts import PipelinePart, PipelineParts
from penstock.leases import open_store
from penstock.leases.holder import instance_name
from penstock.microbatch.run_folder import write_owner
from penstock.model.errors import LeaseLost
from penstock.model.finding import Finding
from penstock.ops.board import Board
from penstock.ops.metrics import Additions
from penstock.ops.reports import QueryReport, SourceReport
from penstock.ops.requests import Endpoint
from penstock.process.processes import ending_at_signals
from penstock.service.action_api import ActionApi
from penstock.service.actions import Actions, Operated
from penstock.service.beginning import Beginnings
from penstock.service.live_map import LiveMap, changes
from penstock.service.operations import Operations, open_board
from penstock.service.owned_pipeline import OwnedPipeline
from penstock.service.ownership import Ownership
from penstock.service.pauses import PausedReaders, Pauses
from penstock.service.snapshots import Snapshots
from penstock.service.standby import Standby
from penstock.service.supervision import Supervision
from penstock.sinks import WENT_BACK
from penstock.snapshots.loading import TableLoader
from penstock.spark.queries.archive_at_idle import ArchiveAtIdle
from penstock.spark.queries.engine import Engine
from penstock.spark.queries.supervised import EngineLost
from penstock.spark.session.jvm import Jvm

TICK = 0.2  # seconds
CALM = 1.0  # and while all queries run
AGAIN = 1.0  # seconds after which an instance that lost its pipeline asks for it again
# Seconds for which an instance that takes over waits for the ops port of the one before.
PORT_PATIENCE = 10.0

log = structlog.get_logger("penstock")


class Service(PipelinePart):
    """Runs one pipeline until it is stopped: `pipeline`, as its map has it now. `live` follows the
    map; None while another instance runs it. `run` is the run folder; a JVM may have been `started`
    there. `findings`: what `penstock check` looks at."""

    def __init__(
        self,
        pipeline: Pipeline,
        run: Path,
        *,
        started: Jvm | None = None,
        findings: Callable[[Pipeline], Iterator[Finding]],
        more: Additions | None,
    ) -> None:
        self.pipeline, self._run, self._started = pipeline, run, started
        self.live: LiveMap | None = None
        self._findings, self._more = findings, more
        self._stop = threading.Event()

    def stop(self) -> None:
        """Asks for a graceful stop; from any thread or signal handler."""
        self._stop.set()

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def run(self) -> int:
        """Blocks until stopped, then returns 0. Raises PenstockError for the operator to mend."""
        with ExitStack() as stack:
            # (PySpark starts the JVM, and with it every worker, with SIGINT ignored: Ctrl-C reaches
            # only us.)
            stack.enter_context(ending_at_signals(self._stopping))
            run = self._run
            pipeline = self.pipeline = _kept_in(self.pipeline, run)
            board = stack.enter_context(open_board(pipeline, run))
            ownership = self._ownership(board)
            stack.callback(ownership.release)
            write_owner(run, ownership.instance)
            standby = Standby(pipeline, ownership, self._stop)
            stack.callback(standby.release)
            ops = stack.enter_context(self._operations(board, standby))
            ops.endpoints += self._endpoints(stack.enter_context(Actions()), ops)
            paused = PausedReaders(pipeline, stack.enter_context(Pauses(pipeline)), run, board)
            stops = self._stop.is_set
            engine = stack.enter_context(Engine(pipeline, run, stops, self._started))
            lasting = PipelineParts(engine, ArchiveAtIdle(board), standby, ops, paused, self)

            def meanwhile() -> None:
                ops.try_to_listen()
                for each in self.pipeline.backends if standby.error else ():
                    error = standby.error
                    board.post(each.name, QueryReport(begun=False, blocked="", last_error=error))
                with self._ending_with_spark(engine):
                    engine.wait()

            while standby.wait(meanwhile):
                # Another instance may have followed edits while this one waited.
                pipeline = self.pipeline.renewed()
                lasting.follow(pipeline, changes(self.pipeline, pipeline))
                ops.listen(patience=PORT_PATIENCE if standby.waited else 0.0)
                owned = OwnedPipeline(pipeline, ownership.instance, standby, board)
                beginnings = Beginnings(pipeline, board, ownership.instance)
                snapshots, loader = Snapshots(pipeline, owned), TableLoader(pipeline, owned)
                supervision = Supervision(pipeline, engine.queries, beginnings, board, run)
                with (
                    PipelineParts(supervision, owned, loader, snapshots, beginnings) as ours,
                    LiveMap(pipeline, supervision, PipelineParts(ours, lasting)) as self.live,
                ):
                    beginnings.start()
                    loader.start()
                    if not pipeline.transform:
                        snapshots.start()
                    paused.tick(time.monotonic())  # before Spark starts
                    parts = PipelineParts(lasting, self.live, ours)
                    self._own(engine, supervision, snapshots, owned, parts)
                self.live = None
                self._stop.wait(AGAIN)
        return 0

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        self.pipeline = pipeline

    def _own(
        self,
        engine: Engine,
        supervision: Supervision,
        snapshots: Snapshots,
        owned: OwnedPipeline,
        parts: PipelinePart,
    ) -> None:
        """Runs the pipeline, which is ours, until a stop or until a lease is lost."""
        with self._ending_with_spark(engine):
            try:
                engine.own()
                if self.pipeline.transform:
                    snapshots.start(engine.statements())
                with engine.reporting(supervision.board):
                    ticked = -CALM
                    while not self._stop.is_set():
                        owned.verify()
                        now = time.monotonic()
                        if now - ticked >= CALM or not supervision.is_calm(now):
                            parts.tick(ticked := now)
                        self._stop.wait(TICK)
                    supervision.drain()
            except LeaseLost as error:
                is_back = error.code == WENT_BACK
                event = "begins anew" if is_back else "another instance has taken over"
                log.warning(event, error=str(error))
                supervision.hand_over()

    @contextmanager
    def _ending_with_spark(self, engine: Engine) -> Iterator[None]:
        """Raises EngineLost when Spark ended by itself; not when it ended with a stop: SIGTERM to
        the whole group of processes ends the JVM, too, and so does a stop while it starts, when
        nothing is in flight."""
        try:
            yield
        except EngineLost as error:
            if not self._stop.is_set():
                self._stop.set()
                raise
            if engine.is_open:
                event = "Spark is gone; the next start delivers what was in flight"
                log.warning(event, error=str(error))

    def _operations(self, board: Board, standby: Standby) -> Operations:
        server = self.pipeline.sink.server()
        return Operations(
            self.pipeline, board, stop=self.stop, standby=lambda: standby.reason,
            more=self._more,
            stream_info=None if server is None else server.stream_info,
        )  # fmt: skip

    def _endpoints(self, actions: Actions, ops: Operations) -> list[Endpoint]:
        found = [*ActionApi(actions, ops.access, self._operated).endpoints()]
        if self.pipeline.sink.shows_map:
            # (It has psycopg, which a pipeline without PostgreSQL may lack.)
            from penstock.service.map_api import MapApi

            found += MapApi(self, ops.access, partial(ops.status, None)).endpoints()
        return found

    def _operated(self, by: str) -> Operated:
        live = self.live
        return Operated(
            pipeline=self.pipeline, by=by, findings=self._findings, stop=self.stop,
            restart=None if live is None else live.restart,
        )  # fmt: skip

    def _ownership(self, board: Board) -> Ownership:
        def readers() -> Mapping[str, str]:
            names = [each.name for each in self.pipeline.backends]
            snapshot = board.snapshot()
            found = {name: snapshot.latest(SourceReport, name).reader for name in names}
            return {name: reader for name, reader in found.items() if reader}

        store = open_store(self.pipeline.positions)
        return Ownership(store, self.pipeline.name, instance=instance_name(), readers=readers)

    def _stopping(self, signal: str) -> None:
        log.info("stopping", signal=signal)
        self.stop()


def _kept_in(pipeline: Pipeline, run: Path) -> Pipeline:
    """With `positions: memory:`, positions last as long as the run: in a file of the run folder,
    because its processes share them."""
    if not pipeline.positions.startswith("memory:"):
        return pipeline
    return pipeline.model_copy(update={"positions": f"sqlite:///{run}/positions.db"})
