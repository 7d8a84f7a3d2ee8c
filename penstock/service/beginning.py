"""The start of each backend: what all of them need first, then each by itself, until it succeeds.

Runs in threads of its own, while Spark starts. A backend whose source is away or misconfigured does
not hold up the others. It goes on after the stored bookmark; without one, after what the sink has.
Only a first start may create what is missing at the source: creating it again after a bookmark
would be a silent gap. If the sink has changes, or ever had, it is no first start.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from penstock.config import Backend, Pipeline
from penstock.feeds import Feed
from penstock.model.errors import LeaseLost, PenstockError, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.ops.board import Board
from penstock.ops.reporter import table_name
from penstock.process.backoff import delays
from penstock.reading.positions import Positions
from penstock.service.ownership import positions_of
from penstock.sinks import Record, ReportsLast, ReportsPositions, SetsAside, Sink

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
        backends, owner = pipeline.backends, self._instance
        stored = [positions_of(pipeline, backend.name, owner) for backend in backends]
        sink = pipeline.sink.sink()

        def claim() -> None:
            stored[0].verify_name()
            for positions in stored:
                positions.claim()
            sink.prepare()
            if isinstance(sink, SetsAside):
                for table in sink.tables():
                    self._board.post("table", table_name(table), table)

        names = [backend.name for backend in backends]
        if not self._persist(claim, names, fails=True):
            return
        for backend, positions in zip(backends, stored, strict=True):
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


def resume(backend: Backend, positions: Positions, sink: Sink) -> None:
    """Logs where the backend goes on; a first start begins here, and stores where, before anything
    is read. May be called again. Raises Unavailable, SettingsError and what `Positions.load`
    does."""
    feed, saved = backend.feed(), positions.load()
    begun = _begun(backend, feed, sink, saved)
    if saved:
        _warn_of_repetition(backend, begun)
        _move(backend, feed, positions, saved, begun)
        return
    positions.begin(_first(backend, feed, begun))


def _first(backend: Backend, feed: Feed, begun: Mapping[PartitionId, Record]) -> Bookmarks:
    """Where a start without a stored position begins."""
    if not begun:
        return feed.begin()
    _warn_of_no_position(backend, begun)
    return {name: record.bookmark or Bookmark(mark={}) for name, record in begun.items()}


def _move(
    backend: Backend,
    feed: Feed,
    positions: Positions,
    saved: Bookmarks,
    begun: Mapping[PartitionId, Record],
) -> None:
    """Where what the sink has cannot be told by reading it again, it is passed over: the bookmark
    beyond it is saved before anything is read."""
    nothing = Record()
    found = {
        name: moved
        for name, bookmark in saved.items()
        if (moved := feed.moved(bookmark, begun.get(name, nothing).bookmark)) is not None
    }
    if not found:
        return
    positions.save(found, force=True)
    for name, bookmark in found.items():
        log.info(
            "reading does not go on at the saved position: nothing shall be stored twice",
            backend=backend.name,
            partition=name,
            place=str(bookmark.place),
        )


def _begun(backend: Backend, feed: Feed, sink: Sink, saved: Bookmarks) -> dict[PartitionId, Record]:
    """What the sink knows of the partitions of which it has changes, or had: of those that are
    saved, and of those that the source lists."""
    if not isinstance(sink, ReportsPositions):
        return {}
    partitions = [lineage.partition for lineage in feed.partitions(saved)]
    records = sink.records(backend.name, partitions)
    found = {name: record for name, record in records.items() if record.begun}
    if not found and feed.polled and isinstance(sink, ReportsLast):
        # Shards come and go: those of what the sink has may not be listed any more.
        last = sink.last(backend.name)
        found = {} if last is None else dict([last])
    return found


def _warn_of_repetition(backend: Backend, begun: dict[PartitionId, Record]) -> None:
    for partition, record in begun.items():
        if record.emptied:
            log.warning(
                "the sink has nothing left of what it stored: resuming after the stored position;"
                " what was delivered after that comes again",
                backend=backend.name,
                partition=partition,
            )


def _warn_of_no_position(backend: Backend, begun: Mapping[PartitionId, Record]) -> None:
    for partition, record in begun.items():
        if record.bookmark is not None:
            log.warning(
                "no position is stored, and the sink has changes: resuming after them",
                backend=backend.name,
                partition=partition,
                place=str(record.bookmark.place),
            )
        else:
            log.warning(
                "no position is stored, and the sink, which had changes, does not say how far it"
                " is: resuming where the source remembers us to be; some may come again",
                backend=backend.name,
                partition=partition,
            )
