"""Documents as rows of a replica: the values of the key as JSON text, and the whole document. Pure.

A document's own columns are unknown until it comes. Keys are those of changes, which keep every
type: `"1"` and `1` are two keys.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.consumer.mirror.target_table import TargetTable
from penstock.model.errors import SettingsError
from penstock.model.images import base64_of
from penstock.tables.fold import OF_ROWS

Row = dict[str, Any]
_INT64 = 2.0**63


def chunk_rows(table: TargetTable, chunk: Mapping[str, Any]) -> list[Row]:
    pairs = zip(chunk["keys"], chunk["data"], strict=True)
    return [_row(table, key, document) for key, document in pairs]


def row_change(table: TargetTable, change: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A change as one of the table's rows; None if they stay as they are. Raises SettingsError."""
    operation, document = change["operation"], change["data"]
    if operation == "RENAME":  # of this collection: its documents are elsewhere
        return {"operation": "DROP"}
    if operation not in OF_ROWS:
        return change
    if change["key"] is None:
        raise SettingsError(
            "a message has no key, which a replica of documents needs",
            "consumer",
            hint="use sink.layout: penstock, or cloudevents",
        )
    if operation != "DELETE" and document is None:
        return None  # gone when the server looked it up: its deletion follows
    row = _row(table, change["key"], document)
    key = {name: row[name] for name in table.key}
    return {"operation": operation, "key": key, "before": None, "data": row, "unchanged": ()}


def is_renamed_to(table: TargetTable, change: Mapping[str, Any]) -> bool:
    """Whether another collection got the name of this one: its documents have no changes."""
    if change["operation"] != "RENAME":
        return False
    to = (change["data"] or {}).get("to") or {}
    return (to.get("database"), to.get("collection")) == (table.schema, table.table)


def _row(table: TargetTable, key: Mapping[str, Any], document: Any) -> Row:
    # Of a sharded collection a key has more than names the document.
    return {**{name: _text(key[name]) for name in table.key}, table.document: document}


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and -_INT64 <= value < 2 * _INT64:
        value = int(value)  # MongoDB compares them equal
    return orjson.dumps(value, default=base64_of).decode()
