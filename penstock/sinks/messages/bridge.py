"""`layout: bridge`: the event of the small CDC bridges between PostgreSQL and NATS.

For consumers that exist already. docs/reference/messages.md has every field.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.messages.dialect import Dialect
from penstock.sinks.messages.kinds import RowKinds
from penstock.sinks.messages.layout import FIELDS, Layout, PenstockColumns
from penstock.sinks.messages.pieces import Pick, Piece, RawPiece, TextPiece
from penstock.sinks.rows.columns import Column, Columns

_SHARED = {"table": "collection", "operation": "operation", "relation_id": "relation_id"}
_COUNT = len(_SHARED) + 5
_LSN = re.compile(r".*?([0-9A-F]{8})/([0-9A-F]{8})")
_DASH = pa.scalar("-", pa.string())


class Bridge(Layout):
    """`data` has all columns, of a deleted row those of its replica identity, and null elsewhere.
    `before`, which the bridge lacks, has the key that a row had before. Several changes are an
    array of events."""

    encodings = ("msgpack", "json")
    values = "bridge"

    def columnar(self, dialect: Dialect) -> PenstockColumns:
        return BridgeColumns(dialect)

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        return [_change(one) for one in (body if isinstance(body, list) else [body])]


class BridgeColumns(PenstockColumns):
    """See PenstockColumns."""

    extras = ("subject", "msg_id", "lsn", "image")

    def shared(self, values: Mapping[str, Any]) -> bytes:
        say = self._dialect
        pairs = [say.name(name) + say.value(values[field]) for name, field in _SHARED.items()]
        return b"".join(pairs)

    def pieces(self, *, element: bool) -> tuple[Piece | bytes, ...]:
        say = self._dialect
        texts: list[Piece | bytes] = []
        for name in ("msg_id", "lsn"):
            texts += [say.name(name), TextPiece(name, say.form, say.nil)]
        return (
            say.start(_COUNT), say.name("subject", first=True),
            TextPiece("subject", say.form, say.nil), Pick("kind", "fields"), *texts,
            say.name("data"), RawPiece("image", null=say.nil),
            say.name("before"), RawPiece("before", null=say.nil), say.end,
        )  # fmt: skip

    def made(self, columns: Columns, row_kinds: RowKinds, subjects: Column) -> dict[str, Any]:
        cursors = columns["cursor"].dictionary_encode()
        numbers, lsns = zip(*map(_lsn, cursors.dictionary.to_pylist()), strict=True)
        names = [
            f"{kind.values['collection'] or ''}-{kind.values['operation'].lower()}"
            for kind in row_kinds.set.kinds
        ]
        text, after = pa.string(), columns["after"]
        join: Any = pc.binary_join_element_wise
        return {
            "subject": subjects,
            # More than the bridge's, which is of several rows of one transaction.
            "msg_id": join(
                pa.array(numbers, text).take(cursors.indices),
                pa.array(names, text).take(pa.array(row_kinds.numbers, pa.int32())),
                columns["ordinal"].cast(text), _DASH,
            ),
            "lsn": pa.array(lsns, text).take(cursors.indices),
            "image": pc.coalesce(after, columns["before"]) if after.null_count else after,
        }  # fmt: skip


@lru_cache(1000)
def _lsn(cursor: str) -> tuple[str, str]:
    """The LSN of a cursor as a number in hex, and as PostgreSQL writes it."""
    if (match := _LSN.fullmatch(cursor)) is None:
        return cursor, cursor
    high, low = int(match[1], 16), int(match[2], 16)
    return f"{high << 32 | low:x}", f"{high:X}/{low:X}"


def _change(event: Mapping[str, Any]) -> Mapping[str, Any]:
    data, is_gone = event["data"], event["operation"] == "DELETE"
    return {
        **dict.fromkeys(FIELDS),
        "event_id": event["msg_id"],
        "backend": "",  # which it is, an event does not say
        "collection": event["table"],
        "operation": event["operation"],
        "relation_id": event["relation_id"],
        "key": {name: data[name] for name in data if data[name] is not None} if is_gone else None,
        "data": None if is_gone else data,
        "before": event["before"],
        "unchanged": [],
    }


PLUGIN = Bridge()
