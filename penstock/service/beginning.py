"""The start of each backend: what all of them need first, then each by itself, until it succeeds.

Runs in threads of its own, while Spark starts. A backend whose source is away or misconfigured does
not hold up the others. It goes on after the stored bookmark; without one, after what the sink has.
Only a first start may create what is missing at the source: creating it again after a bookmark
would be a silent gap. If the sink has changes, or ever had, it is no first start.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from penstock.config import Backend, Pipeline
from penstock.config.parts import PipelinePart
from penstock.feeds import Feed, HasSources
from penstock.model.errors import LeaseLost, PenstockError, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.ops.board import Board
from penstock.ops.reporter import add_sink_report
from penstock.process.backoff import delays
from penstock.reading.positions import Positions
from penstock.service.ownership import positions_of
from penstock.sinks import KeepsLetters, Record, ReportsPositions, Sink
from penstock.sinks.loading import LoadsTables
from penstock.wire.eras import is_whole

# Seconds between two tries of a backend that the operator must mend.
FAILED_FIRST, FAILED_LIMIT = 1.0, 30.0
# Why reading begins elsewhere.
_TWICE = "nothing shall be stored twice"
_WENT_BACK = "the destination went back, and lacks what was stored after this"
_SHOWN = 3  # places in a line
_THREADS = 256  # backends that begin at a time

log = structlog.get_logger("penstock")


class Beginnings(PipelinePart):
    """Begins the backends of one pipeline, from `start` until `close`. `begun` are those whose
    queries may start. `errors` has the latest error of each other one: Unavailable while a server
    is away, anything else where the operator must act."""

    def __init__(self, pipeline: Pipeline, board: Board, instance: str) -> None:
        self.begun: set[str] = set()
        self.errors: dict[str, PenstockError] = {}
        self._pipeline, self._board, self._instance = pipeline, board, instance
        self._over = threading.Event()
        # By backend: set when it is not to begin any more.
        self._ends = {backend.name: threading.Event() for backend in pipeline.backends}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, "begin")
        self._running: list[Future[Any]] = []

    def start(self) -> None:
        """Begins in threads, and returns at once."""
        self._running.append(self._pool.submit(self._begin))

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        """Those that changed begin anew."""
        self._pipeline = pipeline
        with self._lock:
            for name in changed:
                if name in self._ends:
                    self._ends.pop(name).set()
                self.begun.discard(name)
                self.errors.pop(name, None)
        sink = pipeline.sink.sink()
        backends = {each.name: each for each in pipeline.backends}
        for name in changed:
            positions = positions_of(pipeline, name, self._instance)
            end = self._ends[name] = threading.Event()
            begin: Callable[[], Any]
            if name in backends:
                begin = partial(self._resume, backends[name], positions, sink, end, claims=True)
            else:
                leave = partial(self._leave, name, positions, sink, end, ())
                begin = partial(self._persist, leave, [name], end, fails=False)
            self._running.append(self._pool.submit(begin))

    def close(self) -> None:
        """Ends what still runs, and waits for it: afterwards nothing is made or claimed."""
        for end in (self._over, *self._ends.values()):
            end.set()
        self._pool.shutdown()

    def verify(self) -> None:
        """Raises LeaseLost, and errors of the sink and the positions store that do not pass."""
        for each in tuple(self._running):
            if each.done():
                each.result()

    def _begin(self) -> None:
        pipeline = self._pipeline
        backends, owner, ends = pipeline.backends, self._instance, self._ends.copy()
        stored = [positions_of(pipeline, backend.name, owner) for backend in backends]
        sink = pipeline.sink.sink()

        def claim() -> None:
            for positions in stored[:1]:
                positions.verify_name()
            for positions in stored:
                positions.claim()
            sink.prepare()
            if isinstance(sink, KeepsLetters):
                for table in sink.tables():
                    add_sink_report(self._board, pipeline.sink.type, {"tables": [table]})

        if not self._persist(claim, [backend.name for backend in backends], self._over, fails=True):
            return
        for backend, positions in zip(backends, stored, strict=True):
            if (end := ends[backend.name]).is_set():
                continue  # it has begun anew
            self._running.append(self._pool.submit(self._resume, backend, positions, sink, end))

    def _resume(
        self,
        backend: Backend,
        positions: Positions,
        sink: Sink,
        end: threading.Event,
        *,
        claims: bool = False,
    ) -> None:
        """Where one backend goes on."""
        feed = backend.feed()
        partitions: Collection[PartitionId] | None = None
        if isinstance(feed, HasSources) and self._pipeline.has_live_map:
            partitions = feed.sources

        def begin() -> None:
            if claims:
                positions.claim()
                sink.prepare()
            resume(backend, positions, sink)
            self._leave(backend.name, positions, sink, end, partitions)

        if self._persist(begin, [backend.name], end, fails=False):
            with self._lock:
                self.begun |= set() if end.is_set() else {backend.name}

    def _leave(
        self,
        backend: str,
        positions: Positions,
        sink: Sink,
        end: threading.Event,
        partitions: Collection[PartitionId] | None,
    ) -> None:
        """What has left the map, or is of other partitions than these, is forgotten. First in the
        sink: without a position it would begin anew, with a hole."""
        with self._lock:  # an old map must not have the last word
            if not isinstance(sink, LoadsTables) or end.is_set():
                return
            if not self._pipeline.forgets(backend):
                return
            ours = positions.load().keys()
            tables = sink.leave(backend, partitions, ours)
            add_sink_report(self._board, self._pipeline.sink.type, {"tables": tables})
            if partitions is not None:
                positions.forget(ours - set(partitions))

    def _persist(
        self, begin: Callable[[], None], names: list[str], end: threading.Event, *, fails: bool
    ) -> bool:
        """Tries until it succeeds, and returns True; False if it was ended before. Raises
        LeaseLost, and (if `fails`) errors that the operator must act on."""
        waits: Iterator[float] = delays()
        failed: Iterator[float] = delays(first=FAILED_FIRST, limit=FAILED_LIMIT)
        while not end.is_set():
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
                with self._lock:
                    self.errors |= dict.fromkeys(() if end.is_set() else names, found)
                end.wait(wait)
            else:
                with self._lock:
                    for name in () if end.is_set() else names:
                        self.errors.pop(name, None)
                    return not end.is_set()
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
    is read. May be called again. Raises SettingsError and what `Positions.load` does."""
    feed, saved = backend.feed(), positions.load()
    begun = _begun(backend, feed, sink, saved)
    for partition, record in begun.items():
        _warn_of(record, backend.name, partition, is_saved=bool(saved))
    if saved:
        begins: Bookmarks = {**saved, **_move(backend, feed, positions, saved, begun)}
    elif begun:
        begins = positions.begin({
            name: record.bookmark or Bookmark(mark={}) for name, record in begun.items()
        })  # fmt: skip
    else:
        begins = positions.begin(feed.begin())
    if isinstance(sink, LoadsTables):
        sink.adopt(backend.name, begins)
    places = [str(each.place) for each in begins.values() if each.place is not None]
    about = {"backend": backend.name, "partitions": len(begins), "places": places[:_SHOWN]}
    if saved or begun:
        log.info(
            f"resuming after {'the saved position' if saved else 'what the sink has'}", **about
        )
    else:
        start = str(getattr(backend.settings, "start", ""))
        log.info("beginning: no position was saved", **about, start=start)


