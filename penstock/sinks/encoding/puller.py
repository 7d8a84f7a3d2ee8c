"""`layout: puller`: the flat event of a fan-out service between MongoDB and its consumers.

For consumers that exist already. docs/reference/messages.md has every field.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.encoding.columns import BINARY, Column, Columns, Numbers, Values, hashes_of
from penstock.sinks.encoding.destinations import HASHES
from penstock.sinks.encoding.dialect import Dialect
from penstock.sinks.encoding.kinds import RowKinds, is_document
from penstock.sinks.encoding.layout import (
    FIELDS,
    Layout,
    milliseconds,
    numbered,
    of_milliseconds,
)
from penstock.sinks.encoding.pieces import Pick, Piece, RawPiece, TextPiece

_NULL = b"null"
_EMPTY = pa.scalar("", pa.string())
_SLASH = pa.scalar("/", pa.string())
# A cluster time: seconds and a counter, perhaps after an era.
_TIME = re.compile(r".*?([0-9A-F]{8})/([0-9A-F]{8})")


class Puller(Layout):
    """Several changes are an array of events. What became of a collection or database is not
    published: no event of a puller says it."""

    omits = ("DROP", "RENAME", "DROP_DATABASE", "INVALIDATE")

    def columnar(self, dialect: Dialect, connector: str) -> "PullerColumns":
        """See Layout."""
        return PullerColumns(dialect)

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        """See Layout."""
        return [_change(one) for one in (body if isinstance(body, list) else [body])]


class PullerColumns:
    """See `Columnar`."""

    extra_names: tuple[str, ...] = (
        "_time", "_times", "_number", "_numbers", "_ms", "_mss", "_token", "_key", "_hash",
        "_hashes", "_document",
    )  # fmt: skip

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def shared(self, values: Mapping[str, Any]) -> bytes:
        """See Columnar."""
        given = {
            "tenant": values["tenant"],
            "collection": values["collection"],
            "type": "UPDATE" if values["operation"] == "REPLACE" else values["operation"],
        }
        return b"," + orjson.dumps(given)[1:-1]

    def pieces(self, *, element: bool) -> tuple[Piece | bytes, ...]:
        """See Columnar."""
        form, nil = self._dialect.form, self._dialect.nil
        return (
            b'{"event_id":', TextPiece("event_id", form, nil), Pick("kind", "fields"),
            b',"document_id":', TextPiece("document_id", form, nil),
            b',"full_document":', RawPiece("_document", null=nil),
            b',"cluster_time":', Pick("_time", "_times"),
            b',"txn_number":', Pick("_number", "_numbers"),
            b',"resume_token":', RawPiece("_token", null=nil),
            b',"timestamp":', Pick("_ms", "_mss"),
            b',"partition_key":', TextPiece("_key", form, nil),
            b',"partition_id":', Pick("_hash", "_hashes"), b"}",
        )  # fmt: skip

    def extras(
        self, columns: Columns, row_kinds: RowKinds, images: Mapping[str, Column]
    ) -> dict[str, Any]:
        """See Columnar."""
        documents = np.array([is_document(kind.values) for kind in row_kinds.kinds])
        times = _of_documents(numbered(columns["cursor"], _time), documents[row_kinds.numbers])
        ms = numbered(columns["committed_at"].cast(pa.int64()), milliseconds)
        transactions = numbered(columns["transaction"], _number)
        found = (
            *times, *transactions, *ms, _tokens(columns["mark"]), _keys(columns),
            hashes_of(columns["route"]), HASHES,
            (images["after"] if images else columns["after"]).cast(BINARY),
        )  # fmt: skip
        return dict(zip(self.extra_names, found, strict=True))


def _time(cursor: str) -> bytes:
    match = _TIME.fullmatch(cursor)
    return b'{"t":%d,"i":%d}' % (int(match[1], 16), int(match[2], 16)) if match else _NULL


def _of_documents(
    column: tuple[Numbers, Values], documents: "np.ndarray[Any, np.dtype[np.bool_]]"
) -> tuple[Numbers, Values]:
    """The values where a row is of a document database; elsewhere null."""
    numbers, values = column
    if documents.all():
        return column
    none = np.int32(len(values.values))
    return np.where(documents, numbers, none).astype(np.int32), Values([*values.values, _NULL])


def _number(transaction: str) -> bytes:
    """The number in `SESSION/NUMBER`."""
    number = transaction.rpartition("/")[2]
    return number.encode() if "/" in transaction and number.isdecimal() else _NULL


def _tokens(marks: Column) -> Column:
    if marks.null_count == len(marks):
        return marks.cast(BINARY)
    return pa.array([None if one is None else _token(one) for one in marks.to_pylist()], BINARY)


def _token(mark: str) -> bytes | None:
    found = orjson.loads(mark)
    token = found.get("token") if isinstance(found, dict) else None
    return None if token is None else orjson.dumps(token)


def _keys(columns: Columns) -> Column:
    """What the hash partition is the hash of."""
    parts = columns["collection"].fill_null(""), _SLASH, columns["document_id"]
    joined: Any = pc.binary_join_element_wise(*parts, _EMPTY)
    return joined.cast(BINARY)


def _change(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        **dict.fromkeys(FIELDS),
        "event_id": event["event_id"],
        "backend": event["event_id"].partition(":")[0],
        "tenant": event["tenant"],
        "collection": event["collection"],
        "operation": event["type"],
        "document_id": event["document_id"],
        "data": event["full_document"],
        "unchanged": [],
        "committed_at": of_milliseconds(event["timestamp"]),
    }


PLUGIN = Puller()
