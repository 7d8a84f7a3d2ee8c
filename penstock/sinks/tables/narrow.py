"""Columns of a target that would not hold what their source has: digits would be lost in silence,
or labels of an enum refused. What is only too large is refused as well, but each value may fit."""

from collections.abc import Iterator
from typing import Any

from psycopg import sql

from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableSchema
from penstock.tables.database import TableDatabase
from penstock.tables.drift import rounds
from penstock.tables.staged import StagedRows


def narrower(
    cursor: Any, database: TableDatabase, staged: StagedRows, schema: TableSchema
) -> Iterator[SettingsError]:
    """What is wrong with each such column; `set` says itself what becomes of its values."""
    found, columns = staged.destination, staged.relation.columns
    target = sql.Identifier(found.schema, found.table).as_string(None)
    shapes = (schema.state or {}).get("shapes") or {}
    pairs = zip(columns[len(columns) - len(schema.columns) :], schema.columns, strict=True)
    for column, own in () if staged.mapping.computed else pairs:
        if column.name not in staged.written:
            continue
        kind, wide = found.columns[column.name], database.type_at(cursor, column)
        if rounds(wide, kind):
            name = sql.Identifier(column.name).as_string(None)
            yield SettingsError(
                f"{found.schema}.{found.table} would round {column.name}: it is {kind} there, and"
                f" {wide} at the source",
                "tables.target-rounds",
                hint=f"ALTER TABLE {target} ALTER COLUMN {name} TYPE {wide}; or `set` in the map",
            )
        labels = (shapes.get(str(own.get("type"))) or {}).get("labels") or {}
        known = database.labels(cursor, kind) if labels else ()
        if known and (missing := sorted({*labels.values()} - {*known})):
            alter = " ".join(
                f"ALTER TYPE {kind} ADD VALUE {sql.Literal(each).as_string(None)};"
                for each in missing
            )
            yield SettingsError(
                f"{found.schema}.{found.table} does not know {', '.join(missing)} of {column.name}",
                "tables.label-missing",
                hint=alter,
            )
