"""A table of one source, and how its changes become rows of its target."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import psycopg
from psycopg import sql

from penstock.model.errors import Rejected, SettingsError
from penstock.sinks.poison.dead_letter import Letter, row_letter
from penstock.sinks.postgres.settings import MappedTable
from penstock.tables.fold import EMPTYING, Move, RowFold
from penstock.tables.history import StagedHistory, open_index
from penstock.tables.ledger import reason_of
from penstock.tables.lines import UNSENT, LineChange, SourceRelation, replaced_columns
from penstock.tables.staged import SID, Destination, RowMapping
from penstock.tables.staging import StagedTable, find_destination, type_at


class BeginAnew(Exception):
    """The rows of a table are of several points, and changes between these cannot be applied."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceTable:
    """A table of the map, of the source `sid`; `id` is its row of the ledger."""

    mapped: MappedTable
    sid: str
    id: int

    @property
    def name(self) -> str:
        """What logs and errors call it."""
        return f"{self.mapped.source} of {self.mapped.backend}/{self.sid}"

    @property
    def target(self) -> str:
        """`schema.table` at the destination."""
        return self.mapped.full_target

    @property
    def occupied(self) -> SettingsError:
        """What is wrong where its target has rows before its first load."""
        return SettingsError(
            f"{self.name}: {self.target} has rows already",
            hint="set `existing: replace` or `keep` for it in the map, or delete them",
        )

    @property
    def loads(self) -> str:
        """What event ids begin with of rows that a load has set aside."""
        return f"{self.mapped.backend}:{self.sid}/{self.mapped.source}/load:"

    def worker(self, workers: int) -> int:
        """Which worker has it: all sources of a target have one, so that none waits for another."""
        return crc32(self.target.encode()) % workers

    def staged(self, cursor: Any, relation: SourceRelation, number: int) -> StagedTable:
        """How lines of the relation are written. Raises SettingsError, and psycopg's errors."""
        options = self.mapped.options
        found = find_destination(cursor, self.mapped.target_schema, self.mapped.target)
        if found is None and options.create:
            self.create(cursor, relation)
            found = find_destination(cursor, self.mapped.target_schema, self.mapped.target)
        if found is None:
            raise SettingsError(
                f"{self.name}: there is no table {self.target} at the destination",
                hint="create it, or set `create: true` for it in the map",
            )
        staged = staged_table(self.mapped, self.sid, relation, found, number)
        if problem := unfit(staged):
            raise SettingsError(f"{self.name}: {problem.message}", hint=problem.hint)
        return staged

    def apply(
        self,
        cursor: Any,
        staged: StagedTable,
        changes: Sequence[LineChange],
        *,
        is_between: bool = False,
    ) -> None:
        """Applies changes in the transaction of the cursor; `is_between` the points of its rows,
        some of which may be newer. Raises psycopg's errors,
        Rejected, BeginAnew."""
        if staged.mapping.has_expressions:
            changes = [_with_meta(one) for one in changes]
        if self.mapped.options.partitions and any(one.operation in EMPTYING for one in changes):
            self._refuse_emptied()
        if isinstance(staged, StagedHistory):
            staged.apply_changes(cursor, changes)
            return
        if staged.takes_lines and all(one.operation in ("INSERT", "READ") for one in changes):
            lines = [one.after or "" for one in changes]
            try:
                with cursor.connection.transaction():
                    staged.copy(cursor, lines)
            except psycopg.errors.UniqueViolation:
                pass  # some are there: below they replace the rows with their keys
            else:
                return
        keeps = self.mapped.options.type == "append"
        fold = RowFold(staged.relation.key, moves=staged.moves, keeps=keeps)
        for one in changes:
            fold.add(one)
        steps = fold.steps()
        if is_between and any(isinstance(step, Move) for step in steps):
            # The row with the old key may be gone, with the values that the change lacks.
            raise BeginAnew
        staged.apply(cursor, steps)

    def refuse_renamed(
        self, before: Sequence[str], relation: SourceRelation, staged: StagedTable
    ) -> None:
        """Raises SettingsError where a column of the target may have another name at the source
        than `before`: its values would stay as they are, and the new ones be left out."""
        options, there = self.mapped.options, staged.destination.columns
        wanted = relation.names if options.columns is None else options.columns
        for gone, new in () if options.set else replaced_columns(before, relation.names):
            old = [name for name in gone if name in there]
            lacking = [name for name in new if name in wanted and name not in there]
            if old and lacking:
                raise SettingsError(
                    f"{self.name}: {', '.join(old)} may be called {', '.join(lacking)} now",
                    hint=f"if so: ALTER TABLE {self.target} RENAME COLUMN {old[0]} TO {lacking[0]};"
                    f" if it is another: ALTER TABLE {self.target} ADD COLUMN {lacking[0]} <type>;"
                    " or leave it out of `columns` in the map",
                )

    def _refuse_emptied(self) -> None:
        """One partition was truncated, and the target does not know which rows are of it: they are
        loaded anew. Raises BeginAnew, or Rejected where rows are never deleted."""
        if self.mapped.options.type == "clone":
            raise BeginAnew
        if self.mapped.options.type == "history":
            raise Rejected(
                "a partition was truncated, and versions do not say of which partition they are",
                hint="end its versions by hand, or `penstock reload` the table",
            )

    @property
    def named(self) -> dict[str, str]:
        """What the status page knows it by."""
        return {"backend": self.mapped.backend, "sid": self.sid, "table": self.mapped.source}

    def letter(self, relation: SourceRelation, change: LineChange, error: Rejected) -> Letter:
        """A dead letter of a change that the destination refuses."""
        at = change.committed_at
        cells = change.after.split("\t") if change.has_unsent and change.after else ()
        values = {
            "event_id": change.event_id, "backend": self.mapped.backend, "partition": self.sid,
            "cursor": change.cursor, "ordinal": change.ordinal, "database": None,
            "namespace": self.mapped.schema_name, "collection": self.mapped.table,
            "relation_id": None, "transaction": None, "captured_at": None,
            "committed_at": None if at is None else datetime.fromtimestamp(at / 1e6, UTC),
            "operation": change.operation, "key": change.key, "before": change.before,
            "after": change.after, "delta": relation.to_json(),
            "unchanged": [
                name for name, cell in zip(relation.names, cells, strict=False) if cell == UNSENT
            ],
        }  # fmt: skip
        return row_letter(values, "text", reason_of(error), error.message)

    def create(self, cursor: Any, relation: SourceRelation, *, has_sid: bool = False) -> None:
        """Makes the target with the source's columns and key, and what a history has besides (and
        any other, if it `has_sid`, the source's name); types that this database lacks are text.
        Raises psycopg's errors."""
        kinds = {column.name: type_at(cursor, column) for column in relation.columns}
        key = [relation.columns[number].name for number in relation.key]
        if has_sid or self.mapped.periods is not None:
            kinds = {SID: "text"} | kinds
            key = [SID, *key] if key else []
        if (periods := self.mapped.periods) is not None:
            kinds |= periods.kinds
            key = [*key, periods.start] if key else []
        parts = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in kinds.items()
        ]
        if key:
            names = sql.SQL(", ").join(map(sql.Identifier, key))
            parts.append(sql.SQL("PRIMARY KEY ({})").format(names))
        cursor.execute(
            sql.SQL("CREATE TABLE {} ({})").format(
                sql.Identifier(self.mapped.target_schema, self.mapped.target),
                sql.SQL(", ").join(parts),
            )
        )
        if periods is not None:
            cursor.execute(
                open_index(self.mapped.target_schema, self.mapped.target, key[:-1], periods)
            )


