"""A worker: a thread and a connection that apply the changes of some tables, a commit at a time.

A commit takes whole transactions of the sources. It locks the ledger rows of its tables, leaves out
what is stored already, and writes rows and ledger together. So a commit whose answer was lost, or
an instance that was thought dead, repeats nothing.
"""

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.position import Place
from penstock.process.backoff import delays
from penstock.sinks.rows.part import place_of
from penstock.sinks.tables.apply import Applier
from penstock.sinks.tables.database import TableDatabase
from penstock.sinks.tables.source_table import BeginAnew, SourceTable
from penstock.tables.drift import KnownColumns
from penstock.tables.ledger import LedgerRow
from penstock.tables.lines import LineChange, SourceRelation, changes_of


@dataclass(frozen=True, slots=True)
class Chunk:
    """Changes of one table in their order, of one relation."""

    table: SourceTable
    relation: SourceRelation
    batch: pa.RecordBatch

    def after(self, row: LedgerRow) -> pa.RecordBatch:
        """The changes that are not stored yet."""
        rows = range(len(self.batch))
        first = bisect_left(rows, True, key=lambda at: row.is_new(place_of(self.batch, at)))
        return self.batch.slice(first)

    @property
    def last(self) -> Place:
        """The place of its last change."""
        return place_of(self.batch, len(self.batch) - 1)


@dataclass(frozen=True, slots=True)
class Work:
    """Chunks that are committed together, `since` when (monotonic seconds); `pending`: the workers
    that have not committed what was handed over with them, see `Tracker`."""

    chunks: Sequence[Chunk]
    rows: int
    since: float
    pending: set[int]


@dataclass(slots=True)
class TableReport:
    """What was done of one table: changes that were applied, by operation, and set aside, by
    reason; the last place, and how many seconds after its commit at the source (None: it is
    held); `columns`: what the ledger had of them."""

    place: Place
    columns: str
    applied: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    lag: float | None = None

    def add(self, later: "TableReport") -> None:
        """What was done after it."""
        self.applied += later.applied
        self.letters += later.letters
        self.place, self.lag, self.columns = later.place, later.lag, later.columns

    def described(self, table: SourceTable) -> dict[str, Any]:
        """As the status page shows it."""
        lag = None if self.lag is None else round(max(self.lag, 0.0), 3)
        return {
            **table.named, "place": str(self.place), "lag_seconds": lag,
            "applied": self.applied, "letters": self.letters.total(),
            "ignored": KnownColumns.parse(self.columns).ignored,
        }  # fmt: skip


@dataclass(slots=True)
class WorkerReport:
    """What a worker did since it was asked last."""

    known: int = 0  # changes that were stored already
    commits: int = 0
    seconds: float = 0.0  # that commits took
    error: str = ""  # why it cannot commit now
    tables: dict[SourceTable, TableReport] = field(default_factory=dict)

    def add(self, later: "WorkerReport") -> None:
        """What was done after it."""
        self.known += later.known
        self.commits += later.commits
        self.seconds += later.seconds
        for table, report in later.tables.items():
            if (known := self.tables.setdefault(table, report)) is not report:
                known.add(report)


