"""A feed that makes up its changes: for first steps and benchmarks, without a server. The same
settings always give the same changes, whichever process asks. It is the smallest feed that keeps
the whole contract, and an example for authors of feeds.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal

import orjson
import ormsgpack
import pyarrow as pa
from pydantic import Field, model_validator

from penstock.feeds import At, Feed, FeedPlugin, Following, Gap, GapPolicy, Lineage, Listing
from penstock.feeds.shared import first_pages
from penstock.model.change import Images, OnError, schema
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.model.finding import Finding
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.model.settings import Duration, Settings

KEYS = 7  # documents per partition
COMMITTED = datetime(2026, 1, 1, tzinfo=UTC)  # change 0; each further one a millisecond later
_COMMITTED = int(COMMITTED.timestamp()) * 1_000_000
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_PAGES_PER_READ = 8
_GONE = "chained generations fail_at trimmed unlisted found late history state tokens on_gap"


class MemoryFeedSettings(Settings):
    """What the feed makes up."""

    name: str = "memory"
    type: Literal["memory"] = "memory"
    changes: int = Field(1_000, ge=0)
    """Of each partition."""
    partitions: int = Field(1, ge=1)
    """p0, p1, ..., side by side, without an end."""
    page: int = Field(100, ge=1)
    """Changes of a page."""
    unit: int = Field(10, ge=1)
    """Changes per cursor, as in a transaction; a page may end inside."""
    latency: Duration = Field(0.0, ge=0)
    """Seconds of each read."""
    polled: bool = False
    """Whether tasks read it by themselves in open micro-batches."""

    @model_validator(mode="before")
    @classmethod
    def _is_simple(cls, data: Any) -> Any:
        for key in _GONE.split():
            if isinstance(data, dict) and key in data:
                raise ValueError(
                    f"{key} is no more: leave it out; nothing of this feed ends, fails or is lost"
                )
        return data


def place_of(settings: MemoryFeedSettings, partition: str, number: int) -> Place:
    """The place of a partition's change, with its name: event ids are unique in a backend."""
    return Place(f"{partition}-{number // settings.unit:012d}", number % settings.unit)


def number_of(settings: MemoryFeedSettings, place: Place) -> int:
    """The inverse; raises Malformed."""
    _, _, unit = place.cursor.rpartition("-")
    if not unit.isdecimal():
        raise Malformed(f"{place} is no place of the memory feed", "feeds")
    return int(unit) * settings.unit + place.ordinal


