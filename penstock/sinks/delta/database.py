"""The lake as a database of tables. The ledger is in a SQLite file; tables are Delta's."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from psycopg import sql

from penstock.model.errors import SettingsError
from penstock.process.sqlite_file import translated
from penstock.sinks.delta import expressions, lake
from penstock.sinks.delta.commits import app_of
from penstock.sinks.delta.documents import DeltaStagedDocuments, columns_of, shown
from penstock.sinks.delta.kinds import OnMisfit, computed_kind, kind_named, kind_of
from penstock.sinks.delta.lake import ColumnChange, DeltaLayout
from penstock.sinks.delta.staged import (
    BUCKET,
    DAY,
    OF_LOG,
    DeltaStagedRows,
    own_names,
    wrong_names,
)
from penstock.sinks.delta.versions import AT, LAST_AT, DeltaStagedHistory
from penstock.tables.database import Owner
from penstock.tables.history import LAST, HistoryColumns
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_rows import LedgerRow
from penstock.tables.ledger_tables import CREATE
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.sqlite_database import SqliteDatabase, SqliteLedger
from penstock.tables.staged import Destination, RowMapping
from penstock.typed.columns import COLUMNS
from penstock.typed.lines import arrow_type

_COLUMN = r'"((?:[^"]|"")+)"'
_ADD, _RENAME, _RETYPE = (
    re.compile(f"ALTER TABLE .* {text}", re.DOTALL)
    for text in (
        f'ADD COLUMN {_COLUMN} ([^"]+)', f'RENAME COLUMN {_COLUMN} TO "(?P<new>(?:[^"]|"")+)"',
        f'ALTER COLUMN {_COLUMN} TYPE (?P<kind>[^"]+?)( USING NULL)?',
    )
)  # fmt: skip


class DeltaLedger(SqliteLedger):
    """Has as well what is known of commits to Delta tables."""

    _create: Sequence[str] = (
        *CREATE[2:],
        """CREATE TABLE IF NOT EXISTS {own}delta (
            app text PRIMARY KEY, number bigint NOT NULL, writer text NOT NULL,
            parts text NOT NULL, place text NOT NULL)""",
        # What our last commit left of a table, as JSON.
        """CREATE TABLE IF NOT EXISTS {own}delta_table (
            target text PRIMARY KEY, size text NOT NULL)""",
    )
    _newest = (*SqliteLedger._newest, "delta_table")

    def sizes(self, *targets: str) -> Mapping[str, Mapping[str, Any]]:
        if not self.is_there("delta_table"):
            return {}
        query = f"SELECT target, size FROM {self.own}delta_table"
        query += " WHERE target = ANY (%s)" if targets else ""
        found = self.run(query, [[*targets]] if targets else ()).fetchall()
        return {target: orjson.loads(size) for target, size in found}

    def load_anew(
        self, row: LedgerRow, *, is_ours: bool = True, is_comparable: bool = True
    ) -> None:
        super().load_anew(row, is_ours=is_ours, is_comparable=is_comparable)
        # The load goes on with the counter that each table has by then.
        ids = {row.id, *(each.id for each in self.partitions(row.id).values())}
        apps = [
            app_of(each.backend, each.sid, each.table)
            for each in self.tables() if each.row.id in ids
        ]  # fmt: skip
        self.run(f"UPDATE {self.own}delta SET number = -1 WHERE app = ANY (%s)", [apps])

    def keep_size(self, target: str, size: Mapping[str, Any]) -> None:
        self.run(
            f"INSERT INTO {self.own}delta_table (target, size) VALUES (%s, %s)"
            " ON CONFLICT (target) DO UPDATE SET size = excluded.size",
            [target, orjson.dumps(size).decode()],
        )


class DeltaDatabase(SqliteDatabase):
    """See `TableDatabase`. `layouts`: of each target, by its schema and name."""

    makes_computed = True

    def __init__(
        self, ledger: Path, layouts: Mapping[tuple[str, str], DeltaLayout],
        on_misfit: OnMisfit = "refuse", side_by_side: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(ledger)
        self.side_by_side, self.gathers_in = side_by_side, ledger.parent
        self._layouts, self._on_misfit = layouts, on_misfit

    def ledger(self, cursor: Any) -> TargetLedger:
        return DeltaLedger(cursor)

    def connect(self, owner: Owner = "sink") -> Any:
        with translated("making the folder of", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        return super().connect(owner)

    def find(self, cursor: Any, schema: str, table: str) -> Destination | None:
        layout = self._layouts[schema, table]
        if (found := lake.open_table(layout)) is None:
            return None
        kinds = {field.name: kind_named(field.type) for field in lake.schema_of(found)}
        if layout.declared is not None:
            kinds = {**shown(layout.declared, kinds)}
        return Destination(
            schema=schema, table=table, columns=kinds, is_made=lake.is_made(found),
            generated=own_names(layout) & kinds.keys(),
        )  # fmt: skip

    def size(self, target: str) -> Mapping[str, Any]:
        schema, _, table = target.partition(".")
        layout = self._layouts.get((schema, table))
        return lake.size_of(layout) if layout is not None else {}

    def type_at(self, cursor: Any, column: RelationColumn) -> str:
        return kind_of(column, self._on_misfit)

    def may_be_large(self, cursor: Any, column: RelationColumn) -> bool:
        kind = self.type_at(cursor, column)
        return kind in ("text", "bytea") or kind.endswith("[]") or kind.startswith("numeric")

    def execute_one(self, cursor: Any, statement: sql.Composed) -> None:
        """See `TableDatabase`. It is of expressions, which are SQL of DataFusion; raises
        SettingsError."""
        expressions.query(statement.as_string(None))

    def kind_computed(self, cursor: Any, query: sql.Composed) -> str:
        found = expressions.query(query.as_string(None))
        return computed_kind(found.schema.field(0).type)

    def staged(  # type: ignore[override]
        self, relation: SourceRelation, found: Destination, mapping: RowMapping, number: int = 0,
        periods: HistoryColumns | None = None,
    ) -> DeltaStagedRows:  # fmt: skip
        options: dict[str, Any] = {
            "layout": self._layouts[found.schema, found.table],
            "ledger": self.ledger,
            "spool": self.path.parent,
            "on_misfit": self._on_misfit,
        }
        if periods is not None:
            return DeltaStagedHistory(relation, found, mapping, number, periods=periods, **options)
        layout = self._layouts[found.schema, found.table]
        made = DeltaStagedRows if layout.declared is None else DeltaStagedDocuments
        return made(relation, found, mapping, number, **options)

    def create(
        self, cursor: Any, relation: SourceRelation, name: tuple[str, str], *,
        periods: HistoryColumns | None = None, sid_column: str = "",
    ) -> None:  # fmt: skip
        """See `TableDatabase`. Raises SettingsError for names that cannot be in one table."""
        kinds, key = self.shape(cursor, relation, sid_column=sid_column)
        layout = self._layouts[name]
        for problem in wrong_names(relation.table, relation.names, layout):
            raise problem
        fields: list[Any] = [(each, arrow_type(kind)) for each, kind in kinds.items()]
        if layout.declared is not None:
            fields = [(each.name, each.type) for each in columns_of(layout.declared, key)]
        if periods is not None:
            fields += [(periods.start, AT), (periods.end, AT), (periods.deleted, pa.bool_())]
        if layout.kind == "log":
            own = pa.struct(
                [field for field in fields if field[0] in key and field[0] != sid_column]
            )
            is_lasting = relation.is_of_documents  # a document keeps its key
            types = {**COLUMNS, "_key_before": own if key and not is_lasting else None}
            fields += [(each, types[each]) for each in OF_LOG if types[each] is not None]
        beside: dict[str, Any] = (
            {BUCKET: pa.int32()} if layout.buckets and layout.kind != "log" else {}
        )
        beside |= {DAY: pa.date32()} if DAY in layout.partition_by and layout.kind == "log" else {}
        fields += beside.items()
        there = {each for each, _ in fields}
        parted = [each for each in (*layout.partition_by, BUCKET) if each in there]
        lake.create_table(layout, pa.schema(fields), parted)

    def alter(self, cursor: Any, target: str, *commands: sql.Composed, waits: bool = False) -> None:
        """See `TableDatabase`. Columns are added in a commit of their own; where they get another
        name or type, the table is written anew."""
        schema, _, table = target.partition(".")
        layout, new, changes = self._layouts[schema, table], {}, dict[str, ColumnChange]()
        for command in commands:
            text = command.as_string(None)
            if found := _ADD.fullmatch(text):
                new[_name(found[1])] = arrow_type(found[2])
            elif found := _RETYPE.fullmatch(text) or _RENAME.fullmatch(text):
                name, more = _name(found[1]), found.groupdict()
                change = changes.get(name, ColumnChange(name))
                changes[name] = change._replace(name=_name(more["new"])) if "new" in more else (
                    change._replace(kind=arrow_type(more["kind"]), is_emptied=bool(found[3]))
                )  # fmt: skip
            else:
                raise SettingsError(
                    f"{target} cannot be altered as its source was: {text}",
                    "delta.target-unaltered",
                    hint="remove the table at its location, then `penstock reload`",
                )  # fmt: skip
        lake.change_columns(layout, changes)
        lake.add_columns(layout, new)

    def fill(
        self, cursor: Any, found: Destination, name: str, value: str, only: Mapping[str, str]
    ) -> None:
        where = {each: LAST_AT if text == LAST else text for each, text in only.items()}
        lake.fill(self._layouts[found.schema, found.table], name, value, where)


def _name(quoted: str) -> str:
    return quoted.replace('""', '"')
