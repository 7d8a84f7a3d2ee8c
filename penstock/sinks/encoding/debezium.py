"""`layout: debezium`: the envelope of Debezium's PostgreSQL connector, as JSON without schemas.

For consumers that exist already. Where penstock knows less or otherwise than Debezium, see
docs/reference/messages.md.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import IMAGES
from penstock.model.version import __version__
from penstock.sinks.encoding.columns import BINARY, Column, Columns, Values
from penstock.sinks.encoding.dialect import Dialect
from penstock.sinks.encoding.kinds import RowKinds, is_document
from penstock.sinks.encoding.layout import Layout, milliseconds, numbered, of_milliseconds
from penstock.sinks.encoding.pieces import Pick, Piece, PlacePiece, RawPiece

# What Debezium sends for a column that the source did not send.
_UNAVAILABLE = "__debezium_unavailable_value"
_LETTERS = {
    "INSERT": "c", "UPDATE": "u", "REPLACE": "u", "DELETE": "d", "READ": "r", "TRUNCATE": "t",
}  # fmt: skip
_OPERATIONS = {letter: name for name, letter in _LETTERS.items() if name != "REPLACE"}
_LSN = re.compile(r"([0-9A-F]{8})/([0-9A-F]{8})")
# Written once for each distinct value: the column `NAME` numbers them, `NAMEs` are they.
_FEW = ("source_ms", "ms", "transaction", "lsn", "image")
_NULL = b"null"


class Debezium(Layout):
    """Several changes are an array of envelopes."""

    def columnar(self, dialect: Dialect, connector: str) -> "DebeziumColumns":
        """See Layout."""
        return DebeziumColumns(connector)

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        """See Layout."""
        return [_change(one) for one in (body if isinstance(body, list) else [body])]


class DebeziumColumns:
    """See `Columnar`."""

    extra_names = (
        *(each for name in _FEW for each in (f"_{name}", f"_{name}s")),
        "_old",
        "_new",
        "_delta",
    )

    def __init__(self, connector: str) -> None:
        self._connector = connector

    def shared(self, values: Mapping[str, Any]) -> bytes:
        """See Columnar."""
        source = {
            "version": __version__,
            "connector": self._connector or _guessed(values),
            "name": values["backend"],
            "snapshot": "true" if values["operation"] == "READ" else "false",
            "db": values["database"],
            "schema": values["schema"] or "",
            "table": values["collection"] or "",
            "xmin": None,
            "relation_id": values["relation_id"],
        }
        operation = _LETTERS.get(values["operation"], "m")  # SUSPEND is a message, too
        return b'"op":"%b","source":%b,' % (operation.encode(), orjson.dumps(source)[:-1])

    def pieces(self, *, element: bool) -> tuple[Piece | bytes, ...]:
        """See Columnar."""
        return (
            b"{", Pick("kind", "fields"),
            b'"sequence":', PlacePiece("cursor", "ordinal", "json"),
            b',"ts_ms":', _few("source_ms"),
            b',"txId":', _few("transaction"),
            b',"lsn":', _few("lsn"),
            b'},"before":', RawPiece("_old", null=_NULL),
            b",", _few("image"), RawPiece("_new", null=_NULL), RawPiece("_delta"),
            b',"ts_ms":', _few("ms"), b',"transaction":null}',
        )  # fmt: skip

    def extras(
        self, columns: Columns, row_kinds: RowKinds, images: Mapping[str, Column]
    ) -> dict[str, Any]:
        """See Columnar."""
        operations = [kind.values["operation"] for kind in row_kinds.kinds]
        keys = [b'"after":' if one in _LETTERS else b'"message":' for one in operations]
        deleted = np.array([one == "DELETE" for one in operations])[row_kinds.numbers]
        found = {
            "source_ms": numbered(columns["committed_at"].cast(pa.int64()), milliseconds),
            "ms": numbered(columns["captured_at"].cast(pa.int64()), milliseconds),
            "transaction": numbered(columns["transaction"], _number),
            "lsn": numbered(columns["cursor"], _lsn),
            "image": (row_kinds.numbers, Values(keys)),
        }
        image = images or {name: columns[name] for name in IMAGES}
        extras: dict[str, Any] = {}
        for name, (numbers, values) in found.items():
            extras |= {f"_{name}": numbers, f"_{name}s": values}
        return {
            **extras,
            "_old": _old(image["before"], image["key"], deleted),
            "_new": _new(image["after"], columns["unchanged"]),
            "_delta": _described(image["delta"]),
        }


def _guessed(values: Mapping[str, Any]) -> str:
    """The connector, for a sink that was not given it."""
    if not is_document(values):
        return "postgresql"
    return "mongodb" if values["database"] else "unknown"


def _few(name: str) -> Pick:
    return Pick(f"_{name}", f"_{name}s")


def _number(text: str) -> bytes:
    return text.encode() if text.isdecimal() and text.isascii() else orjson.dumps(text)


def _lsn(cursor: str) -> bytes:
    match = _LSN.fullmatch(cursor)
    return b"%d" % (int(match[1], 16) << 32 | int(match[2], 16)) if match else _NULL


def _old(before: Column, key: Column, deleted: "np.ndarray[Any, np.dtype[np.bool_]]") -> Column:
    """Of a deleted row Debezium sends the key, where there is no more."""
    before, key = before.cast(BINARY), key.cast(BINARY)
    if before.null_count and deleted.any():
        return pc.if_else(pa.array(deleted, pa.bool_()), pc.coalesce(before, key), before)
    return before


def _new(after: Column, unchanged: Column) -> Column:
    after = after.cast(BINARY)
    if not len(unchanged.flatten()):
        return after
    rows = zip(after.to_pylist(), unchanged.to_pylist(), strict=True)
    return pa.array([_completed(image, names) for image, names in rows], BINARY)


def _described(delta: Column) -> Column:
    """The field of Debezium's MongoDB connector, which envelopes of other sources lack."""
    delta = delta.cast(BINARY)
    if delta.null_count == len(delta):
        return delta
    return pa.array([None if one is None else _description(one) for one in delta.to_pylist()])


