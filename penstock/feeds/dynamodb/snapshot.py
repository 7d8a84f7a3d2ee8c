"""A table's items, read by Scan while it is written to.

A stream has no place for all of its shards, and none is needed: consumers begin where the stream of
changes ended before the Scan, and each of its reads is consistent, so that it has all that was
written before it. A change that was published before is in the items; all others follow. Applied in
their order over items that may be newer they end with the same items.
"""

import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from penstock.feeds.dynamodb.client import connect
from penstock.feeds.dynamodb.failures import translating
from penstock.feeds.dynamodb.items import (
    FIRST,
    ScanAnswer,
    describe_table,
    page_of,
    read_scan,
)
from penstock.feeds.dynamodb.preflight import how_to_enable
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmarks
from penstock.process.backoff import delays

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
        with self._translating():
            self._client = connect(settings, "dynamodb", attempts=1, raw="ScanOutput")

    def _translating(self) -> AbstractContextManager[None]:
        return translating(f"reading {self._table}")

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
        """One answer; where the service is away, or refuses because reads are too many, it is asked
        again for a while."""
        waits, delay, deadline = delays(limit=10.0), 0.0, time.monotonic() + _PATIENCE
        while True:
            self._wait(max(self._pace.due, time.monotonic() + delay))
            try:
                with self._translating():
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
        raise Unavailable("the snapshot was stopped before all ranges were read")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbRowSource:
    """A `feeds.RowSource`."""

    settings: DynamodbSettings
    keys: tuple[str, ...]

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

    def __init__(self, settings: DynamodbSettings, known: Bookmarks) -> None:
        self._settings, self._known = settings, known

    def __enter__(self) -> Self:
        settings = self._settings
        if not self._known:
            raise Unavailable(
                "no position is saved yet, from which changes after the snapshot would come",
                hint="start the pipeline first",
            )
        self._table = found = describe_table(settings)
        name = settings.table_name
        if found.view not in _WITH_ITEMS:
            what = f"the view type {found.view}" if found.view else "no enabled stream"
            raise SettingsError(
                f"{name} has {what}: changes after a snapshot would come without their items",
                hint=how_to_enable(name),
            )
        if settings.stream and settings.stream != found.stream:
            raise SettingsError(
                f"{name} has another stream than the one that is followed",
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
        wanted = max(-(-table.size // size), -(-table.items // rows), 1)
        count = min(wanted, _MOST_SEGMENTS)
        return [{"segment": number, "of": count} for number in range(count)]

    def verify(self, known: Bookmarks) -> None:
        """See `feeds.TableSnapshot`: a gap begins a run anew by itself, and there is no position
        to compare."""


def _sendable(key: Mapping[str, Any]) -> Mapping[str, Any]:
    """A key of an answer's JSON, as boto3 takes it: it encodes bytes by itself."""
    return {
        name: {kind: b64decode(text) if kind == "B" else text for kind, text in value.items()}
        for name, value in key.items()
    }
