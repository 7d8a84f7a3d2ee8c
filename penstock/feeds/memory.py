"""A feed that makes up its changes: for tests, benchmarks and first steps, without a server.

The same settings always give the same changes. It cuts units (transactions) across pages, ends
partitions, fails on demand, and remembers acknowledgements, as real feeds do.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import orjson
import ormsgpack
import pyarrow as pa
from pydantic import Field

from penstock.change import Images, OnError, event_id, schema
from penstock.errors import Malformed, SettingsError, Unavailable
from penstock.feeds import FeedPlugin, Following, Gap, Lineage, Mark
from penstock.finding import Finding
from penstock.page import Decoder, Page
from penstock.position import PartitionId, Place
from penstock.settings import Settings

__all__ = ["PLUGIN", "MemoryDecoder", "MemoryFeed", "MemoryFeedSettings"]

_KEYS = 7  # documents per partition
_COMMITTED = datetime(2026, 1, 1, tzinfo=UTC)
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_PAGES_PER_READ = 8


class MemoryFeedSettings(Settings):
    """What the feed makes up."""

    name: str = "memory"
    """The backend: part of every event id."""
    type: Literal["memory"] = "memory"
    changes: int = Field(1_000, ge=0)
    """Changes of each partition."""
    partitions: int = Field(1, ge=1)
    """Partitions, called `p0`, `p1` and so on."""
    chained: bool = False
    """Each partition is the parent of the next, and ends; else they are side by side, endless."""
    page: int = Field(100, ge=1)
    """Changes per page."""
    unit: int = Field(10, ge=1)
    """Changes per cursor, as in a transaction; a page may end inside."""
    fail_at: tuple[int, ...] = ()
    """Numbers of changes that can't be read the first time: `read` raises Unavailable once."""


class MemoryFeed:
    """The implementation of `feeds.Feed`. A pickled copy is a feed that remembers nothing."""

    def __init__(self, settings: MemoryFeedSettings) -> None:
        self.settings = settings
        self.acknowledged: dict[PartitionId, Place] = {}
        self.failures: set[tuple[PartitionId, int]] = set()
        """The failures that happened already."""

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryFeed, (self.settings,)

    @property
    def backend(self) -> str:
        """See `feeds.Feed`."""
        return self.settings.name

    def partitions(self) -> Sequence[Lineage]:
        """See `feeds.Feed`."""
        names = [PartitionId(f"p{number}") for number in range(self.settings.partitions)]
        parents = [(), *((name,) for name in names)] if self.settings.chained else [()] * len(names)
        return [
            Lineage(partition=name, parents=parent)
            for name, parent in zip(names, parents, strict=False)
        ]

    def prepare(self) -> None:
        """See `feeds.Feed`: there is nothing to make."""

    def follow(
        self,
        partition: PartitionId,
        after: Place | None,
        mark: Mark | None = None,
        *,
        despite: Gap | None = None,
    ) -> Following:
        """See `feeds.Feed`. What is made up is never lost."""
        if all(each.partition != partition for each in self.partitions()):
            raise SettingsError(f"there is no partition {partition}")
        return MemoryFollowing(self, partition, after or self.acknowledged.get(partition))

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """See `feeds.Feed`. What it makes up can be read."""
        return MemoryDecoder(self.settings, images)

    def check(self) -> Sequence[Finding]:
        """See `feeds.Feed`."""
        return [Finding(level="ok", subject=self.backend, message="made up in memory")]


