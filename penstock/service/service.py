"""`penstock run`: Spark, the queries, the ops server and the signals, as one process.

A graceful stop lets the batch in flight be published, its position be saved and the source be
acknowledged before Spark goes. Whatever else ends it loses nothing: a start resumes from the
stored position.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import structlog

from penstock.backoff import delays
from penstock.config import Backend, Pipeline
from penstock.errors import LeaseLost, Unavailable
from penstock.handover.run_folder import STOP, run_folder, write_owner
from penstock.leases.open import open_store
from penstock.ops.announce import Announcer
from penstock.ops.board import Board, Snapshot
from penstock.ops.poisoned import post_tables
from penstock.ops.set_aside import set_aside
from penstock.reading.positions import Positions
from penstock.service.notices import Notices
from penstock.service.operations import Operations, open_board
from penstock.service.ownership import Ownership, instance_name
from penstock.service.resuming import resume
from penstock.service.standby import Standby
from penstock.sinks import SetsAside
from penstock.spark.queries.engine import Engine
from penstock.spark.queries.supervised import EngineLost, Supervised
from penstock.tasks.task import UNKNOWN_TYPES

__all__ = ["Service"]

# Seconds.
TICK = 0.2
GRACE = 30.0
# Before an instance that lost its pipeline looks whether it may have it back.
AGAIN = 1.0
# How long an instance that takes over waits for the ops port of the one before.
PORT_PATIENCE = 10.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = structlog.get_logger("penstock")


class Service:
    """Runs one pipeline until it is told to stop."""

    def __init__(self, pipeline: Pipeline, *, bridge_metrics: bool = False) -> None:
        self._pipeline = pipeline
        self._bridge_metrics = bridge_metrics
        self._stop = threading.Event()

    def stop(self) -> None:
        """Asks for a graceful stop; from any thread or signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Blocks until stopped, then returns 0. Raises a PenstockError that the operator must act
        on, or EngineLost when the JVM died."""
        pipeline = self._pipeline
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            run = stack.enter_context(run_folder())
            pipeline = self._pipeline = _kept_in(pipeline, run)
            board = stack.enter_context(open_board(pipeline, run))
            ownership = stack.enter_context(_ownership(pipeline, board))
            write_owner(run, ownership.instance)
            standby = Standby(pipeline, ownership, self._stop)
            ops = stack.enter_context(
                Operations(
                    pipeline,
                    board,
                    stop=self.stop,
                    standby=lambda: standby.reason,
                    bridge_metrics=self._bridge_metrics,
                )
            )
            engine = stack.enter_context(Engine(pipeline, run))
            queries = [engine.query(backend) for backend in pipeline.backends]

            def meanwhile() -> None:
                ops.try_to_listen()
                engine.wait()

            while standby.wait(meanwhile):
                ops.listen(patience=PORT_PATIENCE if standby.waited else 0.0)
                self._own(engine, queries, board, run, ownership)
        return 0

    def _own(
        self,
        engine: Engine,
        queries: Sequence[Supervised],
        board: Board,
        run: Path,
        ownership: Ownership,
    ) -> None:
        """Runs the pipeline, which is ours, until we are told to stop or lose it."""
        with ThreadPoolExecutor(1) as thread:
            preparing = thread.submit(self._prepare, board, ownership.instance)
            try:
                engine.own()
                preparing.result()
                with engine.reporting(board):
                    self._supervise(engine, queries, board, run, ownership)
            except LeaseLost as error:
                log.warning("another instance has taken over", error=str(error))
                for query in queries:
                    query.hand_over()
            except EngineLost:  # SIGTERM to the whole group of processes ends the JVM too
                if not self._stop.is_set():
                    self._stop.set()
                    raise
                log.warning("stopped after Spark; the next start delivers what was in flight")
            except BaseException:
                self._stop.set()  # ends the waiting of `_prepare`
                raise
        self._stop.wait(AGAIN)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask for a graceful stop. (PySpark starts the JVM, and with it every
        worker, with SIGINT ignored: Ctrl-C reaches only us.)"""

        def ask(number: int, _: FrameType | None) -> None:
            log.info("stopping", signal=signal.Signals(number).name)
            self.stop()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, ask) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _prepare(self, board: Board, instance: str) -> None:
        """Takes over the positions; makes the slots of a first start and the stream, or fails
        early and clearly; waits for servers. Behind a stored position nothing is made: that would
        be a silent hole."""
        stored = [self._stored(backend, instance) for backend in self._pipeline.backends]
        for positions in stored:
            self._patiently(positions.claim)
        sink = self._pipeline.sink.sink()
        self._patiently(sink.prepare)
        if isinstance(sink, SetsAside):
            self._patiently(lambda: post_tables(board, sink.tables()))
        for backend, positions in zip(self._pipeline.backends, stored, strict=True):
            self._patiently(partial(resume, backend, positions, sink))

    def _stored(self, backend: Backend, instance: str) -> Positions:
        pipeline = self._pipeline
        return Positions.of(
            pipeline.positions, pipeline.name, backend.name, pipeline.checkpoint, owner=instance
        )

    def _patiently(self, prepare: Callable[[], None]) -> None:
        for wait in delays():
            try:
                return prepare()
            except Unavailable as error:
                log.warning("not available; trying again", error=str(error), wait=round(wait, 1))
            if self._stop.wait(wait):
                return None
        raise AssertionError("delays are endless")

    def _supervise(
        self,
        engine: Engine,
        queries: Sequence[Supervised],
        board: Board,
        run: Path,
        ownership: Ownership,
    ) -> None:
        unknown: set[str] = set()
        announcer = Announcer()
        notices = Notices(self._pipeline)
        before: Snapshot = {}
        while not self._stop.wait(TICK):
            if ownership.lost.is_set():
                raise LeaseLost(f"the lease of {self._pipeline.name} is another instance's")
            engine.count_task_slots()
            for query in queries:
                query.tick(time.monotonic())
                _post_batch(query, board)
                if query.restarts:
                    told = {"restarts": query.restarts, "blocked": query.blocked}
                    board.post("source", query.name, told)
            notices.tick(board, time.monotonic())
            unknown |= _log_unknown_types(board, unknown)
            announcer.look(board.snapshot())
            before = _log_set_aside(before, board.snapshot())
        (run / STOP).touch()
        _drain(queries, board)


