"""Tables of a sink that keeps tables are loaded from their sources: each once, the first time that
the pipeline follows it, and again where somebody asks for it.

Threads of the service, while the pipeline is ours; what is done the sink knows. A table that cannot
be loaded waits and stops no other.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from typing import Any, Protocol

import structlog

from penstock.config import Pipeline, SnapshotSettings
from penstock.config.parts import PipelinePart
from penstock.feeds import Feed, HasSources
from penstock.leases.gaps import Gaps, losses, to_mend
from penstock.model.change import OnError
from penstock.model.errors import LeaseLost, PenstockError, SettingsError, Unavailable
from penstock.model.position import ROWS, Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.model.table_schema import TableSchema
from penstock.sinks import Progress, ReportsPositions, went_back
from penstock.sinks.loading import LoadsTables, Part, RowWriter, TableLoad
from penstock.snapshots.catalogues import Catalogues, LeftOut, Source
from penstock.snapshots.job import Job, PipelineState, RunControl, RunEvent, SnapshotPace
from penstock.snapshots.reading import SnapshotPoint, SnapshotStore, TableReader, lines_of
from penstock.tables.sqlstates import TRIES, Recurring

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

    def wait(self, seconds: float) -> None:
        """Returns after so many seconds, or at the `end`."""

    def begin_anew(self, error: LeaseLost) -> None:
        """Has the pipeline begin anew, because of this."""

    def gaps(self, backend: str) -> Gaps:
        """The gaps of a backend."""

    def stored(self, position: Position) -> None:
        """See `Progress`; of loads there is nothing to say."""

    def report(self, status: Mapping[str, Any]) -> None:
        """See `Progress`: what became of rows and of changes that were kept."""


class TableLoader(PipelinePart):
    """Loads from `start` to `close`, while the pipeline is ours, if the sink keeps tables."""

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
        self._entered: set[Source] = set()
        self._catalogues = Catalogues()
        # By name: with the backend.
        self._running: dict[str, tuple[str, RunControl, Future[None]]] = {}
        self._shown: dict[str, Mapping[str, Any]] = {}  # of tables that are not live
        self._patient_until = 0.0  # monotonic seconds
        self._said: dict[str, str] = {}  # by table: the last error that was logged
        self._recurred: Counter[str] = Counter()  # by table: how often the server failed at it
        self._pool = ThreadPoolExecutor(pipeline.snapshot.max_concurrent, "load")
        self._thread = threading.Thread(target=self._run, name="loads", daemon=True)

    def start(self) -> None:
        self._patient_until = time.monotonic() + _PATIENCE
        if isinstance(self._sink, LoadsTables):
            self._thread.start()

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        """Loads of backends that changed end, and are looked for anew."""
        with self._lock:
            self._patient_until = time.monotonic() + _PATIENCE
            self._sink = pipeline.sink.sink()
            self._on_error = {each.name: each.on_error for each in pipeline.backends}
            for name in changed:
                self._feeds.pop(name, None)
            for each in pipeline.backends:
                self._feeds.setdefault(each.name, each.feed())
            for backend, control, _ in self._running.values():
                if backend in changed:
                    control.on(RunEvent.CANCEL)
            self._entered = {each for each in self._entered if each[0] not in changed}
            self._catalogues.forget(changed)
            self._shown = {
                name: each for name, each in self._shown.items() if each["backend"] not in changed
            }

    def close(self) -> None:
        """Ends what is loaded, and waits for that, but not for a server that hangs."""
        self._state.end()
        if self._thread.is_alive():
            self._thread.join(_END)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._catalogues.close()
        deadline = time.monotonic() + _END
        for _, _, future in self._running.values():
            with suppress(TimeoutError, CancelledError):
                future.result(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        with ExitStack() as stack:
            held_of: object = None
            while self._state.is_ours:
                try:
                    with self._lock:
                        if held_of is not self._sink:  # the map has changed
                            stack.close()
                            held_of = self._sink
                            assert isinstance(held_of, LoadsTables)
                            held = stack.enter_context(held_of.held())
                        self._look(held)
                except Exception as error:
                    self._warn("", error)
                else:
                    self._said.pop("", None)
                self._state.wait(_LOOK)

    def _look(self, sink: LoadsTables) -> None:
        initial = self._settings.initial is not False
        known: dict[Source, Bookmark] = {}
        for backend, feed in self._feeds.items():
            saved = self._state.bookmarks(backend)
            known |= {(backend, name): bookmark for name, bookmark in saved.items()}
            if saved and time.monotonic() >= self._patient_until:
                self._verify(sink, backend, saved)
            # Without bookmarks changes are not followed yet: between would be a hole.
            for partition in saved:
                is_left = isinstance(feed, HasSources) and partition not in feed.sources
                if not is_left and (backend, partition) not in self._entered:
                    tables = sink.enter(backend, partition, initial=initial)
                    self._state.report({"tables": tables})
                    self._entered.add((backend, partition))
            # After them, so that their changes are held from now on.
            if feed.shares_tables and saved and (backend, ROWS) not in self._entered:
                self._state.report({"tables": sink.enter(backend, ROWS, initial=initial)})
                self._entered.add((backend, ROWS))
            if self._feeds[backend].on_gap == "resnapshot":
                self._mend(sink, backend)
        self._compare(sink, {
            each: known.get(each, Bookmark()) for each in self._entered
            if each[1] == ROWS or not self._feeds[each[0]].shares_tables
        })  # fmt: skip
        self._running = {name: one for name, one in self._running.items() if not one[2].done()}
        loads = sink.unfinished() if self._entered else ()
        self._show(loads)
        for load in loads:
            source = load.backend, load.partition
            if self._feeds[load.backend].shares_tables:
                source = load.backend, ROWS
            is_known = source in self._catalogues.tables
            is_due = is_known and not load.waits_for_operator and not load.is_early
            if is_due and load.name not in self._running and self._state.is_ours:
                feed, on_error = self._feeds[load.backend], self._on_error[load.backend]
                control = RunControl(self._state, self._pace)
                load.recurs = self._recurred[load.name] >= TRIES
                future = self._pool.submit(self._try, load, feed, on_error, control)
                self._running[load.name] = load.backend, control, future

    def _compare(self, sink: LoadsTables, sources: Mapping[Source, Bookmark]) -> None:
        """Has tables loaded anew, or wait, that changed at their sources without the log."""

        def compare(source: Source, schemas: Sequence[TableSchema], left: LeftOut) -> None:
            for table, reason in sink.notice(*source, schemas, left).items():
                name = "/".join(source)
                log.warning(
                    "a table changed without its log", table=f"{table} of {name}", why=reason
                )

        failed = dict(self._catalogues.take(sources, self._feeds, compare))
        for source, error in failed.items():
            self._warn("all of " + "/".join(source), error)
        for source in self._catalogues.tables.keys() - failed:
            self._said.pop("all of " + "/".join(source), None)

    def _verify(self, sink: object, backend: str, saved: Bookmarks) -> None:
        """Where the sink has less than was saved, the start finds what to do."""
        records = sink.records(backend, list(saved)) if isinstance(sink, ReportsPositions) else {}
        for name, record in records.items():
            if record.went_back(saved[name]):
                has, had = record.place, saved[name].place
                self._state.begin_anew(
                    went_back(f"of {backend}/{name} it has {has or 'nothing'}, and had {had}")
                )

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

    def _try(self, load: TableLoad, feed: Feed, on_error: OnError, control: RunControl) -> None:
        """Loads one table; what fails is tried again."""
        try:
            left_out = self._catalogues.left_out.get((load.backend, load.partition), {})
            for table, error in left_out.items():
                if load.covers(*table):  # one that has several of the source's has all of them
                    self._catalogues.ask_soon((load.backend, load.partition))
                    raise error
            if not load.has_rows:
                self._load(load, feed, on_error, control)
            bookmark = self._state.bookmarks(load.backend).get(load.partition, Bookmark())
            load.settle(on_error, self._state, feed.passed(bookmark) or Place("", 0))
        except Exception as error:
            found = PenstockError.of(error, "loading")
            if control.is_cancelled or not self._state.is_ours:
                return
            self._recurred[load.name] += isinstance(found, Recurring)
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
            self._recurred.pop(load.name, None)
            log.info("a table is live", table=load.name)

    def _load(self, load: TableLoad, backend: Feed, on_error: OnError, control: RunControl) -> None:
        feed: Any = backend
        if isinstance(feed, HasSources):
            feed = feed.of(load.partition)
        source = load.backend, load.partition
        known = self._catalogues.tables.get(source, ())
        tables = [each for each in ((one.schema, one.table) for one in known) if load.covers(*each)]
        if not tables:
            # Penstock's own publications are made when queries begin.
            is_early = time.monotonic() < self._patient_until
            if is_early:
                self._catalogues.ask_soon(source)
            raise (Unavailable if is_early else SettingsError)(
                f"{load.name}: the source does not send it",
                "snapshots",
                hint="create it, add it to the publication, or take it out of the map",
            )
        begun = time.monotonic()
        store = LoadStore(
            load, self._state, self._settings, control, on_error=on_error, tables=len(tables)
        )
        for schema, table in tables:
            job = Job(
                snapshot_id=load.name, pipeline=self._state, backend=load.backend, feed=feed,
                schema=schema, table=table, name=(table,),
            )  # fmt: skip
            TableReader(job, store, self._settings, control).read()
        if not load.finish(tables):
            raise Unavailable(f"{load.name}: the load was begun anew", "snapshots")
        store.report(0)
        seconds = round(time.monotonic() - begun, 1)
        log.info("a table is loaded", table=load.name, rows=store.rows, seconds=seconds)

    def _warn(self, table: str, error: Exception) -> None:
        found = PenstockError.of(error, "loading tables")
        if self._said.get(table) != str(found):
            log.warning("a table is not loaded", table=table or "all", error=str(found))
        self._said[table] = str(found)


class LoadStore(SnapshotStore):
    """The tables of one load. Reports how many `rows` were read, and are
    to come (about, once that is known of all its `tables`)."""

    def __init__(
        self, load: TableLoad, progress: Progress, settings: SnapshotSettings, control: RunControl,
        *, on_error: OnError, tables: int,
    ) -> None:  # fmt: skip
        self.rows = 0
        self._load, self._progress, self._settings = load, progress, settings
        self._control, self._on_error, self._tables = control, on_error, tables
        self._all: dict[tuple[str, ...], int] = {}  # that are known, by table
        self._lock = threading.Lock()
        self._report_at = 0.0  # monotonic seconds

    def prepare(self) -> None:
        """Changes are kept as long as the table is not live."""

    def begin(self, point: SnapshotPoint) -> Sequence[Part]:
        """What was not committed before is read again."""
        load, settings, taken = self._load, self._settings, point.taken
        if (parts := load.begin(point)) is None:
            size = _RANGE * settings.chunk_bytes
            parts = load.plan(point, taken.plan(_RANGE * settings.chunk_rows, size))
        count = lines_of(taken).count if taken.counted is None else taken.counted
        with self._lock:
            self.rows = load.loaded
            if count is not None:
                self._all[point.schema.schema, point.schema.table] = count
        self._add(0)
        return parts

    @contextmanager
    def writer(self, point: SnapshotPoint) -> Iterator[Callable[[Part], int]]:
        """Connects with its first part: a small table has one."""
        control, source, read = self._control, lines_of(point.taken), 0
        with ExitStack() as stack:

            @cache
            def opened() -> tuple[RowWriter, Callable[[Any], Iterator[tuple[bytes, int]]]]:
                writer = stack.enter_context(
                    self._load.writer(point, self._on_error, self._progress)
                )
                lines = source.lines(writer.columns, writer.prefix, control.is_over)
                return writer, stack.enter_context(lines)

            def paced(pieces: Iterable[tuple[bytes, int]]) -> Iterator[bytes]:
                nonlocal read
                for piece, rows in pieces:
                    control.pace(rows, len(piece))
                    if control.is_over():
                        raise Unavailable("the load was stopped", "snapshots")
                    read += rows
                    self._add(rows)
                    yield piece

            def write(part: Part) -> int:
                nonlocal read
                read, (writer, lines) = 0, opened()
                writer.write(part, paced(chain.from_iterable(map(lines, part[1]))))
                return read

            yield write

    def discard(self) -> None:
        self._load.discard()

    def _add(self, rows: int) -> None:
        with self._lock:
            self.rows += rows
            now = time.monotonic()
            if now < self._report_at:
                return
            self._report_at = now + _LOOK
        left = max(0, sum(self._all.values()) - self.rows)
        self.report(left if len(self._all) == self._tables else None)

    def report(self, left: int | None) -> None:
        named = {key: self._load.described[key] for key in ("backend", "sid", "table")}
        table = {**named, "rows_loaded": self.rows, "rows_to_come": left}
        self._progress.report({"tables": [table]})
