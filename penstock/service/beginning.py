"""The start of each backend: what all of them need first, then each by itself, until it succeeds.

Runs in threads of its own, while Spark starts. A backend whose source is away or misconfigured does
not hold up the others.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from penstock.config import Backend, Pipeline
from penstock.model.errors import LeaseLost, PenstockError, Unavailable
from penstock.ops.board import Board
from penstock.ops.poisoned import post_tables
from penstock.process.backoff import delays
from penstock.reading.positions import Positions
from penstock.service.resuming import resume
from penstock.sinks import SetsAside, Sink

# Seconds between two tries of a backend that the operator must mend.
FAILED_FIRST, FAILED_LIMIT = 1.0, 30.0

log = structlog.get_logger("penstock")


class Beginnings:
    """Begins the backends of one pipeline, from `start` until `close`.

    `begun` are those whose queries may start. `errors` has the latest error of each other one:
    Unavailable while a server is away, anything else where the operator must act.
    """

    def __init__(self, pipeline: Pipeline, board: Board, instance: str) -> None:
        self.begun: set[str] = set()
        self.errors: dict[str, PenstockError] = {}
        self._pipeline = pipeline
        self._board = board
        self._instance = instance
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(1 + len(pipeline.backends), "begin")
        self._running: list[Future[None]] = []

    def start(self) -> None:
        """Begins in threads, and returns at once."""
        self._running.append(self._pool.submit(self._begin))

    def close(self) -> None:
        """Ends what still runs, and waits for it: afterwards nothing is made or claimed."""
        self._over.set()
        self._pool.shutdown()

    def verify(self) -> None:
        """Raises what no backend can begin without: LeaseLost, and errors of the sink and the
        positions store that the operator must act on."""
        for each in tuple(self._running):
            if each.done():
                each.result()

    def _begin(self) -> None:
        pipeline = self._pipeline
        stored = [self._positions(backend) for backend in pipeline.backends]
        sink = pipeline.sink.sink()

        def claim() -> None:
            stored[0].verify_name()
            for positions in stored:
                positions.claim()
            sink.prepare()
            if isinstance(sink, SetsAside):
                post_tables(self._board, sink.tables())

        names = [backend.name for backend in pipeline.backends]
        if not self._persist(claim, names, fails=True):
            return
        for backend, positions in zip(pipeline.backends, stored, strict=True):
            task = self._pool.submit(self._resume, backend, positions, sink)
            self._running.append(task)

    def _resume(self, backend: Backend, positions: Positions, sink: Sink) -> None:
        """Where one backend goes on. After a stored position nothing is made at the source: that
        would be a silent hole."""
        if self._persist(lambda: resume(backend, positions, sink), [backend.name], fails=False):
            self.begun.add(backend.name)

    def _persist(self, begin: Callable[[], None], names: list[str], *, fails: bool) -> bool:
        """Tries until it succeeds, and returns True; False if it was ended before.

        Raises LeaseLost, and (if `fails`) errors that the operator must act on.
        """
        waits: Iterator[float] = delays()
        failed: Iterator[float] = delays(first=FAILED_FIRST, limit=FAILED_LIMIT)
        while not self._over.is_set():
            try:
                begin()
            except LeaseLost:
                raise
            except Exception as error:
                found = PenstockError.of(error, "the start")
                passes = isinstance(found, Unavailable)
                if fails and not passes:
                    raise
                wait = next(waits if passes else failed)
                self._log(found, names, wait)
                self.errors |= dict.fromkeys(names, found)
                self._over.wait(wait)
            else:
                for name in names:
                    self.errors.pop(name, None)
                return True
        return False

    def _log(self, error: PenstockError, names: list[str], wait: float) -> None:
        backend = ", ".join(names)
        if isinstance(error, Unavailable):
            event = "not available; trying again"
            log.warning(event, backend=backend, error=str(error), wait=round(wait, 1))
        elif all(str(self.errors.get(name)) != str(error) for name in names):
            log.error("the backend cannot begin", backend=backend, error=str(error))

    def _positions(self, backend: Backend) -> Positions:
        pipeline = self._pipeline
        return Positions.of(
            pipeline.positions,
            pipeline.name,
            backend.name,
            pipeline.checkpoint,
            owner=self._instance,
        )
