"""`penstock run`: Spark, the queries, the ops server and the signals, as one process.

A graceful stop lets the batch in flight be published, its position be saved and the source be
acknowledged before Spark goes. Whatever else ends it loses nothing: a start resumes from the
stored position.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.backoff import delays
from penstock.config import Backend, Pipeline
from penstock.errors import Unavailable
from penstock.native import describe
from penstock.ops.announce import Announcer
from penstock.ops.board import Board, Snapshot
from penstock.ops.set_aside import set_aside
from penstock.sinks import SetsAside
from penstock.spark.folder import STOP, run_folder
from penstock.spark.operations import open_board, operations
from penstock.spark.poisoned import post_tables
from penstock.spark.positions import Positions
from penstock.spark.query import mode, start_query
from penstock.spark.session import close_session, open_session
from penstock.spark.supervised import Supervised
from penstock.spark.task import UNKNOWN_TYPES

__all__ = ["Service"]

# Seconds.
TICK = 0.2
GRACE = 30.0

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
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            run = stack.enter_context(run_folder())
            board = stack.enter_context(open_board(self._pipeline, run))
            stack.enter_context(
                operations(
                    self._pipeline, board, stop=self.stop, bridge_metrics=self._bridge_metrics
                )
            )
            thread = stack.enter_context(ThreadPoolExecutor(1))
            stack.callback(self._stop.set)
            preparing = thread.submit(self._prepare, board)
            spark = stack.enter_context(self._session(run))
            # A SparkContext puts a SIGINT handler of its own in place of ours.
            stack.enter_context(self._signals())
            preparing.result()
            if not self._stop.is_set():
                self._supervise(spark, board, run)
        return 0

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

    def _prepare(self, board: Board) -> None:
        """Makes the slots of a first start and the stream, or fails early and clearly; waits for
        servers. Behind a stored position nothing is made: that would be a silent hole."""
        for backend in self._pipeline.backends:
            if not self._stored(backend).load():
                self._patiently(backend.feed().prepare)
        sink = self._pipeline.sink.sink()
        self._patiently(sink.prepare)
        if isinstance(sink, SetsAside):
            self._patiently(lambda: post_tables(board, sink.tables()))

    def _stored(self, backend: Backend) -> Positions:
        pipeline = self._pipeline
        return Positions.of(pipeline.positions, pipeline.name, backend.name, pipeline.checkpoint)

    def _patiently(self, prepare: Callable[[], None]) -> None:
        for wait in delays():
            try:
                return prepare()
            except Unavailable as error:
                log.warning("not available; trying again", error=str(error), wait=round(wait, 1))
            if self._stop.wait(wait):
                return None
        raise AssertionError("delays are endless")

    @contextmanager
    def _session(self, run: Path) -> Iterator[SparkSession]:
        settings = self._pipeline.spark
        spark = open_session(
            self._pipeline.name,
            master=settings.master,
            folder=run,
            packed=mode(self._pipeline) != "rows",
            conf=settings.conf,
        )
        log.info(
            "spark is ready",
            version=spark.version,
            master=settings.master,
            native=describe(),
        )
        try:
            yield spark
        finally:
            close_session(spark)

    def _supervise(self, spark: SparkSession, board: Board, run: Path) -> None:
        queries = [self._supervised(spark, backend, run) for backend in self._pipeline.backends]
        unknown: set[str] = set()
        announcer = Announcer()
        before: Snapshot = {}
        while not self._stop.wait(TICK):
            for query in queries:
                query.tick(time.monotonic())
                board.post("batch", query.name, query.progress())
                if query.restarts:
                    board.post("source", query.name, {"restarts": query.restarts})
            unknown |= _log_unknown_types(board, unknown)
            announcer.look(board.snapshot())
            before = _log_set_aside(before, board.snapshot())
        (run / STOP).touch()
        _drain(queries, board)

    def _supervised(self, spark: SparkSession, backend: Backend, run: Path) -> Supervised:
        def start(attempt: int) -> StreamingQuery:
            return start_query(spark, self._pipeline, backend, run=run, attempt=attempt)

        return Supervised(backend.name, start)


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


def _drain(queries: Sequence[Supervised], board: Board) -> None:
    """Waits until every source has said that what it delivered is saved and acknowledged."""
    deadline = time.monotonic() + GRACE
    waiting = {query.name for query in queries if query.running}
    while waiting and time.monotonic() < deadline:
        waiting -= {name for name in waiting if _told_stopped(board, name)}
        time.sleep(TICK / 4)
    for name in sorted(waiting):
        log.warning("stopped with a batch in flight; the next start delivers it", backend=name)
    for query in queries:
        query.stop()


def _told_stopped(board: Board, backend: str) -> bool:
    entry = board.snapshot().get(("source", backend))
    return entry is not None and bool(entry.fields.get("stopped"))