def _description(delta: bytes) -> bytes:
    found = orjson.loads(delta)
    truncated = [
        {"field": one["field"], "size": one["new_size"]} for one in found.get("truncated") or ()
    ]
    description = {
        "removedFields": found.get("removed") or None,
        "updatedFields": orjson.dumps(found.get("updated") or {}).decode(),
        "truncatedArrays": truncated or None,
    }
    return b',"updateDescription":' + orjson.dumps(description)


def _completed(image: bytes | None, names: list[str] | None) -> bytes | None:
    """An image with a placeholder for each column that was not sent."""
    if image is None or not names:
        return image
    added = orjson.dumps(dict.fromkeys(names, _UNAVAILABLE))
    return added if image == b"{}" else image[:-1] + b"," + added[1:]


def _change(body: Mapping[str, Any]) -> Mapping[str, Any]:
    source, data = body["source"], body["message"] if body["op"] == "m" else body["after"]
    unchanged = [name for name, value in (data or {}).items() if value == _UNAVAILABLE]
    transaction = source["txId"]
    return {
        "event_id": f"{source['name']}:{source['sequence']}",
        "backend": source["name"],
        "tenant": None,
        "database": source["db"],
        "schema": source["schema"] or None,
        "collection": source["table"] or None,
        "operation": _OPERATIONS.get(body["op"], "MESSAGE"),
        "relation_id": source.get("relation_id"),
        "schema_version": None,
        "document_id": None,
        "key": None,
        "data": data and {name: data[name] for name in data if name not in unchanged},
        "before": body["before"],
        "unchanged": unchanged,
        "position": source["sequence"],
        "transaction": None if transaction is None else str(transaction),
        "committed_at": of_milliseconds(source["ts_ms"]),
        "captured_at": of_milliseconds(body["ts_ms"]),
        "delta": _delta(body.get("updateDescription")),
    }


def _delta(description: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if description is None:
        return None
    truncated = description["truncatedArrays"] or ()
    return {
        "updated": orjson.loads(description["updatedFields"]),
        "removed": description["removedFields"] or [],
        "truncated": [{"field": one["field"], "new_size": one["size"]} for one in truncated],
    }


PLUGIN = Debezium()