def _move(
    backend: Backend,
    feed: Feed,
    positions: Positions,
    saved: Bookmarks,
    begun: Mapping[PartitionId, Record],
) -> Bookmarks:
    """Where what the sink has cannot be told by reading it again, it is passed over; what it had,
    and lacks, is read again: the bookmark there is saved before anything is read."""
    found: dict[PartitionId, Bookmark] = {}
    for name, bookmark in saved.items():
        record = begun.get(name, Record())
        if record.went_back(bookmark):
            stored, why = record.bookmark, _WENT_BACK
            has_mark = stored is not None and is_whole(stored.mark)
            moved = stored if has_mark else feed.returned(bookmark, record.place)
        else:
            moved, why = feed.moved(bookmark, record.bookmark), _TWICE
        if moved is not None:
            found[name] = moved
            about = {"backend": backend.name, "partition": name, "place": str(moved.place)}
            log.warning(f"reading does not go on at the saved position: {why}", **about)
    if found:
        positions.save(found, force=True)
    return found


def _begun(backend: Backend, feed: Feed, sink: Sink, saved: Bookmarks) -> dict[PartitionId, Record]:
    """What the sink knows of the partitions of which it has changes, or had: of those that are
    saved, and of those that the source lists."""
    if not isinstance(sink, ReportsPositions):
        return {}
    records = sink.records(backend.name, [lineage.partition for lineage in feed.partitions(saved)])
    found = {
        name: record for name, record in records.items()
        if record.begun or (saved and record.is_kept)
    }  # fmt: skip
    if not found and feed.polled:
        # Shards come and go: those of what the sink has may not be listed any more.
        last = sink.last(backend.name)
        found = {} if last is None else dict([last])
    return found


def _warn_of(record: Record, backend: str, partition: str, *, is_saved: bool) -> None:
    about = {"backend": backend, "partition": partition}
    if is_saved and record.emptied:
        log.warning(
            "the sink has nothing left of what it stored: resuming after the stored position;"
            " what was delivered after that comes again",
            **about,
        )
    elif not is_saved and record.bookmark is not None:
        log.warning(
            "no position is stored, and the sink has changes: resuming after them",
            **about,
            place=str(record.bookmark.place),
        )
    elif not is_saved:
        log.warning(
            "no position is stored, and the sink, which had changes, does not say how far it is:"
            " resuming where the source remembers us to be; some may come again",
            **about,
        )
