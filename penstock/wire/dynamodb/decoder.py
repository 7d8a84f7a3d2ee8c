"""Pages of DynamoDB Streams -> records -> changes. Pure.

A page's payload is the body of a GetRecords answer, untouched. Its context is JSON: `{"table":
name, "skip": number}`; the first `skip` records are not part of it.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson
import pyarrow as pa

from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import Place
from penstock.wire.dynamodb.values import AttributeValues, Item
from penstock.wire.row_decoder import Row, RowDecoder, as_json, as_text

_DIGITS = 40
_SHORTEST = 21
_LATEST = 253_402_300_799  # the last second that a datetime has, in the year 9999
_TIME_TO_LIVE = ("Service", "dynamodb.amazonaws.com")


class PageContext(msgspec.Struct, frozen=True):
    """What a page's context says."""

    table: str
    skip: int = 0

    def pack(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def of(cls, page: Page) -> "PageContext":
        """Raises Malformed."""
        try:
            return _context.decode(page.context)
        except msgspec.MsgspecError as error:
            raise Malformed("the context of a page of DynamoDB is not readable", "wire") from error


class _HeadFields(msgspec.Struct):
    SequenceNumber: str
    ApproximateCreationDateTime: float = 0.0


class RecordHead(msgspec.Struct):
    """A record without its images."""

    dynamodb: _HeadFields

    @property
    def sequence(self) -> str:
        return self.dynamodb.SequenceNumber

    @property
    def created(self) -> float:
        """Seconds since 1970; 0 where the record has no time that a datetime can be."""
        created = self.dynamodb.ApproximateCreationDateTime
        return created if 0 <= created <= _LATEST else 0.0

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(self.created, UTC)


class Answer(msgspec.Struct):
    """A GetRecords answer, its images unread. `next` is None at the end of a closed shard."""

    records: list[RecordHead] = msgspec.field(name="Records", default_factory=list)
    next: str | None = msgspec.field(name="NextShardIterator", default=None)


class _Fields(_HeadFields, kw_only=True):
    ApproximateCreationDateTime: Annotated[float, msgspec.Meta(ge=0, le=_LATEST)] = 0.0
    Keys: dict[str, Any]
    NewImage: dict[str, Any] | None = None
    OldImage: dict[str, Any] | None = None


class _Identity(msgspec.Struct):
    Type: str = ""
    PrincipalId: str = ""


class StreamRecord(RecordHead, kw_only=True):
    """One record; images are typed values. `event` is INSERT, MODIFY or REMOVE."""

    dynamodb: _Fields
    event: str = msgspec.field(name="eventName")
    event_id: str = msgspec.field(name="eventID", default="")
    version: str = msgspec.field(name="eventVersion", default="")
    identity: _Identity | None = msgspec.field(name="userIdentity", default=None)

    @property
    def keys(self) -> Item:
        return self.dynamodb.Keys

    @property
    def new(self) -> Item | None:
        return self.dynamodb.NewImage

    @property
    def old(self) -> Item | None:
        return self.dynamodb.OldImage

    @property
    def expired(self) -> bool:
        """Whether time to live removed the item."""
        identity = self.identity
        return identity is not None and (identity.Type, identity.PrincipalId) == _TIME_TO_LIVE


class _Whole(msgspec.Struct):
    Records: list[StreamRecord] = []


class _Parts(msgspec.Struct):
    Records: list[msgspec.Raw] = []


_context = msgspec.json.Decoder(PageContext)
_answers = msgspec.json.Decoder(Answer)
_heads = msgspec.json.Decoder(RecordHead)
_wholes = msgspec.json.Decoder(_Whole)
_parts = msgspec.json.Decoder(_Parts)
_records = msgspec.json.Decoder(StreamRecord)


class Unread(NamedTuple):
    """In place of a record that cannot be read: its bytes, and what is wrong, without data."""

    sequence: str
    created_at: datetime
    raw: bytes
    error: str


def place_of(sequence: str) -> Place:
    """Padded to 40 digits, so that places compare as text; raises Malformed."""
    if not sequence.isdecimal() or len(sequence) > _DIGITS:
        raise Malformed(
            f"{sequence[:60]!r} is not a sequence number of 1 to {_DIGITS} digits", "wire"
        )
    return Place(sequence.zfill(_DIGITS), 0)


def sequence_number(place: Place) -> str:
    """The sequence number as DynamoDB wrote it: 21 digits or more. Raises Malformed."""
    if not place.cursor.isdecimal():
        raise Malformed(f"{place} is not a place of DynamoDB Streams", "wire")
    return place.cursor.lstrip("0").zfill(_SHORTEST)


def read_answer(body: bytes) -> Answer:
    """Raises Malformed."""
    try:
        return _answers.decode(body)
    except msgspec.MsgspecError as error:
        raise Malformed(f"an answer of GetRecords is not readable: {error}", "wire") from error


def read_records(page: Page) -> Sequence[StreamRecord | Unread]:
    """A page's records. Raises Malformed for a page that is not an answer."""
    skip = PageContext.of(page).skip
    try:
        return _wholes.decode(page.payload).Records[skip:]
    except msgspec.MsgspecError:
        return [_one(raw) for raw in _raw_records(page)[skip:]]


def each_record(page: Page) -> Iterator[StreamRecord | Unread]:
    """As `read_records`, one after the other: many small objects that live at the same time cost
    the garbage collector more than decoding them costs."""
    for raw in _raw_records(page)[PageContext.of(page).skip :]:
        yield _one(raw)


def _raw_records(page: Page) -> list[bytes]:
    try:
        return [bytes(each) for each in _parts.decode(page.payload).Records]
    except msgspec.MsgspecError as error:
        raise Malformed("a page of DynamoDB is not an answer of GetRecords", "wire") from error


def _one(raw: bytes) -> StreamRecord | Unread:
    try:
        return _records.decode(raw)
    except msgspec.MsgspecError as error:
        try:
            head = _heads.decode(raw)
            return Unread(
                head.sequence, head.created_at, raw, f"the record is not readable: {error}"
            )
        except msgspec.MsgspecError as worse:
            raise Malformed(f"a record has no sequence number: {worse}", "wire") from worse


_OPERATIONS = {"INSERT": "INSERT", "MODIFY": "UPDATE", "REMOVE": "DELETE"}


class DynamodbDecoder(RowDecoder):
    """The implementation of `page.Decoder`. `before` is the old image and `after` the new one, as
    far as the stream's view type has them. The event id is `backend:partition:sequence number`."""

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
        if (operation := _OPERATIONS.get(record.event)) is None:
            raise Malformed(f"{record.event[:20]!r} is not an event of DynamoDB Streams", "wire")
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
    images = {"NewImage": record.new, "OldImage": record.old}
    fields = {
        "SequenceNumber": record.sequence,
        "ApproximateCreationDateTime": record.created_at.timestamp(),
        "Keys": record.keys,
        **{name: image for name, image in images.items() if image is not None},
    }
    known = {"eventName": record.event, "eventID": record.event_id, "dynamodb": fields}
    return orjson.dumps(known)