class MemoryFollowing:
    """The implementation of `feeds.Following`."""

    begins = ""

    def __init__(self, feed: MemoryFeed, partition: PartitionId, after: Place | None) -> None:
        self._feed = feed
        self._partition = partition
        self._next = 0 if after is None else _number(feed.settings, after) + 1
        self._connected = True

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`."""
        if not self._connected:
            raise Unavailable(f"{self._partition} was closed")
        pages: list[Page] = []
        while len(pages) < _PAGES_PER_READ and self._next < self._feed.settings.changes:
            first, last = self._next, self._last()
            if last < first:
                if pages:
                    break
                self._fail(first)
            pages.append(self._page(first, last))
            self._next = last + 1
        if not pages and not self.drained:
            time.sleep(timeout)
        return pages

    def _last(self) -> int:
        """The last change of the next page: it ends before the next failure."""
        settings, first = self._feed.settings, self._next
        last = min(first + settings.page, settings.changes) - 1
        for number in settings.fail_at:
            if first <= number <= last and (self._partition, number) not in self._feed.failures:
                last = number - 1
        return last

    def _fail(self, number: int) -> None:
        self._feed.failures.add((self._partition, number))
        self._connected = False
        raise Unavailable(f"{self._partition} fails at change {number}, as it was told to")

    def _page(self, first: int, last: int) -> Page:
        settings = self._feed.settings
        return Page(
            partition=self._partition,
            first=_place(settings, self._partition, first),
            last=_place(settings, self._partition, last),
            count=last - first + 1,
            captured_at=time.time_ns() // 1000,
            context=b"",
            payload=orjson.dumps(list(range(first, last + 1))),
        )

    @property
    def drained(self) -> bool:
        """See `feeds.Following`."""
        settings = self._feed.settings
        return settings.chained and self._next >= settings.changes

    def keep_alive(self) -> None:
        """See `feeds.Following`: nobody forgets us."""

    def acknowledge(self, place: Place) -> None:
        """See `feeds.Following`."""
        known = self._feed.acknowledged.get(self._partition)
        if known is None or place > known:
            self._feed.acknowledged[self._partition] = place

    def mark(self, place: Place | None) -> Mark:
        """See `feeds.Following`: there is one history only."""
        return {}

    def settle(self, mark: Mark | None) -> None:
        """See `feeds.Following`: nothing is held back."""

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`."""
        confirmed = self._feed.acknowledged.get(self._partition)
        return {
            "connected": self._connected,
            "current": str(_place(self._feed.settings, self._partition, self._next - 1))
            if self._next
            else None,
            "confirmed": str(confirmed) if confirmed else None,
        }

    def close(self) -> None:
        """See `feeds.Following`."""
        self._connected = False


class MemoryDecoder:
    """The implementation of `page.Decoder`: numbers of changes -> changes."""

    def __init__(self, settings: MemoryFeedSettings, images: Images) -> None:
        self._settings = settings
        self._images: Images = images
        self.unknown_types: set[str] = set()

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`."""
        try:
            numbers = orjson.loads(page.payload)
        except orjson.JSONDecodeError as error:
            raise Malformed("a page of the memory feed is not JSON") from error
        rows = [self._row(page, number) for number in numbers]
        return [pa.RecordBatch.from_pylist(rows, schema=schema(self._images))]

    def _row(self, page: Page, number: int) -> dict[str, Any]:
        place = _place(self._settings, page.partition, number)
        identity = number % _KEYS
        operation = _OPERATIONS[number // _KEYS % len(_OPERATIONS)]
        key = {"id": identity}
        whole = {"id": identity, "number": number, "text": f"change {number}"}
        return {
            "backend": self._settings.name,
            "partition": page.partition,
            "cursor": place.cursor,
            "ordinal": place.ordinal,
            "event_id": event_id(self._settings.name, place),
            "operation": operation,
            "namespace": "memory",
            "collection": "items",
            "document_id": f"{page.partition}-{identity}",
            "key": self._image(key),
            "before": self._image(key) if operation == "DELETE" else None,
            "after": None if operation == "DELETE" else self._image(whole),
            "unchanged": [],
            "transaction": place.cursor,
            "committed_at": _COMMITTED + timedelta(milliseconds=number),
            "captured_at": datetime.fromtimestamp(page.captured_at / 1e6, UTC),
        }

    def _image(self, image: dict[str, Any]) -> str | bytes:
        return orjson.dumps(image).decode() if self._images == "json" else ormsgpack.packb(image)


def _place(settings: MemoryFeedSettings, partition: str, number: int) -> Place:
    # With the partition, because event ids are unique in a backend.
    return Place(f"{partition}-{number // settings.unit:012d}", number % settings.unit)


def _number(settings: MemoryFeedSettings, place: Place) -> int:
    _, _, unit = place.cursor.rpartition("-")
    if not unit.isdecimal():
        raise Malformed(f"{place} is no place of the memory feed")
    return int(unit) * settings.unit + place.ordinal


PLUGIN = FeedPlugin(settings=MemoryFeedSettings, build=MemoryFeed)
