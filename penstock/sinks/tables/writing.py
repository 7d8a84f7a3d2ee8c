"""A commit in its transaction: changes of its tables are applied, and held where these wait."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from penstock.model.errors import PenstockError
from penstock.model.position import Place
from penstock.sinks.tables.apply import Applied, Applier, Isolates, operations
from penstock.sinks.tables.source_table import BeginAnew, SourceTable, Stretch
from penstock.sinks.tables.tied import Parts, halved, in_turn, may_depend, passes
from penstock.tables.database import TableDatabase
from penstock.tables.drift import KnownColumns
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_rows import LedgerRow
from penstock.tables.lines import LineChange
from penstock.tables.references import References, TiesChanged
from penstock.tables.states import TableEvent


@dataclass(slots=True)
class TableWork:
    """What was done of one table: changes that were applied, by operation, and set aside, by
    reason; the last place, and how many seconds after its commit at the source (None: it is held).
    `row`: of the ledger, before; `is_live`: after that."""

    row: LedgerRow
    place: Place
    is_live: bool
    applied: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    lag: float | None = None
    size: Mapping[str, Any] = field(default_factory=dict)  # of the target, see `LoadsTables`

    def note(self, done: Applied, stretch: Stretch) -> None:
        self.applied += done.applied
        self.letters += done.letters
        self.is_live, at = self.is_live and not done.rest, stretch.changes[-1].committed_at
        self.lag = time.time() - at / 1e6 if self.is_live and at is not None else None

    def add(self, later: "TableWork") -> None:
        self.applied += later.applied
        self.letters += later.letters
        self.row, self.place, self.lag = later.row, later.place, later.lag
        self.size = later.size

    def described(self, table: SourceTable) -> dict[str, Any]:
        """As the status page shows it."""
        lag = None if self.lag is None else round(max(self.lag, 0.0), 3)
        return {
            **table.named, "place": str(self.place), "lag_seconds": lag,
            "applied": self.applied, "letters": self.letters.total(),
            "ignored": KnownColumns.parse(self.row.columns).ignored, **self.size,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Writing:
    """Applies changes of `works`. All of their tables wait where the commit is `refused`. `open`:
    by partition, the cursor of a transaction of which more may come."""

    applier: Applier
    database: TableDatabase
    cursor: Any
    ledger: TargetLedger
    references: References
    isolates: Isolates
    refused: PenstockError | None
    open: Mapping[str, str]
    works: dict[SourceTable, TableWork]

    @cached_property
    def _references_now(self) -> References:
        return self.database.references(self.cursor)

    def apply(self, parts: Parts) -> None:
        """Applies changes of tables that are tied: together; where that is refused, one half of
        their transactions after the other; and those of one transaction in their order, what
        depends on others of them at its end."""
        live = {table: some for table, some in parts.items() if self.works[table].is_live}
        self._each(in_turn({table: some for table, some in parts.items() if table not in live}))
        if len(live) < 2 or self.refused is not None:
            self._each(in_turn(live))
        elif self._together(live):
            pass
        elif len(halves := halved(live)) > 1:
            for half in halves:
                self.apply(half)
        else:
            late = self._each(passes(live, self.references), defers=True)
            if not self._together(late):
                self._each(in_turn(late))

    def _together(self, parts: Parts) -> bool:
        rows = {table: self.works[table].row for table in parts}
        if len(parts) < 2 or not self.applier.apply_together(
            self.cursor, parts, rows, self.references, isolates=self.isolates
        ):
            return False
        for table, (stretch,) in parts.items():
            self.works[table].note(Applied(operations(stretch.changes)), stretch)
        return True

    def _each(
        self, stretches: Iterable[tuple[SourceTable, Stretch]], *, defers: bool = False
    ) -> Parts:
        """Applies one after the other; returns what may come out after others, if it `defers`."""
        late: dict[SourceTable, list[Stretch]] = {}
        for table, stretch in stretches:
            if table in late:
                late[table].append(stretch)
            elif rest := self._one(table, stretch, defers=defers):
                late[table] = [Stretch(stretch.relation, rest)]
        return late

    def _one(self, table: SourceTable, stretch: Stretch, *, defers: bool) -> Sequence[LineChange]:
        """Applies what can be applied, and holds the rest: the table waits or loads. Returns what
        it `defers` instead."""
        work, done = self.works[table], Applied(rest=stretch.changes, error=self.refused)

        def may_come(change: LineChange) -> bool:
            now = self._references_now.among([table.target])
            if now != self.references.among([table.target]):
                raise TiesChanged("foreign keys of the targets have changed", "tables")
            is_open = self.open.get(table.sid) == change.cursor
            return defers or is_open or may_depend(self.ledger, self.references, table, change)

        if work.is_live:
            try:
                if self.refused is None:
                    done = self.applier.apply(
                        self.cursor, table, work.row, stretch, may_come, isolates=self.isolates
                    )
            except BeginAnew:
                self.ledger.load_anew(work.row)
            else:
                if defers and done.rest and done.error is None:
                    work.note(replace(done, rest=()), stretch)
                    return done.rest
                if done.rest:
                    row, error = work.row, done.error
                    self.ledger.save(row.wait(error) if error else row.become(TableEvent.EARLY))
        else:
            self.applier.forget_keys(table)
        if done.rest:
            self.ledger.hold(work.row.id, stretch.relation, done.rest)
        work.note(done, stretch)
        return ()
