"""Items of a table as pages of its stream: what a Scan reads goes through the decoder of changes,
each item as the record of its insertion. Pure.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.dynamodb.records import PageContext

# Before every record of any shard.
FIRST = Place("0" * 40, 0)
_PARTITION = PartitionId("scan")


class _Consumed(msgspec.Struct):
    CapacityUnits: float = 0.0


class ScanAnswer(msgspec.Struct):
    """An answer of Scan, its items unread. `last` is None at the end of a segment."""

    items: list[msgspec.Raw] = msgspec.field(name="Items", default_factory=list)
    last: dict[str, Any] | None = msgspec.field(name="LastEvaluatedKey", default=None)
    consumed: _Consumed = msgspec.field(name="ConsumedCapacity", default_factory=_Consumed)


_answers = msgspec.json.Decoder(ScanAnswer)
_items = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_scan(body: bytes) -> ScanAnswer:
    """Raises Malformed."""
    try:
        return _answers.decode(body)
    except msgspec.MsgspecError as error:
        raise Malformed(f"an answer of Scan is not readable: {error}") from error


def page_of(items: Sequence[msgspec.Raw], table: str, keys: Sequence[str], taken_at: int) -> Page:
    """A page of these items, read at `taken_at` (microseconds since 1970). Raises Malformed."""
    records = [_record(bytes(item), keys, taken_at) for item in items]
    return Page(
        partition=_PARTITION,
        first=FIRST,
        last=FIRST,
        count=len(records),
        captured_at=taken_at,
        context=PageContext(table).pack(),
        payload=b'{"Records":[' + b",".join(records) + b"]}",
    )


def _record(item: bytes, keys: Sequence[str], taken_at: int) -> bytes:
    try:
        found = _items.decode(item)
        key = msgspec.json.encode({name: found[name] for name in keys})
    except (msgspec.MsgspecError, KeyError) as error:
        raise Malformed("an item of a table is not readable, or has no key") from error
    return (
        b'{"eventName":"INSERT","dynamodb":{"SequenceNumber":"0",'
        b'"ApproximateCreationDateTime":%d,"Keys":%b,"NewImage":%b}}'
        % (taken_at // 1_000_000, key, item)
    )
