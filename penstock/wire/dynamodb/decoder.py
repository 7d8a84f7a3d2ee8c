"""Pages of DynamoDB Streams -> changes. Pure."""

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.wire.dynamodb.records import (
    PageContext,
    StreamRecord,
    Unread,
    place_of,
    read_records,
)
from penstock.wire.dynamodb.values import AttributeValues
from penstock.wire.row_decoder import Row, RowDecoder, as_json, as_text

_OPERATIONS = {"INSERT": "INSERT", "MODIFY": "UPDATE", "REMOVE": "DELETE"}


class DynamodbDecoder(RowDecoder):
    """The implementation of `page.Decoder`.

    `before` is the old image and `after` the new one, as far as the stream's view type has them.
    The event id is `backend:partition:sequence number`.
    """

    def __init__(self, backend: str, tenant: str, images: Images, on_error: OnError) -> None:
        super().__init__(backend, tenant, images, on_error)
        self._item = AttributeValues(images).item
        self._expired = self._pack({"expired": True})

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        table = PageContext.of(page).table
        rows = [self._row(each, table) for each in read_records(page)]
        return self._batches(page, rows, ordinal=0, collection=table)

    def _row(self, record: StreamRecord | Unread, table: str) -> Row:
        sequence = record.sequence
        row = {"cursor": place_of(sequence).cursor, "event_id": sequence}
        if isinstance(record, Unread):
            raw, error = record.raw, record.error
        else:
            try:
                return row | self._change(record)
            except Malformed as malformed:
                raw, error = _raw(record), malformed.message
        what = f"the record {sequence} of {table}"
        whole = b'{"Records":[' + raw + b"]}"
        return row | self._unreadable(what, error, whole, PageContext(table).pack())

    def _change(self, record: StreamRecord) -> Row:
        operation = _OPERATIONS.get(record.event)
        if operation is None:
            raise Malformed(f"{record.event[:20]!r} is not an event of DynamoDB Streams")
        item, pack = self._item, self._pack
        keys = item(record.keys)
        if len(keys) > 1:
            keys = dict(sorted(keys.items()))
        old = None if record.old is None else item(record.old)
        new = None if record.new is None else item(record.new)
        return {
            "operation": operation,
            "tenant": self._tenant_of(keys, old, new),
            "document_id": document_id(keys),
            "key": pack(keys),
            "before": None if old is None else pack(old),
            "after": None if new is None else pack(new),
            "delta": self._expired if record.expired else None,
            "committed_at": record.created_at,
        }


def document_id(keys: dict[str, Any]) -> str:
    """The key's text, or for two keys a JSON array in the order of their names."""
    plain = [as_text(each) if isinstance(each, bytes) else each for each in keys.values()]
    if len(plain) == 1:
        return plain[0] if isinstance(plain[0], str) else as_text(plain[0])
    return as_json(plain)


def _raw(record: StreamRecord) -> bytes:
    """A record whose values cannot be read, as JSON again."""
    images = {"NewImage": record.new, "OldImage": record.old}
    fields = {
        "SequenceNumber": record.sequence,
        "ApproximateCreationDateTime": record.created_at.timestamp(),
        "Keys": record.keys,
        **{name: image for name, image in images.items() if image is not None},
    }
    known = {"eventName": record.event, "eventID": record.event_id, "dynamodb": fields}
    return orjson.dumps(known)