def _kept_in(pipeline: Pipeline, run: Path) -> Pipeline:
    """With `positions: memory:`, positions last as long as the run: in a file of the run folder,
    because its processes share them."""
    if not pipeline.positions.startswith("memory:"):
        return pipeline
    return pipeline.model_copy(update={"positions": f"sqlite:///{run}/positions.db"})


def _ownership(pipeline: Pipeline, board: Board) -> Ownership:
    def readers() -> Mapping[str, str]:
        found = {each.name: board.entry("source", each.name) for each in pipeline.backends}
        return {name: str(said["reader"]) for name, said in found.items() if said.get("reader")}

    store = open_store(pipeline.positions)
    return Ownership(store, pipeline.name, instance=instance_name(), readers=readers)


def _log_unknown_types(board: Board, known: set[str]) -> set[str]:
    """Says once of each type that it is delivered as its text; returns the new ones."""
    entry = board.snapshot().get(("pipeline", UNKNOWN_TYPES))
    fresh = set(entry.fields) - known if entry is not None else set()
    for name in sorted(fresh):
        log.warning("a type is not known and is delivered as its text", type=name)
    return fresh


def _log_set_aside(before: Snapshot, after: Snapshot) -> Snapshot:
    """Says what happened to poison since the snapshot before."""
    for told in set_aside(before, after):
        getattr(log, told.level)(told.event, **told.fields)
    return after


def _post_batch(query: Supervised, board: Board) -> None:
    board.post("batch", query.name, query.progress())


def _drain(queries: Sequence[Supervised], board: Board) -> None:
    """Waits until every source has said that what it delivered is saved and acknowledged."""
    deadline = time.monotonic() + GRACE
    waiting = {query.name for query in queries if query.running}
    while waiting and time.monotonic() < deadline:
        waiting -= {name for name in waiting if _told_stopped(board, name)}
        for query in queries:
            _post_batch(query, board)  # raises at once when the JVM is gone
        time.sleep(TICK / 4)
    for name in sorted(waiting):
        log.warning("stopped with a batch in flight; the next start delivers it", backend=name)
    for query in queries:
        query.stop()


def _told_stopped(board: Board, backend: str) -> bool:
    entry = board.snapshot().get(("source", backend))
    return entry is not None and bool(entry.fields.get("stopped"))