class Worker:
    """`add` work, and ask for `failure` and `report`; `close` leaves what is not committed.

    `_pending`: work in its order.
    """

    def __init__(self, database: TableDatabase, number: int) -> None:
        self.failure: PenstockError | None = None
        self._database, self._settings, self._number = database, database.settings, number
        self._pending: deque[Work] = deque()
        self._rows = 0  # that are pending
        self._report = WorkerReport()
        self._applier: Applier | None = None
        self._changed = threading.Condition()
        self._is_closed = self._is_drained = False
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-apply-{number}", daemon=True
        )
        self._thread.start()

    def add(self, work: Work) -> None:
        """Takes work; waits while there is much of it."""
        limit = 2 * self._settings.commit.rows
        with self._changed:
            self._changed.wait_for(lambda: self._rows < limit or self.failure or self._is_closed)
            self._pending.append(work)
            self._rows += work.rows
            self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Commits what there is without waiting for more; whether all was committed in time."""
        with self._changed:
            self._is_drained = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._pending or self.failure, timeout)
            self._is_drained = False
            return bool(done)

    @property
    def has_report(self) -> bool:
        """Whether something was committed since the last report."""
        return bool(self._report.commits)

    def take_report(self) -> WorkerReport:
        """What was done since the last call."""
        with self._changed:
            found, self._report = self._report, WorkerReport(error=self._report.error)
            return found

    def close(self) -> None:
        """Ends the thread, after its commit."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        waits = delays(first=0.2)
        try:
            while (works := self._due()) is not None:
                try:
                    self._commit(works)
                except Unavailable as error:
                    self._disconnect()
                    self._pause(error, next(waits))
                else:
                    waits = delays(first=0.2)
                    self._done(works)
        except Exception as error:
            with self._changed:
                self.failure = PenstockError.of(error, "applying changes")
                self._changed.notify_all()
        finally:
            self._disconnect()

    def _due(self) -> Sequence[Work] | None:
        """The work of the next commit; waits for it. None at the end."""
        settings = self._settings.commit
        with self._changed:
            while True:
                if self._is_closed:
                    return None
                now = time.monotonic()
                left = self._pending[0].since + settings.wait - now if self._pending else None
                if self._pending and (
                    self._rows >= settings.rows or self._is_drained or (left or 0) <= 0
                ):
                    break
                self._changed.wait(left)
            works: list[Work] = []
            rows = 0
            for work in self._pending:
                if works and rows + work.rows > settings.rows:
                    break
                works.append(work)
                rows += work.rows
            return works

    def _pause(self, error: Unavailable, seconds: float) -> None:
        with self._changed:
            self._report.error = error.message
            self._changed.wait_for(lambda: self._is_closed, seconds)

    def _done(self, works: Sequence[Work]) -> None:
        with self._changed:
            for work in works:
                self._pending.popleft()
                self._rows -= work.rows
                work.pending.discard(self._number)
            self._report.error = ""
            self._changed.notify_all()

    def _disconnect(self) -> None:
        applier, self._applier = self._applier, None
        if applier is not None:
            applier.connection.close()

    def _commit(self, works: Sequence[Work]) -> None:
        begun, counted = time.monotonic(), WorkerReport(commits=1)
        chunks = [chunk for work in works for chunk in work.chunks]
        if self._applier is None:
            self._applier = Applier(self._database, self._settings.on_error)
        connection = self._applier.connection
        with self._database.translated("writing"), connection.transaction():
            cursor = connection.cursor()
            ledger = self._database.ledger(cursor)
            rows = ledger.lock({chunk.table.id for chunk in chunks})
            for table, same in _by_table(chunks).items():
                row = rows.get(table.id)
                if row is None:
                    raise SettingsError(
                        f"the ledger has no row of {table.name} any more",
                        hint="somebody deleted it; restart the pipeline to make it anew",
                    )
                counted.known += sum(len(chunk.batch) for chunk in same)
                is_live, report = row.state == "live", TableReport(same[-1].last, row.columns)
                for relation, changes in _joined(same, row):
                    counted.known -= len(changes)
                    rest = changes
                    if is_live:
                        rest = self._apply(cursor, (table, row), relation, changes, report)
                    if rest:
                        ledger.hold(row.id, relation, rest)
                    is_live, at = is_live and not rest, changes[-1].committed_at
                    report.lag = time.time() - at / 1e6 if is_live and at is not None else None
                if row.is_new(report.place):
                    counted.tables[table] = report
            if counted.tables:
                ledger.advance({table.id: one.place for table, one in counted.tables.items()})
        counted.seconds = time.monotonic() - begun
        with self._changed:
            self._report.add(counted)

    def _apply(
        self,
        cursor: Any,
        of: tuple[SourceTable, LedgerRow],
        relation: SourceRelation,
        changes: Sequence[LineChange],
        report: TableReport,
    ) -> Sequence[LineChange]:
        """Applies what can be applied; returns what is to be held, because the table waits, or is
        to be loaded anew."""
        assert self._applier is not None
        table, row = of
        try:
            done = self._applier.apply(cursor, table, row, relation, changes)
        except BeginAnew:
            self._database.ledger(cursor).load_anew(row)
            return changes
        report.applied += done.applied
        report.letters += done.letters
        if done.error is not None:
            self._database.ledger(cursor).save(row.become("waiting", done.error))
        return done.rest


def _by_table(chunks: Sequence[Chunk]) -> Mapping[SourceTable, list[Chunk]]:
    found: dict[SourceTable, list[Chunk]] = {}
    for chunk in chunks:
        found.setdefault(chunk.table, []).append(chunk)
    return found


def _joined(
    chunks: Sequence[Chunk], row: LedgerRow
) -> Iterator[tuple[SourceRelation, Sequence[LineChange]]]:
    """What is new of a table's chunks, together for each relation in their order."""
    for relation, same in groupby(chunks, key=lambda chunk: chunk.relation):
        changes = [change for chunk in same for change in changes_of(chunk.after(row))]
        if changes:
            yield relation, changes
