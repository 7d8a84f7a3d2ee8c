"""Tables of a sink that keeps tables are loaded from their sources: each once, the first time that
the pipeline follows it, and again where somebody asks for it.

Threads of the service, while the pipeline is ours; what is done the sink knows. A table that cannot
be loaded waits and stops no other.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import orjson
import structlog

from penstock.config import Pipeline
from penstock.feeds import (
    Feed,
    HasSources,
    ReadsLines,
    SnapshotWait,
    TableSnapshot,
    TakesSnapshots,
)
from penstock.leases.gaps import Gaps, losses, to_mend
from penstock.model.change import OnError
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.position import PartitionId, Place, Position
from penstock.model.table_schema import TableSchema
from penstock.process.closing import Closes
from penstock.sinks import LoadsTables, Part, Progress, TableLoad
from penstock.snapshots.job import PipelineState
from penstock.snapshots.pace import SnapshotPace, be_nice

_RANGE = 64  # times the size of a chunk, about, that a range has
_LOOK = 1.0  # seconds between two looks for tables to load
_AGAIN = 5.0  # seconds after which one that could not be loaded is tried again
_PATIENCE = 15.0  # seconds after a start, or a change of the map, in which one may not be ready yet
_END = 15.0  # seconds for which `close` waits

log = structlog.get_logger("penstock")


class OwnedState(PipelineState, Protocol):
    """A pipeline that is left, and waited for. Is a `Progress` of its tables."""

    def end(self) -> None:
        """It is not ours from now on."""
        ...

    def wait(self, seconds: float) -> None:
        """Returns after so many seconds, or at the `end`."""
        ...

    def gaps(self, backend: str) -> Gaps:
        """The gaps of a backend."""
        ...

    def stored(self, position: Position) -> None:
        """See `Progress`; of loads there is nothing to say."""
        ...

    def report(self, status: Mapping[str, Any]) -> None:
        """See `Progress`: what became of rows and of changes that were kept."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """Is a `RowsPoint`: of one snapshot of the source. `losses`: of changes before it."""

    taken: TableSnapshot
    losses: str

    @property
    def schema(self) -> TableSchema:
        """See `RowsPoint`."""
        return self.taken.schema

    @property
    def cursor(self) -> str:
        """See `RowsPoint`."""
        return Place.parse(self.taken.position).cursor

    @property
    def identity(self) -> str:
        """See `RowsPoint`."""
        return orjson.dumps([self._kind, self.taken.mark, self.cursor]).decode()

    @property
    def is_by_key(self) -> bool:
        """See `RowsPoint`."""
        return bool(self.taken.mark) and lines_of(self.taken).is_by_key

    def continues(self, identity: str) -> bool:
        """See `RowsPoint`."""
        kind, mark, _ = orjson.loads(identity)
        # None: the source has another history.
        return bool(kind == self._kind and self.taken.written_since([], mark) is not None)

    @property
    def _kind(self) -> list[str]:
        return [self.schema.version, self.losses]


def lines_of(taken: TableSnapshot) -> ReadsLines:
    """What gives the rows as lines. Raises SettingsError."""
    source: object = taken.source
    if not isinstance(source, ReadsLines):
        raise SettingsError(f"rows of {taken.schema.table} are no lines of COPY")
    return source


class TableLoader(Closes):
    """Loads from `start` until `close`, or until the pipeline is not ours any more, if the sink
    keeps tables."""

    def __init__(self, pipeline: Pipeline, state: OwnedState) -> None:
        self._settings, self._state = pipeline.snapshot, state
        self._sink: object = pipeline.sink.sink()
        self._on_error: dict[str, OnError] = {
            each.name: each.on_error for each in pipeline.backends
        }
        # A backend that was changed has another feed afterwards.
        self._feeds = {each.name: each.feed() for each in pipeline.backends}
        self._lock = threading.Lock()  # held while it is looked which tables are to be loaded
        self._pace = SnapshotPace(pipeline.snapshot)
        self._entered: set[tuple[str, PartitionId]] = set()
        self._running: dict[str, Future[None]] = {}
        self._shown: dict[str, Mapping[str, Any]] = {}  # of tables that are not live
        self._patient_until = 0.0  # monotonic seconds
        self._said: dict[str, str] = {}  # by table: the last error that was logged
        self._pool = ThreadPoolExecutor(pipeline.snapshot.max_concurrent, "load")
        self._thread = threading.Thread(target=self._run, name="loads", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._patient_until = time.monotonic() + _PATIENCE
        if isinstance(self._sink, LoadsTables):
            self._thread.start()

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        """See `FollowsMap`: loads of backends that changed end, and are looked for anew."""
        with self._lock:
            self._patient_until = time.monotonic() + _PATIENCE
            self._sink = pipeline.sink.sink()
            self._on_error = {each.name: each.on_error for each in pipeline.backends}
            for name in changed:
                self._feeds.pop(name, None)
            for each in pipeline.backends:
                self._feeds.setdefault(each.name, each.feed())
            self._entered = {each for each in self._entered if each[0] not in changed}
            self._shown = {
                name: each for name, each in self._shown.items() if each["backend"] not in changed
            }

    def close(self) -> None:
        """Ends what is loaded, and waits for that, but not for a server that hangs."""
        self._state.end()
        if self._thread.is_alive():
            self._thread.join(_END)
        self._pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _END
        for future in self._running.values():
            with suppress(TimeoutError, CancelledError):
                future.result(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while self._state.is_ours:
            try:
                with self._lock:
                    assert isinstance(self._sink, LoadsTables)
                    self._look(self._sink)
            except Exception as error:
                self._warn("", error)
            else:
                self._said.pop("", None)
            self._state.wait(_LOOK)

    def _look(self, sink: LoadsTables) -> None:
        """Begins to load what is to be loaded."""
        initial = self._settings.initial is not False
        for backend, feed in self._feeds.items():
            # Without bookmarks changes are not followed yet: between would be a hole.
            for partition in self._state.bookmarks(backend):
                is_left = isinstance(feed, HasSources) and partition not in feed.sources
                if not is_left and (backend, partition) not in self._entered:
                    tables = sink.enter(backend, partition, initial=initial)
                    self._state.report({"tables": tables})
                    self._entered.add((backend, partition))
            if self._feeds[backend].on_gap == "resnapshot":
                self._mend(sink, backend)
        self._running = {name: one for name, one in self._running.items() if not one.done()}
        loads = sink.unfinished() if self._entered else ()
        self._show(loads)
        for load in loads:
            entered = (load.backend, load.partition) in self._entered
            if entered and load.name not in self._running and self._state.is_ours:
                feed, on_error = self._feeds[load.backend], self._on_error[load.backend]
                self._running[load.name] = self._pool.submit(self._try, load, feed, on_error)

    def _mend(self, sink: LoadsTables, backend: str) -> None:
        """Has what partitions lost loaded, once changes go on after that."""
        gaps = self._state.gaps(backend)
        for name, row in gaps.rows().items():
            is_due = to_mend({name: row}) and (backend, name) in self._entered
            if is_due and sink.load_after(backend, PartitionId(name), losses({"": row})):
                gaps.clear(name, seen=row)
                log.warning("lost changes are mended", backend=backend, partition=name)

    def _show(self, loads: Sequence[TableLoad]) -> None:
        """Reports the tables that are not live, and those that have become so."""
        before, self._shown = self._shown, {load.name: load.described for load in loads}
        now = {"state": "live", "since": datetime.now(UTC).isoformat(), "reason": "", "error": ""}
        tables: list[Mapping[str, Any]] = [
            {**was, **now, "held": 0, "first_skipped": None, "last_skipped": None}
            for name, was in before.items() if name not in self._shown
        ]  # fmt: skip
        tables += [new for name, new in self._shown.items() if new != before.get(name)]
        if tables:
            self._state.report({"tables": tables})

    def _try(self, load: TableLoad, feed: Feed, on_error: OnError) -> None:
        """Loads one table; what fails is tried again."""
        try:
            if not load.has_rows:
                self._load(load, feed, on_error)
            load.settle(on_error, self._state)
        except Exception as error:
            found = PenstockError.of(error, "loading")
            if self._is_over(load, feed):
                return
            if isinstance(found, Unavailable) and time.monotonic() < self._patient_until:
                self._state.wait(_LOOK)
                return
            self._warn(load.name, found)
            if not isinstance(found, Unavailable):
                with suppress(PenstockError):  # it is tried again, and waits then
                    load.wait(found)
            self._state.wait(_AGAIN)
        else:
            self._said.pop(load.name, None)
            log.info("a table is live", table=load.name)

    def _is_over(self, load: TableLoad, feed: Feed) -> bool:
        """Whether the pipeline is not ours any more, or the backend not the same."""
        return not self._state.is_ours or self._feeds.get(load.backend) is not feed

    def _load(self, load: TableLoad, backend: Feed, on_error: OnError) -> None:
        feed: Any = backend
        if isinstance(feed, HasSources):
            feed = feed.of(load.partition)
        tables = [table for table in feed.tables() or () if load.covers(*table)]
        if not tables:
            # Penstock's own publications are altered when queries begin.
            is_early = time.monotonic() < self._patient_until
            raise (Unavailable if is_early else SettingsError)(
                f"{load.name}: the source does not send it",
                hint="add it to the publication, or take it out of the map",
            )
        begun, count = time.monotonic(), RowCount(load, self._state, len(tables))
        is_over = partial(self._is_over, load, backend)
        for table in tables:
            while not self._read(feed, table, _Reading(self._pace, is_over, count, on_error)):
                pass
        if not load.finish():
            raise Unavailable(f"{load.name}: the load was begun anew")
        count.finish()
        seconds = round(time.monotonic() - begun, 1)
        log.info("a table is loaded", table=load.name, rows=count.rows, seconds=seconds)

    def _read(self, feed: Feed, table: tuple[str, str], reading: "_Reading") -> bool:
        """Reads what is left of a table under one snapshot of the source; whether that was all."""
        source: object = feed
        assert isinstance(source, TakesSnapshots)
        load, settings, state = reading.load, self._settings, self._state
        losses, known = state.losses(load.backend), state.bookmarks(load.backend)
        wait = SnapshotWait(patience=settings.patience, is_stopped=reading.is_over)
        with source.snapshot(*table, known, wait) as taken:
            reading.ends_at = time.monotonic() + settings.max_age
            point = SnapshotPoint(taken, losses)
            parts = load.begin(point)
            if parts is None:
                size = _RANGE * settings.chunk_bytes
                ranges = taken.plan(_RANGE * settings.chunk_rows, size)
                parts = load.plan(point, ranges)
            reading.count.begin(table, taken)
            reading.read(point, parts, settings.slots if len(parts) > 1 else 1)
            try:
                taken.verify(state.bookmarks(load.backend))
                if state.losses(load.backend) != losses:
                    raise Unavailable("changes were lost during the load")
            except Unavailable:
                load.discard()
                raise
        return not reading.left

    def _warn(self, table: str, error: Exception) -> None:
        found = PenstockError.of(error, "loading tables")
        if self._said.get(table) != str(found):
            log.warning("a table is not loaded", table=table or "all", error=str(found))
        self._said[table] = str(found)


class RowCount:
    """How many rows of a load were read, and are to come (about, once that is known of all its
    `tables`); reported while they are read."""

    def __init__(self, load: TableLoad, progress: Progress, tables: int) -> None:
        self.rows = 0
        self.load, self.progress, self._tables = load, progress, tables
        self._all: dict[tuple[str, str], int] = {}  # that are known, by table
        self._lock = threading.Lock()
        self._report_at = 0.0  # monotonic seconds

    def begin(self, table: tuple[str, str], taken: TableSnapshot) -> None:
        """A table is read under a snapshot; what was not committed before is read again."""
        count = lines_of(taken).count if taken.counted is None else taken.counted
        with self._lock:
            self.rows = self.load.loaded
            if count is not None:
                self._all[table] = count
        self.add(0)

    def add(self, rows: int) -> None:
        """So many were read."""
        with self._lock:
            self.rows += rows
            now = time.monotonic()
            if now < self._report_at:
                return
            self._report_at = now + _LOOK
        left = max(0, sum(self._all.values()) - self.rows)
        self._report(left if len(self._all) == self._tables else None)

    def finish(self) -> None:
        """All were read."""
        self._report(0)

    def _report(self, left: int | None) -> None:
        named = {key: self.load.described[key] for key in ("backend", "sid", "table")}
        table = {**named, "rows_loaded": self.rows, "rows_to_come": left}
        self.progress.report({"tables": [table]})


class _Reading:
    """Rows of one table under one snapshot, by several threads. `failure`: the first."""

    def __init__(
        self, pace: SnapshotPace, is_left: Callable[[], bool], count: RowCount, on_error: OnError
    ) -> None:
        self.load, self.count, self._on_error = count.load, count, on_error
        self.left: list[Part] = []
        self.ends_at = float("inf")  # monotonic seconds
        self._pace, self._is_left = pace, is_left
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def is_over(self) -> bool:
        """Whether every thread has to end."""
        return self._failure is not None or self._is_left()

    def read(self, point: SnapshotPoint, parts: Sequence[Part], threads: int) -> None:
        """Loads parts until the snapshot is too old; then some are `left`."""
        self.left = list(reversed(parts))
        with ThreadPoolExecutor(threads, "rows") as pool:
            for _ in range(threads if parts else 0):
                pool.submit(self._work, point)
        if self._failure is not None:
            raise self._failure
        if self._is_left():
            raise Unavailable("the backend is not followed any more")

    def _work(self, point: SnapshotPoint) -> None:
        try:
            be_nice()
            source = lines_of(point.taken)
            with (
                self.load.writer(point, self._on_error, self.count.progress) as writer,
                source.lines(writer.columns, writer.prefix, self.is_over) as lines,
            ):
                while (part := self._next()) is not None:
                    _, ranges = part
                    pieces = (piece for one in ranges for piece in self._paced(lines(one)))
                    writer.write(part, pieces)
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error

    def _next(self) -> Part | None:
        with self._lock:
            is_over = self.is_over() or time.monotonic() > self.ends_at
            return None if is_over or not self.left else self.left.pop()

    def _paced(self, pieces: Iterator[tuple[bytes, int]]) -> Iterator[bytes]:
        for piece, rows in pieces:
            self._pace.wait(rows, len(piece), self.is_over)
            if self.is_over():
                raise Unavailable("the load was stopped")
            self.count.add(rows)
            yield piece
