"""Reads a table into its store, under one snapshot of the source after the other.

A connection that is lost, or `snapshot.max_age`, ends a snapshot of the source, and not the run:
what is left is read under another one, if the store can keep the rest; else all of it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import orjson
import structlog

from penstock.config import SnapshotSettings
from penstock.feeds import ReadsLines, SnapshotWait, TableSnapshot
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.position import Bookmarks, Place
from penstock.model.table_schema import TableSchema
from penstock.process.backoff import delays
from penstock.sinks.loading import RowsPoint
from penstock.snapshots.job import Job, RunControl

_NICE = 19  # of the threads that read: running pipelines come first
_BEGINS = 0.05  # seconds between two looks whether a source has begun
_TRIES = 5  # snapshots of the source, one after the other, in which no range was read to its end

log = structlog.get_logger("penstock")


@dataclass(frozen=True, slots=True)
class SnapshotPoint(RowsPoint):
    """Of one snapshot of the source. `losses`: of changes before it; `namespace`: the schema that
    the table is asked for by."""

    taken: TableSnapshot
    losses: str
    namespace: str = ""

    @property
    def schema(self) -> TableSchema:
        return self.taken.schema.within(self.namespace)

    @property
    def cursor(self) -> str:
        return Place.parse(self.taken.position).cursor

    @property
    def identity(self) -> str:
        return orjson.dumps([self._kind, self.taken.mark, self.cursor]).decode()

    @property
    def is_by_key(self) -> bool:
        return bool(self.taken.mark) and lines_of(self.taken).is_by_key

    def continues(self, identity: str) -> bool:
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
        raise SettingsError(
            f"rows of {taken.schema.table} cannot be loaded into tables", "snapshots.no-lines",
            hint="its changes alone are followed; `penstock tables resume` goes on with them",
        )  # fmt: skip
    return source


class SnapshotStore(Protocol):
    """Where the rows of a table go, in parts: of a number (None: rows that are read again) and what
    a writer takes. All methods do I/O; they raise Unavailable, SettingsError, Rejected."""

    def prepare(self) -> None:
        """Called before each snapshot of the source."""

    def begin(self, point: SnapshotPoint) -> Sequence[tuple[int | None, Any]]:
        """The parts that are left of the table, which is cut if nothing of it is done. What was
        stored of it and does not add up with the point is forgotten."""

    def writer(self, point: SnapshotPoint) -> AbstractContextManager[Callable[[Any], int | None]]:
        """For one thread, as a function that reads and stores a part, and returns how many rows it
        had; None if the run was over before their end. Entered while the table is being cut, and
        called after that."""

    def discard(self) -> None:
        """Nothing of what was stored is good."""


class TableReader:
    """Reads one table, by several threads."""

    def __init__(
        self, job: Job, store: SnapshotStore, settings: SnapshotSettings, control: RunControl
    ) -> None:
        self._job, self._store, self._settings, self._control = job, store, settings, control
        self._parts: list[tuple[int | None, Any]] = []  # that no thread has taken, the first last
        self._left = 0  # parts that were not read to their end
        self._ends_at = 0.0  # monotonic seconds: the snapshot of the source is too old then
        self._lock = threading.Lock()

    def read(self) -> SnapshotPoint:
        """Returns after all parts are stored: the point of the last. An error that passes ends the
        snapshot of the source that it is of, once the table was cut."""
        waits, tried, control = delays(limit=1.0), 0, self._control
        while True:
            done = control.progress.done
            try:
                if (point := self._read_on()) is not None:
                    return point
            except Unavailable as error:
                tried = 1 if control.progress.done > done else tried + 1
                if not control.may_go_on or not control.progress.ranges or tried >= _TRIES:
                    raise
                log.warning("a snapshot goes on under another one", error=str(error))
                time.sleep(next(waits))
            control.go_on()

    def _read_on(self) -> SnapshotPoint | None:
        """Reads what is left under one snapshot of the source; None if that was not all."""
        job, pipeline, progress = self._job, self._job.pipeline, self._control.progress
        # First: changes from before a gap are stored already, and over rows from after the gap
        # they would be wrong.
        losses = progress.gap = pipeline.losses(job.backend)
        self._store.prepare()
        wait = SnapshotWait(
            patience=self._settings.patience, is_stopped=self._control.is_over,
            on_wait=partial(setattr, progress, "waiting"),
        )  # fmt: skip
        known = self._known()
        with job.source.snapshot(job.schema, job.table, known, wait, job.selection) as taken:
            self._ends_at = time.monotonic() + self._settings.max_age
            point = SnapshotPoint(taken, losses, job.schema)
            self._take(point)
            if not self._left:
                self._verify(point)
                return point
            if not taken.mark:
                raise SettingsError(
                    f"reading {job.schema}.{job.table} takes longer than snapshot.max_age, and"
                    " cannot go on later: its changes have no key",
                    "snapshots.too-slow",
                    hint="raise snapshot.max_age, or give the table a primary key that is not"
                    " deferrable, and a replica identity",
                )
            return None

    def _known(self) -> Bookmarks:
        """The saved bookmarks, once there are some: changes between rows and the place from which
        their source is followed would be in neither."""
        progress, control = self._control.progress, self._control
        while not (known := self._job.pipeline.bookmarks(self._job.backend)):
            if control.is_over():
                raise Unavailable("the snapshot was stopped before its source began", "snapshots")
            progress.waiting = "the pipeline to follow its source"
            time.sleep(_BEGINS)
        progress.waiting = ""
        return known

    def _take(self, point: SnapshotPoint) -> None:
        control, progress, planned = self._control, self._control.progress, Future[None]()
        progress.read = 0
        with ThreadPoolExecutor(self._settings.slots, "snapshot") as pool:
            # They connect first: what wants to rewrite the table waits for all of them.
            for _ in range(self._settings.slots):
                pool.submit(self._work, point, planned)
            try:
                parts = self._store.begin(point)
                self._parts, self._left = list(reversed(parts)), len(parts)
                progress.snapshots += 1
                progress.ranges = progress.done + sum(part[0] is not None for part in parts)
                progress.begun_at, progress.done_before = time.monotonic(), progress.done
                planned.set_result(None)
            except BaseException as error:
                control.fail(error)
                planned.set_exception(error)
        if control.failure is not None:
            raise control.failure
        if control.is_over() or (self._left and not self._is_old):
            raise Unavailable("the snapshot was stopped before all ranges were read", "snapshots")

    def _work(self, point: SnapshotPoint, planned: Future[None]) -> None:
        control = self._control
        try:
            if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            with self._store.writer(point) as write:
                planned.result()
                while not (control.is_over() or self._is_old):
                    with self._lock:
                        if not self._parts:
                            return
                        part = self._parts.pop()
                    if (rows := write(part)) is not None:
                        control.read(rows, is_range=part[0] is not None)
                        with self._lock:
                            self._left -= 1
        except BaseException as error:
            planned.exception()  # first: where cutting fails, nothing can be opened any more
            control.fail(error)

    @property
    def _is_old(self) -> bool:
        return time.monotonic() > self._ends_at

    def _verify(self, point: SnapshotPoint) -> None:
        pipeline, backend, read = self._job.pipeline, self._job.backend, self._control.progress.read
        known, present = pipeline.bookmarks(backend), pipeline.losses(backend)
        try:
            point.taken.verify(known)
            if present != point.losses:
                raise Unavailable(
                    "changes were lost during the snapshot",
                    "snapshots",
                    hint="ask for another snapshot",
                )
        except Unavailable:
            self._store.discard()  # changes do not go on where it was taken
            raise
        if (counted := point.taken.counted) not in (None, read):
            name = f"{self._job.schema}.{self._job.table}"
            raise SettingsError(
                f"{name} has {counted:,} rows, and by its key {read:,} were found",
                "snapshots",
                hint="the index of its key may be corrupt, as after an upgrade of the system's"
                f" collations: REINDEX TABLE {name}",
            )
