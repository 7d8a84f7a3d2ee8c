"""Pages of DynamoDB Streams -> changes. Pure."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.change import Images, OnError, schema
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.wire.dynamodb.records import (
    PageContext,
    RecordHead,
    StreamRecord,
    place_of,
    read_records,
)
from penstock.wire.dynamodb.values import plain_values

_OPERATIONS = {"INSERT": "INSERT", "MODIFY": "UPDATE", "REMOVE": "DELETE"}
_UNCHANGED: tuple[str, ...] = ()
Row = dict[str, Any]


class DynamodbDecoder:
    """The implementation of `page.Decoder`. `tenant` is `none` or `field:NAME`.

    `before` is the old image and `after` the new one, as far as the stream's view type has them.
    The event id is `backend:partition:sequence number`.
    """

    def __init__(self, backend: str, tenant: str, images: Images, on_error: OnError) -> None:
        self._given = backend, tenant, images, on_error
        self._backend, self._images, self._on_error = backend, images, on_error
        self._tenant = tenant.removeprefix("field:") if tenant.startswith("field:") else None
        self._item = plain_values(images).item
        self._pack: Callable[[Any], Any] = _json if images == "json" else ormsgpack.packb
        self._expired = self._pack({"expired": True})
        self.unknown_types: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return DynamodbDecoder, self._given

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`."""
        context = PageContext.of(page)
        rows = [self._row(each, context) for each in read_records(page)]
        if not rows:
            return []
        shared = {"backend": self._backend, "partition": page.partition, "ordinal": 0,
                  "unchanged": _UNCHANGED, "captured_at": page.captured_at}  # fmt: skip
        prefix = f"{self._backend}:{page.partition}:"
        columns: list[pa.Array[Any]] = []
        for field in schema(self._images):
            name = field.name
            if name in shared:
                column = [shared[name]] * len(rows)
            elif name == "event_id":
                column = [prefix + row["sequence"] for row in rows]
            else:
                column = [row.get(name) for row in rows]
            columns.append(pa.array(column, field.type))
        return [pa.RecordBatch.from_arrays(columns, schema=schema(self._images))]

    def _row(
        self, record: StreamRecord | tuple[RecordHead, bytes, str], context: PageContext
    ) -> Row:
        if not isinstance(record, StreamRecord):
            head, raw, error = record
            return self._unreadable(head.sequence, raw, error, context)
        try:
            return self._change(record, context)
        except Malformed as error:
            return self._unreadable(record.sequence, _raw(record), error.message, context)

    def _change(self, record: StreamRecord, context: PageContext) -> Row:
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
            "cursor": place_of(record.sequence).cursor,
            "sequence": record.sequence,
            "operation": operation,
            "tenant": None if self._tenant is None else self._tenant_of(keys, old, new),
            "collection": context.table,
            "document_id": document_id(keys),
            "key": pack(keys),
            "before": None if old is None else pack(old),
            "after": None if new is None else pack(new),
            "delta": self._expired if record.expired else None,
            "committed_at": record.created_at,
        }

    def _tenant_of(self, *images: dict[str, Any] | None) -> str | None:
        """Of the last image that has it."""
        value = None
        for image in images:
            if image is not None and self._tenant in image:
                value = image[self._tenant]
        return value if value is None or isinstance(value, str) else _text(value)

    def _unreadable(self, sequence: str, raw: bytes, error: str, context: PageContext) -> Row:
        if self._on_error == "stop":
            raise Malformed(f"the record {sequence} of {context.table} cannot be read: {error}")
        alone, whole = PageContext(context.table).pack(), b'{"Records":[' + raw + b"]}"
        in_text = self._images == "json"
        image = {
            "reason": "not-readable",
            "error": error,
            "raw": base64.b64encode(whole).decode() if in_text else whole,
            "context": base64.b64encode(alone).decode() if in_text else alone,
        }
        return {
            "cursor": place_of(sequence).cursor,
            "sequence": sequence,
            "operation": "ERROR",
            "collection": context.table,
            "after": self._pack(image),
        }


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _text(value: Any) -> str:
    """A value as text: bytes are base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return orjson.dumps(value, default=_text).decode()


def document_id(keys: dict[str, Any]) -> str:
    """The key's text, or for two keys a JSON array in the order of their names."""
    plain = [base64.b64encode(each).decode() if isinstance(each, bytes) else each
             for each in keys.values()]  # fmt: skip
    if len(plain) == 1:
        return plain[0] if isinstance(plain[0], str) else _text(plain[0])
    return _json(plain)


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
