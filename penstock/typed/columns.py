"""Columns of typed rows that are not the table's own. A schema has those of them that it names.

| column | type | what |
|---|---|---|
| `_operation` | string | what happened: see `model.change.Operation`, without MESSAGE |
| `_sequence` | string | sorts as the changes of one key were made |
| `_committed_at` | timestamp | when |
| `_unsent` | array of string | columns that the source did not send: their null is no value |
| `_key_before` | struct | the old key, where a change of PostgreSQL changed it |
| `_rest` | map of strings | what has no column, and what did not fit, as text |
| `_corrupt` | string | the whole document as JSON text, where something of it did not fit |
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import Operation
from penstock.model.errors import SettingsError
from penstock.model.position import Place
from penstock.model.table_schema import TableSchema
from penstock.typed.lines import TableColumns

_TEXT = pa.string()
# Their types; that of `_key_before` is the table's own.
COLUMNS: Mapping[str, Any] = {
    "_operation": _TEXT,
    "_sequence": _TEXT,
    "_committed_at": pa.timestamp("us", tz="UTC"),
    "_unsent": pa.list_(_TEXT),
    "_key_before": None,
    "_rest": pa.map_(_TEXT, _TEXT),
    "_corrupt": _TEXT,
}

# What tells of a row; a table may have no column of these names.
META = tuple(COLUMNS)

_ORDINAL = 10  # digits
_READ = pa.scalar(Operation.READ.value, _TEXT)


def schema_of(table: TableSchema, declared: pa.Schema | None = None) -> pa.Schema:
    """Of the rows of a table with lines: its own columns, and what tells of a row; or those that a
    user has `declared`. Raises SettingsError where a name is taken, and for a declared column that
    the table has not."""
    if declared is not None:
        TableColumns.of(table, pa.schema([each for each in declared if each.name not in META]))
        return declared
    own = TableColumns.of(table).schema
    if taken := {*own.names} & {*META}:
        raise SettingsError(
            f"{table.schema}.{table.table} has a column {min(taken)}, which is the name of one of"
            " ours",
            "spark.column-taken",
            hint="give a schema without the one or the other",
        )
    key = [field for field, one in zip(own, table.columns, strict=True) if one["key"]]
    types = {**COLUMNS, "_key_before": pa.struct(key) if key else None}
    beside = [pa.field(name, kind) for name, kind in types.items() if kind and name != "_corrupt"]
    return pa.schema([*own, *beside])


def verify_beside(schema: pa.Schema) -> None:
    """Raises SettingsError for a column of a user's schema that no row can have."""
    for field in schema:
        wanted = COLUMNS.get(field.name)
        if not field.nullable or (wanted is not None and field.type != wanted):
            of = "may not be null" if not field.nullable else f"has the type {field.type}"
            raise SettingsError(
                f"the column {field.name} of the schema {of}",
                "typed",
                hint=f"declare it as {wanted}" if wanted else "changes may lack any value",
            )


def sequence(place: Place) -> str:
    """Text that sorts as the changes of one source do."""
    return f"{place.cursor}:{place.ordinal:0{_ORDINAL}}"


def row_sequence(position: str) -> str:
    """Of a row of a snapshot at this place: before that of the first change after it."""
    return Place.parse(position).cursor


def sequences(batch: pa.RecordBatch) -> "pa.Array[Any]":
    """The same of a batch of changes and rows of snapshots."""
    compute: Any = pc
    cursors, is_row = batch.column("cursor"), compute.equal(batch.column("operation"), _READ)
    ordinals = compute.utf8_lpad(batch.column("ordinal").cast(_TEXT), _ORDINAL, "0")
    places = compute.binary_join_element_wise(cursors, ordinals, ":")
    found: pa.Array[Any] = compute.if_else(is_row, cursors, places)
    return found
