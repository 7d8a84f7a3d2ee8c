"""Rows of sources into their targets, part by part; then the changes that were held meanwhile.

Each part is a transaction with its mark in the ledger, so a kill repeats none. What an interrupted
load lacks is read at a later point: changes between the two are applied to all rows, of which some
are newer. That comes out right, because a change has the whole row or deletes it; where one has
not, and moves a row to another key, the load begins anew.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson

from penstock.model.change import OnError
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.position import ROWS, PartitionId, Place
from penstock.sinks import Progress, ignore
from penstock.sinks.loading import Part, RowsPoint
from penstock.sinks.tables.apply import Applied, Applier
from penstock.sinks.tables.fitness import narrower
from penstock.sinks.tables.row_writer import TableRowWriter
from penstock.sinks.tables.settings import MappedTable, TableSinkSettings
from penstock.sinks.tables.source_table import BeginAnew, SourceTable, Stretch, relation_of
from penstock.sinks.tables.table_map import TableMap
from penstock.sinks.tables.tied import Parts, halved, may_depend
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_rows import LedgerRow, TableRecord
from penstock.tables.lines import NOTHING, LineChange
from penstock.tables.references import Dangling, References
from penstock.tables.staged import StagedRows
from penstock.tables.states import TableEvent, TableState

_ALL = 1 << 31  # held changes


class LedgerLoad:
    """See `TableLoad`."""

    def __init__(
        self, settings: TableSinkSettings, table_map: TableMap, mapped: MappedTable,
        record: TableRecord, *, kept: Collection[str] = (), first: str = "", is_early: bool = False,
    ) -> None:  # fmt: skip
        self._table = SourceTable(mapped=mapped, sid=record.sid, id=record.row.id)
        self._settings, self._database = settings, settings.database()
        self._row, self._map = record.row, table_map
        self._mapped = {(each.backend, each.source): each for each in settings.tables()}
        self.backend, self.partition = mapped.backend, PartitionId(record.sid)
        self.name, self.has_rows = self._table.name, record.row.has_rows
        self.waits_for_operator, self._kept = record.row.state is TableState.STOPPED, kept
        self.described, self.loaded, self.is_early = record.described(), 0, is_early or bool(first)
        self.recurs = False
        if first:
            self.described |= {"error": f"{first} is loaded first, which it refers to"}

    def covers(self, schema: str, table: str) -> bool:
        is_ours = self._map.mapped(self.backend, schema, table) == self._table.mapped
        return is_ours and f"{schema}.{table}" not in self._kept

    def begin(self, point: RowsPoint) -> Sequence[Part] | None:
        with self._locked("reading the ledger") as (ledger, row):
            parts = ledger.parts(row.id)
            self.loaded = sum(part.rows for part in parts)
            own = [part for part in parts if part.source == _source(point)]
            if not own or not any(part.is_done for part in parts):
                return None
            if not all(point.continues(part.identity) for part in own):
                ledger.load_anew(row)
                self.loaded = 0
                return None
            left = [(part.number, orjson.loads(part.ranges)) for part in own if not part.is_done]
            if left:
                ledger.save(row.at_points(row.point, point.cursor))
            return left

    def plan(self, point: RowsPoint, ranges: Sequence[Any]) -> Sequence[Part]:
        has_key = any(column["key"] for column in point.schema.columns)
        is_keyed, keeps = point.is_by_key and has_key, self._keeps
        # What was read at another point would be in the way, or there twice.
        is_whole = not is_keyed or keeps or self._table.mapped.periods is not None
        parts = [ranges] if is_whole else [[one] for one in ranges]
        with self._database.transaction("preparing the target") as cursor:
            loaded = self._database.ledger(cursor).parts(self._row.id)
            is_first = not any(one.is_done for one in loaded)
            staged = self._staged(cursor, point)
        with self._database.transaction("preparing the target") as cursor:
            # Before the ledger's row is locked: workers wait for that.
            if is_first and not keeps and staged.has_rows(cursor):
                if not self._row.is_ours and self._table.mapped.options.existing == "refuse":
                    raise self._table.occupied
                self._clear(cursor, staged)
        with self._beginning_anew(), self._locked("planning a load") as (ledger, row):
            if is_first:
                if not row.point and row.last_point >= point.cursor:
                    raise self._begun_anew  # since the snapshot was taken
                ledger.forget_parts(row.id)
                ledger.forget_rows(row.id)
                ledger.letters.forget(self._table.loads)
                ledger.save(row.at_points(point.cursor, is_ours=not keeps))
            elif is_keyed and not is_whole:
                ledger.save(row.at_points(row.point, point.cursor))
            elif self._kept:
                raise BeginAnew
            else:
                raise SettingsError(
                    f"{self.name}: {_source(point)} cannot be loaded with other partitions",
                    "tables.partitions-unfit",
                    hint="give it a primary key, and no `existing: keep`, or a target of its own",
                )
            texts = [orjson.dumps(part).decode() for part in parts]
            ledger.plan(row.id, _source(point), point.identity, texts)
        return list(enumerate(parts))

    def _clear(self, cursor: Any, staged: StagedRows) -> None:
        """All rows go, and before them those that refer to them, whose tables are loaded anew."""
        references, ledger = self._database.references(cursor), self._database.ledger(cursor)
        children, mapped = references.children(self._table.target), self._mapped
        found = {
            each.row.id: (each, one) for each in ledger.tables()
            if each.target in children and (one := mapped.get((each.backend, each.table)))
            and one.options.type == "clone" and each.sid == (staged.mapping.sid or each.sid)
        }  # fmt: skip
        cleared = {one.full_target for _, one in found.values()} | {self._table.target}
        for child, parent in references.cascading:
            if parent in cleared and child not in cleared:
                raise SettingsError(
                    f"{self.name}: rows of {child} would go with those of {parent}",
                    code="tables.rows-cascade", hint="empty both by hand",
                )  # fmt: skip
        rows = ledger.lock(found)
        for id, (record, one) in sorted(
            found.items(), key=lambda each: references.rank(each[1][0].target), reverse=True
        ):
            if rows[id].is_followed:
                ledger.load_anew(rows[id])
            if there := self._database.find(cursor, one.target_schema, one.target):
                mapping = one.mapping(record.sid, there)
                self._database.staged(NOTHING, there, mapping).clear(cursor)
        staged.clear(cursor)

    @property
    def _begun_anew(self) -> Unavailable:
        return Unavailable(f"{self.name}: the load was begun anew", "tables")

    @property
    def _keeps(self) -> bool:
        """Whether rows stay: an append and a history have those that are gone at the source."""
        options, row = self._table.mapped.options, self._row
        if not row.is_ours:
            return options.existing == "keep"
        if self.partition == ROWS and options.type == "log":
            return False  # rows have no place after the changes that are there
        return row.is_again and options.type != "clone"

    @contextmanager
    def writer(
        self, point: RowsPoint, on_error: OnError = "stop", progress: Progress = ignore
    ) -> Iterator[TableRowWriter]:
        # A history that is not ours gets rows beside its own.
        merges = self._keeps and (self._row.is_ours or self._table.mapped.periods is None)
        merges |= bool(self._kept)  # changes of what joined may have come already
        with closing(self._database.connect()) as connection:
            with self._database.translated("preparing the target"), connection.transaction():
                cursor = connection.cursor()
                ledger = self._database.ledger(cursor)
                (row,) = ledger.lock([self._row.id]).values()
                parts = ledger.parts(row.id)
                identity = next((p.identity for p in parts if p.source == _source(point)), "")
                if not identity:
                    raise self._begun_anew
                staged = self._staged(cursor, point)
                staged.make(cursor)
                pairs = self._database.references(cursor).pairs
                followed = {each.full_target for each in self._mapped.values()}
            with self._beginning_anew():
                yield TableRowWriter(
                    connection=connection, database=self._database, table=self._table, row=row,
                    staged=staged, relation=relation_of(point.schema), cursor=point.cursor,
                    identity=identity, merges=merges, on_error=on_error, progress=progress,
                    recurs=self.recurs,
                    refers=any(one == self._table.target and to in followed for one, to in pairs),
                )  # fmt: skip

    def discard(self) -> None:
        with self._locked("beginning anew") as (ledger, row):
            ledger.load_anew(row)

    def finish(self, tables: Collection[tuple[str, str]]) -> bool:
        with self._locked("ending a load") as (ledger, row):
            parts = ledger.parts(row.id)
            wanted = {f"{schema}.{table}" for schema, table in tables} | {*self._kept}
            is_whole = all(part.is_done for part in parts)
            is_whole &= wanted <= {part.source for part in parts}
            if is_whole:
                for each in ledger.partitions(row.id).values() or [row]:
                    ledger.save(each.become(TableEvent.FILLED))
                ledger.forget_parts(row.id)
            return is_whole

    def settle(
        self, on_error: OnError, progress: Progress = ignore, passed: Place | None = None
    ) -> None:
        for each in self._of_partitions():
            each.settle(on_error, progress)
        applier, most = Applier(self._database, on_error), self._settings.commit.rows
        with applier, self._beginning_anew():
            has_more = True
            while has_more:
                has_more, early, is_cut = self._settle_some(applier, progress, most, passed)
                if early is not None:
                    if not (has_more and (is_cut or early.operation == "READ")):
                        raise Unavailable(f"{self.name} waits for tables tied with it", "tables")
                    most *= 2  # rows of a load, or a transaction, refer to others in any order

    def _of_partitions(self) -> Iterator["LedgerLoad"]:
        """Where its rows are of all partitions together, theirs: parents first."""
        if self.partition != ROWS:
            return
        with self._locked("reading the ledger") as (ledger, row):
            rows = {each.id for each in ledger.partitions(row.id).values()} - {row.id}
            records = [each for each in ledger.tables() if each.row.id in rows]
        for record in records:
            found = LedgerLoad(self._settings, self._map, self._table.mapped, record)
            found.recurs = self.recurs
            yield found

    def _settle_some(
        self, applier: Applier, progress: Progress, most: int, passed: Place | None
    ) -> tuple[bool, LineChange | None, bool]:
        """Applies some of the changes that were held; whether there may be more, the first that
        depends on what may come, and whether they were a part of a transaction."""
        applied, letters = Counter[str](), Counter[str]()
        early: LineChange | None = None
        with applier.transaction("applying held changes") as cursor:
            ledger = self._database.ledger(cursor)
            references = self._database.references(cursor)
            circle = [
                each for each in ledger.unsettled(references.circle(self._table.target))
                if (each.backend, each.sid) == (self.backend, self.partition)
            ]  # fmt: skip
            row = self._lock(ledger, circle)
            if row.is_live or not row.has_rows:
                return False, None, False
            if circle:
                self._settle_circle(cursor, applier, references, circle)
                return False, None, False
            settled = row.become(TableEvent.SETTLED)

            def may_come(change: LineChange) -> bool:
                # A load reads rows ahead of the changes of other tables that are stored; and the
                # transaction of a change may go on.
                is_ahead = passed is not None and (
                    passed.cursor < change.cursor
                    or (change.operation != "READ" and passed.cursor == change.cursor)
                )
                return is_cut or is_ahead or may_depend(ledger, references, self._table, change)

            held, has_more = ledger.take_held(row, most)
            cursors = {one.cursor for _, changes in held for one in changes}
            is_cut = has_more and len(cursors) == 1
            for relation, changes in held:
                done = Applied(rest=changes)
                if early is None:
                    stretch = Stretch(relation, changes)
                    done = applier.apply(
                        cursor, self._table, row, stretch, may_come,
                        isolates="all" if self.recurs else "deferred",
                    )  # fmt: skip
                if done.error is not None:
                    raise done.error
                applied += done.applied
                letters += done.letters
                if done.rest:
                    ledger.hold(row.id, relation, done.rest)
                    early = early or done.rest[0]
            if early is None and not has_more:
                ledger.save(settled)
            size = ledger.sizes(self._table.target).get(self._table.target, {})
        if applied or letters or size:
            table = {**self._table.named, "applied": applied, "letters": letters.total(), **size}
            progress.report({"tables": [table], "dead_letters": dict(letters)})
        return has_more, early, is_cut

    def _settle_circle(
        self, cursor: Any, applier: Applier, references: References, circle: Sequence[TableRecord]
    ) -> None:
        """Applies all changes that were held of a source's tables that refer to each other: those
        that do not come out together, in halves of their transactions."""
        ledger = self._database.ledger(cursor)
        tables = {self._row.id: self._table} | {
            each.row.id: SourceTable(mapped=mapped, sid=each.sid, id=each.row.id)
            for each in circle if (mapped := self._mapped.get((each.backend, each.table)))
        }  # fmt: skip
        rows = ledger.lock(tables)
        held = {id: ledger.take_held(row, _ALL)[0] for id, row in rows.items()}
        own = rows[self._row.id]
        if any(one.cursor < own.last_point for _, some in held[own.id] for one in some):
            raise BeginAnew  # its rows are of several points
        by_table = {tables[id]: row for id, row in rows.items()}

        def come_out(parts: Parts) -> bool:
            if applier.apply_together(cursor, parts, by_table, references):
                return True
            halves = halved(parts)
            return len(halves) > 1 and all(map(come_out, halves))

        parts = {
            tables[id]: [Stretch(*each) for each in some] for id, some in held.items() if some
        }  # fmt: skip
        if all(row.has_rows for row in rows.values()) and come_out(parts):
            with suppress(Dangling), self._database.translated("applying held changes"):
                self._database.check_deferred(cursor)
                for row in rows.values():
                    ledger.save(row.become(TableEvent.SETTLED))
                return
        names = " and ".join(sorted(each.name for each in tables.values()))
        raise Unavailable(
            f"{names} refer to each other: their rows cannot be stored yet",
            "tables",
            hint="make one of the foreign keys DEFERRABLE INITIALLY DEFERRED, and let the"
            " referenced rows arrive; or set `sink.replica_role`, which ignores foreign keys",
        )

    def wait(self, error: PenstockError) -> None:
        with self._locked("storing why a table waits") as (ledger, row):
            if not row.is_live:
                ledger.save(row.wait(error))

    def _staged(self, cursor: Any, point: RowsPoint) -> StagedRows:
        relation = relation_of(point.schema)
        if self._table.mapped.options.partitions:  # each has numbers of its own
            relation = replace(relation, catalog=None)
        staged = self._table.staged(cursor, self._database, relation, 0, lines_are="rows")
        for problem in narrower(cursor, self._database, staged, point.schema):
            if not self._table.amends(cursor, self._database, problem):
                raise problem
        return staged

    @contextmanager
    def _beginning_anew(self) -> Iterator[None]:
        try:
            yield
        except BeginAnew:
            self.discard()
            raise Unavailable(f"the load of {self.name} begins anew", "tables") from None

    @contextmanager
    def _locked(self, doing: str) -> Iterator[tuple[TargetLedger, LedgerRow]]:
        """The ledger in a transaction, and the table's row of it."""
        with self._database.transaction(doing) as cursor:
            ledger = self._database.ledger(cursor)
            yield ledger, self._lock(ledger)

    def _lock(self, ledger: TargetLedger, others: Sequence[TableRecord] = ()) -> LedgerRow:
        found = ledger.lock([self._row.id, *(each.row.id for each in others)])
        if self._row.id not in found:
            raise SettingsError(f"the ledger has no row of {self.name} any more", "tables")
        return found[self._row.id]


def _source(point: RowsPoint) -> str:
    return f"{point.schema.schema}.{point.schema.table}"