class MemoryDecoder:
    """The implementation of `page.Decoder`: numbers of changes -> changes, column by column. A page
    is to cost no more than its rows: many partitions have small ones."""

    def __init__(self, settings: MemoryFeedSettings, images: Images) -> None:
        self._settings = settings
        self._images: Images = images
        self.unknown_types: set[str] = set()
        self._keys = [self._image({"id": n}) for n in range(KEYS)]

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        try:
            numbers = [int(number) for number in orjson.loads(page.payload)]
        except (orjson.JSONDecodeError, ValueError, TypeError) as error:
            raise Malformed("a page of the memory feed is not JSON", "feeds") from error
        rows, unit, name = len(numbers), self._settings.unit, self._settings.name
        keys = [number % KEYS for number in numbers]
        kinds = [_OPERATIONS[number // KEYS % 3] for number in numbers]
        units = {each: f"{page.partition}-{each:012d}" for each in {n // unit for n in numbers}}
        cursors = [units[number // unit] for number in numbers]
        ordinals = [number % unit for number in numbers]
        named = [f"{page.partition}-{key}" for key in range(KEYS)]
        images = list(zip(kinds, keys, numbers, strict=True))
        made: dict[str, Any] = {
            "partition": [page.partition] * rows,
            "cursor": cursors,
            "ordinal": ordinals,
            "event_id": list(map(f"{name}:{{}}:{{}}".format, cursors, ordinals)),
            "operation": kinds,
            "document_id": [named[key] for key in keys],
            "key": [self._keys[key] for key in keys],
            "before": [self._keys[key] if kind == "DELETE" else None for kind, key, _ in images],
            "after": [None if kind == "DELETE" else self._after(n) for kind, _, n in images],
            "transaction": cursors,
            "committed_at": [_COMMITTED + 1000 * number for number in numbers],
            "captured_at": [page.captured_at] * rows,
        }
        same = {"backend": name, "namespace": "memory", "collection": "items", "unchanged": ()}
        chosen, columns = schema(self._images), list[Any]()
        for each in chosen:
            if values := made.get(each.name):
                # With its type: to guess one, pyarrow looks for pandas, each time.
                columns.append(pa.array(values, each.type))
            else:
                columns.append(_same(same.get(each.name), rows, each.type))
        return [pa.RecordBatch.from_arrays(columns, schema=chosen)]

    def _after(self, n: int) -> str | bytes:
        return self._image({"id": n % KEYS, "number": n, "text": f"change {n}"})

    def _image(self, image: dict[str, Any]) -> str | bytes:
        return orjson.dumps(image).decode() if self._images == "json" else ormsgpack.packb(image)


# Of pages of the same number of changes: these columns are the same, and Arrow's never change.
@lru_cache(128)
def _same(value: str | tuple[()] | None, rows: int, kind: pa.DataType) -> Any:
    return pa.array([value] * rows, kind)


class MemoryFollowing(Following):
    """The implementation of `feeds.Following`: pages of the numbers of changes, from `next` on."""

    begins = ""

    def __init__(self, feed: "MemoryFeed", partition: PartitionId, after: Place | None) -> None:
        self._feed = feed
        self._partition = partition
        self.next = 0 if after is None else number_of(feed.settings, after) + 1
        self._connected = True

    def read(self, timeout: float) -> Sequence[Page]:
        if self._feed.settings.latency:
            time.sleep(self._feed.settings.latency)
        if not self._connected:
            raise Unavailable(f"{self._partition} was closed", "feeds")
        pages = self._take()
        if timeout and not pages and not self.drained:
            time.sleep(timeout)
        return pages

    def _take(self) -> Sequence[Page]:
        settings, pages = self._feed.settings, list[Page]()
        while len(pages) < _PAGES_PER_READ and self.next < settings.changes:
            pages.append(self._page(min(self.next + settings.page, settings.changes)))
        return pages

    def _page(self, end: int) -> Page:
        first, last = (self._place(number) for number in (self.next, end - 1))
        numbers, self.next = list(range(self.next, end)), end
        return Page(
            partition=self._partition, first=first, last=last, count=len(numbers),
            captured_at=time.time_ns() // 1000, context=b"", payload=orjson.dumps(numbers),
        )  # fmt: skip

    def _place(self, number: int) -> Place:
        return place_of(self._feed.settings, self._partition, number)

    def bookmark(self, place: Place | None) -> Bookmark:
        return Bookmark(place)

    def acknowledge(self, bookmark: Bookmark) -> None:
        known, place = self._feed.acknowledged.get(self._partition), bookmark.place
        if place is not None and (known is None or place > known):
            self._feed.acknowledged[self._partition] = place

    def status(self) -> Mapping[str, Any]:
        confirmed = self._feed.acknowledged.get(self._partition)
        return {
            "connected": self._connected,
            "current": str(self._place(self.next - 1)) if self.next else None,
            "confirmed": str(confirmed) if confirmed else None,
        }

    def close(self) -> None:
        self._connected = False


class MemoryFeed(Feed):
    """The implementation of `feeds.Feed`. A pickled copy is a feed that remembers nothing."""

    on_gap: GapPolicy = "fail"

    def __init__(self, settings: MemoryFeedSettings) -> None:
        self.settings = settings
        self.acknowledged: dict[PartitionId, Place] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)

    @property
    def backend(self) -> str:
        return self.settings.name

    @property
    def polled(self) -> bool:
        return self.settings.polled

    @cached_property
    def lineage(self) -> Mapping[PartitionId, Lineage]:
        """Every partition that ever was, parents first."""
        names = [PartitionId(f"p{number}") for number in range(self.settings.partitions)]
        return {name: Lineage(partition=name) for name in names}

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        return Listing(lineages=list(self.lineage.values()))

    def begin(self, at: At = None) -> Bookmarks:
        """What is made up is there from the beginning: "now" is after all of it, and a time is
        after the changes that were committed before it."""
        if isinstance(at, Mapping):
            return at
        if at is None:
            return {name: Bookmark(self.acknowledged.get(name)) for name in self.lineage}
        if not (number := self.number_at(at)):
            return dict.fromkeys(self.lineage, START)
        return {n: Bookmark(place_of(self.settings, n, number - 1)) for n in self.lineage}

    def number_at(self, at: At) -> int:
        """How many changes of each partition are before this moment."""
        before = 0 if at == "beginning" else self.settings.changes
        if isinstance(at, datetime):
            before = min(before, max(0, -((COMMITTED - at) // timedelta(milliseconds=1))))
        return before

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Sequence[Gap] = ()
    ) -> MemoryFollowing:
        if partition not in self.lineage:
            raise SettingsError(f"there is no partition {partition}", "feeds")
        after = self.acknowledged.get(partition) if bookmark.place is None else bookmark.place
        return MemoryFollowing(self, partition, after)

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        return MemoryDecoder(self.settings, images)

    def tables(self) -> Sequence[tuple[str, str]]:
        return [("memory", "items")]

    def sample(self, schema: str, table: str, rows: int) -> Iterator[Page]:
        return first_pages(self, rows)

    def check(self) -> Sequence[Finding]:
        return [Finding(level="ok", subject=self.backend, message="made up in memory")]


PLUGIN = FeedPlugin(settings=MemoryFeedSettings, build=MemoryFeed)
