"""A table as it is now: what DescribeTable says, items to compare with a stream, and items as pages
of its stream: what a Scan reads goes through the decoder of changes, each item as the record of its
insertion.
"""

import base64
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.feeds.dynamodb.client import connect
from penstock.feeds.dynamodb.failures import translating
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.wire.dynamodb.decoder import document_id
from penstock.wire.dynamodb.records import PageContext
from penstock.wire.dynamodb.values import AttributeValues

# A sample is some of so many equal parts of the table's hashes, by chance.
_SEGMENTS = 64
# Before every record of any shard.
FIRST = Place("0" * 40, 0)
_PARTITION = PartitionId("scan")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTable:
    """What DescribeTable says; `items` and `size` (bytes) are some hours old. `view`: of the
    stream, "" where it is disabled."""

    schema: TableSchema
    keys: tuple[str, ...]
    items: int
    size: int
    view: str
    stream: str


def describe_table(settings: DynamodbSettings) -> DescribedTable:
    """The table's schema, keys and newest stream. Raises Unavailable, SettingsError."""
    name = settings.table_name
    with translating(f"describing {name}"):
        client = connect(settings, "dynamodb")
        found = client.describe_table(TableName=name)["Table"]
    kinds = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
    keys = tuple(one["AttributeName"] for one in found["KeySchema"])
    columns = tuple(
        {"name": key, "position": number, "data_type": kinds[key], "is_nullable": False,
         "column_default": None, "key": True}
        for number, key in enumerate(keys, 1)
    )  # fmt: skip
    version = blake2b(repr([(key, kinds[key]) for key in keys]).encode(), digest_size=8)
    stream = found.get("StreamSpecification") or {}
    return DescribedTable(
        schema=TableSchema(
            schema="", table=name, name=(name,), version=version.hexdigest(), columns=columns,
            is_of_documents=True,
        ),
        keys=keys,
        items=int(found.get("ItemCount") or 0),
        size=int(found.get("TableSizeBytes") or 0),
        view=str(stream.get("StreamViewType") or "") if stream.get("StreamEnabled") else "",
        stream=str(found.get("LatestStreamArn") or ""),
    )  # fmt: skip


class DynamodbTable:
    """A `feeds.Collection`. An item's values are those of messages. Reads are consistent: each
    costs twice the read capacity of an ordinary one."""

    namespace = ""

    def __init__(self, settings: DynamodbSettings) -> None:
        self._settings = settings
        self.name = settings.table_name
        self._item = AttributeValues("msgpack").item

    @cached_property
    def _client(self) -> Any:
        return connect(self._settings, "dynamodb")

    @cached_property
    def _keys(self) -> list[str]:
        """In the order that document ids have."""
        return sorted(describe_table(self._settings).keys)

    def identity(self, change: Mapping[str, Any]) -> str:
        known = change.get("document_id")
        return str(known) if known is not None else document_id(dict(change["key"]))

    def key_of(self, image: Mapping[str, Any]) -> Mapping[str, Any] | None:
        names = self._keys
        return {name: image[name] for name in names} if image.keys() >= {*names} else None

    def count(self) -> int:
        """See `feeds.Collection`. Reads the whole table."""
        with translating(f"counting the items of {self.name}"):
            return sum(page["Count"] for page in self._pages(Select="COUNT"))

    def rows(self, most: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        with translating(f"reading {self.name}"):
            keys = self._keys
            seen: set[str] = set()
            for item in self._items(most):
                identity = document_id({name: item[name] for name in keys})
                if identity not in seen:  # a stand-in may know no segments
                    seen.add(identity)
                    yield identity, item
                if len(seen) == most:
                    return

    def _items(self, most: int | None) -> Iterator[dict[str, Any]]:
        if most is None:
            segments: list[dict[str, Any]] = [{}]
        else:
            numbers = random.sample(range(_SEGMENTS), _SEGMENTS)
            segments = [{"Segment": n, "TotalSegments": _SEGMENTS} for n in numbers]
        for segment in segments:
            for page in self._pages(**segment):
                yield from (self._item(_as_sent(item)) for item in page["Items"])

    def _pages(self, **given: Any) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator("scan")
        yield from pages.paginate(TableName=self.name, ConsistentRead=True, **given)


def _as_sent(value: Any) -> Any:
    """Binary values as base64 again, as a stream's records have them."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [_as_sent(each) for each in value]
        case dict():
            return {name: _as_sent(each) for name, each in value.items()}
        case _:
            return value


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
