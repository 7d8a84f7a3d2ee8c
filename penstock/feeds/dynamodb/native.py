"""Pages of DynamoDB Streams -> records of the iterator, with Python's values: Decimal, bytes, set.

Pure. A record that cannot be read has the event type `error`, unless `on_error` is `stop`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.feeds import NativeRecord, RecordReader
from penstock.model.change import OnError
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.wire.dynamodb.decoder import PageContext, StreamRecord, Unread, each_record, place_of
from penstock.wire.dynamodb.values import AttributeValues

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EVENTS = {
    "INSERT": ("insert", "INSERT"),
    "MODIFY": ("modify", "UPDATE"),
    "REMOVE": ("remove", "DELETE"),
}
_item = AttributeValues("python").item


def native_reader(on_error: OnError) -> RecordReader:
    """What makes records of a page; raises Malformed."""

    def read(page: Page) -> Iterator[NativeRecord]:
        # What a record's `meta` has for any feed, and DynamoDB does not know, is None.
        table = PageContext.of(page).table
        same = {"partition": page.partition, "database": None, "namespace": None, "table": table,
                "transaction": None}  # fmt: skip
        return (_native(each, same, on_error) for each in each_record(page))

    return read


def _native(record: StreamRecord | Unread, same: dict[str, Any], on_error: OnError) -> NativeRecord:
    place, created = place_of(record.sequence), (record.created_at - _EPOCH) // _MICROSECOND
    if isinstance(record, Unread):
        raw, error = record.raw, record.error
    else:
        try:
            return NativeRecord(place, created, _readable(record, same))
        except Malformed as malformed:
            raw, error = b"", malformed.message
    if on_error == "stop":
        raise Malformed(
            f"the record {record.sequence} of {same['table']} cannot be read: {error}",
            "dynamodb",
            hint='on_error="dead-letter" hands it out with the event type `error`',
        )
    meta = {
        "created_at": record.created_at,
        "event": {"id": None, "type": "error", "version": None},
        "sequence_number": record.sequence,
        "operation": "ERROR",
        "delta": None,
        **same,
        "unchanged": [],
    }
    new = {"reason": "not-readable", "error": error, "raw": raw}
    return NativeRecord(place, created, {"key": None, "new": new, "old": None, "meta": meta})


def _readable(record: StreamRecord, same: dict[str, Any]) -> dict[str, Any]:
    known = _EVENTS.get(record.event)
    if known is None:
        raise Malformed(f"{record.event[:20]!r} is not an event of DynamoDB Streams", "dynamodb")
    return {
        "key": _item(record.keys),
        "new": None if record.new is None else _item(record.new),
        "old": None if record.old is None else _item(record.old),
        "meta": {
            "created_at": record.created_at,
            "event": {"id": record.event_id, "type": known[0], "version": record.version},
            "sequence_number": record.sequence,
            "operation": known[1],
            "delta": {"expired": True} if record.expired else None,
            **same,
            "unchanged": [],
        },
    }
