"""A table as it is now: what DescribeTable says, its items to compare with a stream, and a snapshot
of them, read by Scan while it is written to.

A snapshot has no place: consumers begin where the stream of changes ended before the Scan, whose
reads are consistent. A change that was published before is in the items; all others follow
(`TableSnapshot.is_exact`). What a Scan reads goes through the decoder of changes.
"""

import random
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import msgspec

from penstock.feeds.dynamodb.client import connect
from penstock.feeds.dynamodb.failures import translating
from penstock.feeds.dynamodb.preflight import how_to_enable
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.feeds.shared import DocumentRowSource
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.model.page import Decoder, Page
from penstock.model.position import Bookmarks, PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.process.backoff import delays
from penstock.wire.document_lines import document_lines
from penstock.wire.dynamodb.decoder import DynamodbDecoder, PageContext, document_id
from penstock.wire.dynamodb.values import AttributeValues

# A sample is some of so many equal parts of the table's hashes, by chance.
_SEGMENTS = 64
# Before every record of any shard.
FIRST = Place("0" * 40, 0)
_PARTITION = PartitionId("scan")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTable:
    """What DescribeTable says; `items` and `size` (bytes) are hours old. `view`: "" if disabled."""

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
        segments: list[dict[str, Any]] = [{}]
        if most is not None:
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
            return b64encode(value).decode()
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
        raise Malformed(f"an answer of Scan is not readable: {error}", "dynamodb") from error


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
        raise Malformed("an item of a table is not readable, or has no key", "dynamodb") from error
    return (
        b'{"eventName":"INSERT","dynamodb":{"SequenceNumber":"0",'
        b'"ApproximateCreationDateTime":%d,"Keys":%b,"NewImage":%b}}'
        % (taken_at // 1_000_000, key, item)
    )


_LOOK = 0.1  # seconds between two looks whether it is stopped
_PATIENCE = 300.0  # seconds for which a read that failed is made again
_MOST_SEGMENTS = 10_000
_WITH_ITEMS = ("NEW_IMAGE", "NEW_AND_OLD_IMAGES")

# `segment` of `of`. The service cuts by the hash of the partition key, so items stay in theirs.
Segment = Mapping[str, int]


class ReadPace:
    """Bounds the read capacity units a second of one connection. Pure: `now` is monotonic seconds,
    and the next read may be made at `due`."""

    def __init__(self, units: float) -> None:
        self._units = units
        self.due = 0.0

    def used(self, units: float, now: float) -> None:
        """A read has used so many: the next waits until they were paid for."""
        self.due = max(self.due, now) + units / self._units


class TableScan:
    """A connection that reads segments of a table. Its methods raise Unavailable, SettingsError."""

    def __init__(
        self, settings: DynamodbSettings, keys: Sequence[str], is_stopped: Callable[[], bool]
    ) -> None:
        self._table, self._keys, self._is_stopped = settings.table_name, keys, is_stopped
        self._pace = ReadPace(settings.scan_units)
        self._what = f"reading {self._table}"
        with translating(self._what):
            self._client = connect(settings, "dynamodb", attempts=1, raw="ScanOutput")

    def pages(self, part: Segment, rows: int, size: int) -> Iterator[Page]:
        """See `feeds.RowSource`. A page has at most 1 MB, as an answer has."""
        given: dict[str, Any] = {
            "TableName": self._table,
            "ConsistentRead": True,
            "Segment": part["segment"],
            "TotalSegments": part["of"],
            "ReturnConsumedCapacity": "TOTAL",
            "Limit": rows,
        }
        while True:
            answer = self._read(given)
            if answer.items:
                yield page_of(answer.items, self._table, self._keys, time.time_ns() // 1000)
            if answer.last is None:
                return
            given["ExclusiveStartKey"] = _sendable(answer.last)

    def _read(self, given: Mapping[str, Any]) -> ScanAnswer:
        """One answer; tried again for a while where the service is away, or reads are too many."""
        waits, delay, deadline = delays(limit=10.0), 0.0, time.monotonic() + _PATIENCE
        while True:
            self._wait(max(self._pace.due, time.monotonic() + delay))
            try:
                with translating(self._what):
                    answer = read_scan(self._client.scan(**given)["Body"])
            except Unavailable:
                delay = next(waits)
                if time.monotonic() + delay > deadline:
                    raise
            else:
                self._pace.used(answer.consumed.CapacityUnits, time.monotonic())
                return answer

    def _wait(self, until: float) -> None:
        while not self._is_stopped():
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _LOOK))
        raise Unavailable("the snapshot was stopped before all ranges were read", "dynamodb")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbRowSource(DocumentRowSource):
    """A `feeds.RowSource`."""

    settings: DynamodbSettings
    keys: tuple[str, ...]

    def line_decoder(self) -> Decoder:
        name, tenant = self.settings.name, self.settings.tenant
        return document_lines(lambda form: DynamodbDecoder(name, tenant, form, "stop"), "text")

    @contextmanager
    def opened(
        self, is_stopped: Callable[[], bool]
    ) -> Iterator[Callable[[Segment, int, int], Iterator[Page]]]:
        yield TableScan(self.settings, self.keys, is_stopped).pages


class DynamodbSnapshot:
    """A `feeds.TableSnapshot`. Nothing is kept at the service for it."""

    lsn = "0"
    position = str(FIRST)
    is_exact = False
    mark = "segments"
    counted = None

    def __init__(self, settings: DynamodbSettings, known: Bookmarks | None) -> None:
        self._settings, self._known = settings, known

    def __enter__(self) -> Self:
        settings = self._settings
        if self._known is not None and not self._known:
            raise Unavailable(
                "no position is saved yet: changes after the snapshot would be missing",
                "dynamodb",
                hint="start the pipeline first",
            )
        self._table = found = describe_table(settings)
        name = settings.table_name
        if self._known is not None and found.view not in _WITH_ITEMS:
            what = f"the view type {found.view}" if found.view else "no enabled stream"
            raise SettingsError(
                f"{name} has {what}: changes after a snapshot would lack their items",
                "dynamodb.view-type",
                hint=how_to_enable(name),
            )
        if settings.stream and settings.stream != found.stream:
            raise SettingsError(
                f"{name} has another stream than the one that is followed",
                "dynamodb",
                hint="write `table` in place of `stream`",
            )
        self.schema = found.schema
        self.source = DynamodbRowSource(settings=settings, keys=found.keys)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def written_since(self, ranges: Sequence[Segment], mark: str) -> Sequence[Segment] | None:
        """See `feeds.TableSnapshot`: what was written since, the changes have whole."""
        return () if mark == self.mark else None

    def plan(self, rows: int, size: int) -> Sequence[Segment]:
        table = self._table
        count = min(max(-(-table.size // size), -(-table.items // rows), 1), _MOST_SEGMENTS)
        return [{"segment": number, "of": count} for number in range(count)]

    def verify(self, known: Bookmarks) -> None:
        """See `feeds.TableSnapshot`: a gap begins a run anew, and there is no position."""


def _sendable(key: Mapping[str, Any]) -> Mapping[str, Any]:
    """A key of an answer's JSON, as boto3 takes it: it encodes bytes by itself."""
    return {
        name: {kind: b64decode(text) if kind == "B" else text for kind, text in value.items()}
        for name, value in key.items()
    }
