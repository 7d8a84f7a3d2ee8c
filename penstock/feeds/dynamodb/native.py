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
from penstock.wire.dynamodb.records import (
    PageContext,
    RecordHead,
    StreamRecord,
    each_record,
    place_of,
)
from penstock.wire.dynamodb.values import python_values

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EVENTS = {
    "INSERT": ("insert", "INSERT"),
    "MODIFY": ("modify", "UPDATE"),
    "REMOVE": ("remove", "DELETE"),
}
_item = python_values().item


def native_reader(on_error: OnError) -> RecordReader:
    """What makes records of a page; raises Malformed."""

    def read(page: Page) -> Iterator[NativeRecord]:
        return map(_PageReader(page, on_error).read, each_record(page))

    return read


class _PageReader:
    """Makes the records of one page."""

    def __init__(self, page: Page, on_error: OnError) -> None:
        self._table = PageContext.of(page).table
        self._partition = page.partition
        self._on_error = on_error

    def read(self, record: StreamRecord | tuple[RecordHead, bytes, str]) -> NativeRecord:
        if not isinstance(record, StreamRecord):
            head, raw, error = record
            created = datetime.fromtimestamp(head.created, UTC)
            return self._unreadable(head.sequence, created, error, raw)
        try:
            return self._record(record)
        except Malformed as error:
            return self._unreadable(record.sequence, record.created_at, error.message)

    def _record(self, record: StreamRecord) -> NativeRecord:
        known = _EVENTS.get(record.event)
        if known is None:
            raise Malformed(f"{record.event[:20]!r} is not an event of DynamoDB Streams")
        event, operation = known
        meta = {
            "created_at": record.created_at,
            "event": {"id": record.event_id, "type": event, "version": record.version},
            "sequence_number": record.sequence,
            "operation": operation,
            "delta": {"expired": True} if record.expired else None,
        }
        new = None if record.new is None else _item(record.new)
        old = None if record.old is None else _item(record.old)
        return self._made(_item(record.keys), new, old, meta)

    def _unreadable(
        self, sequence: str, created: datetime, error: str, raw: bytes = b""
    ) -> NativeRecord:
        if self._on_error == "stop":
            raise Malformed(
                f"the record {sequence} of {self._table} cannot be read: {error}",
                hint='on_error="dead-letter" hands it out with the event type `error`',
            )
        meta = {
            "created_at": created,
            "event": {"id": None, "type": "error", "version": None},
            "sequence_number": sequence,
            "operation": "ERROR",
            "delta": None,
        }
        return self._made(None, {"reason": "not-readable", "error": error, "raw": raw}, None, meta)

    def _made(self, key: Any, new: Any, old: Any, meta: dict[str, Any]) -> NativeRecord:
        """With what a record's `meta` has for any feed, and DynamoDB does not know."""
        meta |= {
            "partition": self._partition,
            "database": None,
            "namespace": None,
            "table": self._table,
            "transaction": None,
            "unchanged": [],
        }
        created = (meta["created_at"] - _EPOCH) // _MICROSECOND
        record = {"key": key, "new": new, "old": old, "meta": meta}
        return NativeRecord(place_of(meta["sequence_number"]), created, record)
