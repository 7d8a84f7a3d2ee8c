"""What a worker is given, and its commits: the next one is prepared while one is written.

Work comes in order. A commit takes as much of it as fits, once that is a whole commit, or has
waited long enough and nothing is being written.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.model.errors import PenstockError
from penstock.model.position import PartitionId, Place, Position
from penstock.sinks.tables.settings import CommitSettings
from penstock.sinks.tables.source_table import SourceTable, Stretch
from penstock.sinks.tables.tied import halved
from penstock.tables.lines import SourceRelation


@dataclass(frozen=True, slots=True)
class Chunk:
    """Changes of one table in their order, of one relation."""

    table: SourceTable
    relation: SourceRelation
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Work:
    """Chunks that are committed together, `since` when (monotonic seconds); `pending`: the workers
    that have not committed what was handed over with them, see `Tracker`. `partition`: theirs;
    `goes_on`: the cursor of its last transaction, where more of it may come."""

    chunks: Sequence[Chunk]
    rows: int
    since: float
    pending: set[int]
    partition: str = ""
    goes_on: str = ""


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """Work that is written together, by table. `open`: by partition, see `Work.goes_on`."""

    works: Sequence[Work]
    tables: Mapping[SourceTable, Sequence[Stretch]]
    open: Mapping[str, str]

    def halves(self) -> Sequence["PreparedCommit"]:
        """The same in two commits of whole transactions of the sources; one, where it is of one."""
        return [replace(self, works=(), tables=half) for half in halved(self.tables)]


class Commits:
    """The work of one worker on its way: `add` in the thread of the sink, `due` and `put` in the
    one that prepares, `take` and `done` in the one that writes.

    `_pending`: work that no commit has, with so many `_rows`; `_taken`: rows of commits that are
    not done. `_next`: what is prepared.
    """

    def __init__(self, settings: CommitSettings, number: int) -> None:
        self.failure: PenstockError | None = None
        self._settings, self._number = settings, number
        self._pending: deque[Work] = deque()
        self._rows = self._taken = 0
        self._next: PreparedCommit | None = None
        self._changed = threading.Condition()
        self._is_closed = self._is_drained = self._is_writing = False

    def add(self, work: Work) -> None:
        """Takes work; waits while there is much of it."""
        limit = 2 * self._settings.rows
        with self._changed:
            self._changed.wait_for(lambda: self._rows + self._taken < limit or self._has_ended)
            self._pending.append(work)
            self._rows += work.rows
            self._changed.notify_all()

    def due(self) -> Sequence[Work] | None:
        """The work of the next commit, once there is room for it; None at the end."""
        with self._changed:
            while not self._has_ended:
                left = None
                if self._pending and self._next is None:
                    left = self._pending[0].since + self._settings.wait - time.monotonic()
                    if self._rows >= self._settings.rows:
                        return self._take_work()
                    if self._is_writing:
                        left = None
                    elif self._is_drained or left <= 0:
                        return self._take_work()
                self._changed.wait(left)
            return None

    def _take_work(self) -> Sequence[Work]:
        works: list[Work] = []
        rows = 0
        while self._pending:
            if works and rows + self._pending[0].rows > self._settings.rows:
                break
            works.append(self._pending.popleft())
            rows += works[-1].rows
        self._rows -= rows
        self._taken += rows
        return works

    def put(self, commit: PreparedCommit) -> None:
        """This one is prepared."""
        with self._changed:
            self._next = commit
            self._changed.notify_all()

    def take(self) -> PreparedCommit | None:
        """The next one to write; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._next or self._has_ended)
            commit, self._next = self._next, None
            self._is_writing = not self._has_ended
            self._changed.notify_all()
            return commit if self._is_writing else None

    def done(self, commit: PreparedCommit) -> None:
        """This one is written."""
        with self._changed:
            for work in commit.works:
                self._taken -= work.rows
                work.pending.discard(self._number)
            self._is_writing = False
            self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Has all work written without waiting for more; whether it was, in time."""
        with self._changed:
            self._is_drained = True
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: not (self._rows or self._taken) or self.failure, timeout
            )
            self._is_drained = False
            return bool(done)

    def pause(self, seconds: float) -> bool:
        """Waits before the next try; whether there is to be one."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._has_ended, seconds)

    def close(self) -> None:
        """Leaves what is not written."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Nothing is written any more, because of an error."""
        with self._changed:
            self.failure = self.failure or PenstockError.of(error, "applying changes")
            self._changed.notify_all()

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or self.failure is not None


class Tracker:
    """How far each partition is, whose changes several workers commit in any order. Keeps what was
    handed over together: up to which place, and which workers have not committed what they have of
    it. What lies before the first change that is not committed is stored; changes that no table of
    the map has, and traffic without changes, advance it as well. Used by one thread; pure."""

    def __init__(self) -> None:
        self._entries: dict[PartitionId, deque[tuple[Place, set[int]]]] = {}

    def open(self, partition: PartitionId, last: Place, workers: Iterable[int]) -> set[int]:
        """Notes changes up to a place, of which these workers have some. Each takes its number out
        of the returned set, in its own thread, when it has committed them."""
        pending = set(workers)
        self._entries.setdefault(partition, deque()).append((last, pending))
        return pending

    def stored(self) -> Position:
        """Up to where all is stored, of partitions that advanced since the last call."""
        found: dict[PartitionId, Place] = {}
        for partition, entries in self._entries.items():
            while entries and not entries[0][1]:
                found[partition], _ = entries.popleft()
        return found

    @property
    def is_idle(self) -> bool:
        return not any(self._entries.values())