def staged_table(
    mapped: MappedTable, sid: str, relation: SourceRelation, found: Destination, number: int
) -> StagedTable:
    """How lines of a relation are written to a destination, which was found."""
    mapping = RowMapping(
        sid=sid if SID in found.columns else None, source=sid, columns=mapped.options.columns,
        computed=mapped.options.set, filter=mapped.options.filter,
    )  # fmt: skip
    if mapped.periods is None:
        return StagedTable(relation, found, mapping, number)
    return StagedHistory(relation, found, mapping, number, mapped.periods)


def unfit(staged: StagedTable) -> SettingsError | None:
    """What is wrong where the source's key is not one of the target, or a history's columns are
    missing; None for nothing."""
    found, key = staged.destination, staged.unique
    target = f"{found.schema}.{found.table}"
    if isinstance(staged, StagedHistory) and (problem := staged.lacks):
        return SettingsError(f"{target}: {problem}", hint="see docs/how-to/history.md")
    if not key:
        return None
    if missing := [name for name in key if name not in found.columns]:
        return SettingsError(
            f"{target} has no column {missing[0]}, which is in the key",
            hint="add it to the target, or map the table with `set`",
        )
    if frozenset(key) in found.keys:
        return None
    names = ", ".join(key)
    return SettingsError(
        f"no unique index of {target} has exactly ({names})",
        hint=f"ALTER TABLE {target} ADD PRIMARY KEY ({names});",
    )


def _with_meta(change: LineChange) -> LineChange:
    """The change with the columns `META` in its lines."""
    at = change.committed_at
    time = "\\N" if at is None else datetime.fromtimestamp(at / 1e6, UTC).isoformat()
    head = f"{change.operation}\t{time}\t"
    return change._replace(
        before=None if change.before is None else f"{UNSENT}\t{UNSENT}\t{change.before}",
        after=None if change.after is None else head + change.after,
    )
