"""A feed that makes up its changes: for tests, benchmarks and first steps, without a server.

The same settings always give the same changes, whichever process asks: nothing is remembered but
what the process itself acknowledged. It cuts units (transactions) across pages, has any number of
partitions with any lineage, ends, trims and supersedes them, and fails on demand.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from penstock.change import Images, OnError, schema
from penstock.errors import Malformed, SettingsError, Unavailable
from penstock.feeds import At, FeedPlugin, Following, Gap, GapPolicy, HistoryLost, Lineage
from penstock.finding import Finding
from penstock.page import Decoder, Page
from penstock.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.settings import Duration, Settings

__all__ = ["PLUGIN", "MemoryDecoder", "MemoryFeed", "MemoryFeedSettings"]

_KEYS = 7  # documents per partition
_COMMITTED = datetime(2026, 1, 1, tzinfo=UTC)
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_KINDS = pa.array(_OPERATIONS, pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_PAGES_PER_READ = 8


class MemoryFeedSettings(Settings):
    """What the feed makes up."""

    name: str = "memory"
    """The backend: part of every event id."""
    type: Literal["memory"] = "memory"
    changes: int = Field(1_000, ge=0)
    """Changes of each partition."""
    partitions: int = Field(1, ge=1)
    """Partitions without a parent, called `p0`, `p1` and so on."""
    chained: bool = False
    """Each partition is the parent of the next, and ends; else they are side by side, endless."""
    generations: int = Field(0, ge=0)
    """How often each partition ends: it splits into two (`p0.0`, `p0.1`), and at the next end the
    two merge into one (`p0.m`), which splits again."""
    page: int = Field(100, ge=1)
    """Changes per page."""
    unit: int = Field(10, ge=1)
    """Changes per cursor, as in a transaction; a page may end inside."""
    fail_at: tuple[int, ...] = ()
    """Numbers of changes that can't be read the first time: `read` raises Unavailable once."""
    latency: Duration = Field(0.0, ge=0)
    """How long each read takes."""
    trimmed: int = Field(0, ge=0)
    """The source has no changes of `p0` before this number any more."""
    unlisted: tuple[str, ...] = ()
    """Partitions that the source no longer lists."""
    supersede: bool = False
    """Only the newest change of each key is kept, as by a source that gives the latest version: a
    replay leaves out what a later change has replaced, and no change is identified by counting."""
    fetched: bool = False
    """Whether pages are instructions, whose payload the task that decodes them makes up."""
    tokens: bool = False
    """Changes have opaque tokens, as in a change stream: event ids are made of them, and a place is
    not enough to resume, a bookmark's mark must have the token of its change."""
    polled: bool = False
    """Whether tasks read it by themselves in open micro-batches: a source that anyone may poll."""
    on_gap: GapPolicy = "fail"

    @field_validator("on_gap", mode="before")
    @classmethod
    def _has_no_snapshots(cls, value: Any) -> Any:
        if value == "resnapshot":
            raise ValueError("the memory feed has no snapshots: write `fail` or `continue`")
        return value


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

    @property
    def polled(self) -> bool:
        """See `feeds.Polled`."""
        return self.settings.polled

    @property
    def on_gap(self) -> GapPolicy:
        """See `feeds.Feed`."""
        return self.settings.on_gap

    def partitions(self) -> Sequence[Lineage]:
        """See `feeds.Feed`."""
        return [each for each in self.lineage.values() if each.partition not in self._unlisted]

    @property
    def _unlisted(self) -> tuple[str, ...]:
        return self.settings.unlisted

    @cached_property
    def lineage(self) -> Mapping[PartitionId, Lineage]:
        """Every partition that ever was, parents first."""
        roots = [PartitionId(f"p{number}") for number in range(self.settings.partitions)]
        if self.settings.chained:
            parents = [(), *((name,) for name in roots)]
            each = zip(roots, parents, strict=False)
            return {name: Lineage(partition=name, parents=of) for name, of in each}
        found = {name: Lineage(partition=name) for name in roots}
        for root in roots:
            last = [root]
            for generation in range(self.settings.generations):
                if generation % 2 == 0:
                    names = [PartitionId(f"{last[0]}.{half}") for half in (0, 1)]
                else:
                    names = [PartitionId(f"{last[0].rpartition('.')[0]}.m")]
                found |= {name: Lineage(partition=name, parents=tuple(last)) for name in names}
                last = names
        return found

    @cached_property
    def _parents(self) -> set[PartitionId]:
        return {parent for each in self.lineage.values() for parent in each.parents}

    def ends(self, partition: PartitionId) -> bool:
        """Whether a partition has an end."""
        return self.settings.chained or partition in self._parents

    def begin(self, at: At = None) -> Bookmarks:
        """See `feeds.Feed`. What is made up is there from the beginning: "now" is behind all of it,
        and a time is behind the changes that were committed before it."""
        if isinstance(at, Mapping):
            return at
        roots = [each.partition for each in self.lineage.values() if not each.parents]
        if at is None:
            known = ((name, self.acknowledged.get(name)) for name in roots)
            return {name: bookmark_at(self.settings, place) for name, place in known}
        number = 0
        if at == "now":
            number = self.settings.changes
        elif isinstance(at, datetime):
            number = max(0, -((_COMMITTED - at) // timedelta(milliseconds=1)))
        number = min(number, self.settings.changes)
        return {
            name: bookmark_at(
                self.settings, place_of(self.settings, name, number - 1) if number else None
            )
            for name in roots
        }

    def newest(self, partition: PartitionId) -> Place | None:
        """See `feeds.TellsNewest`."""
        changes = self.settings.changes
        return place_of(self.settings, partition, changes - 1) if changes else None

    def remaining(self, partition: PartitionId, bookmark: Bookmark) -> int | None:
        """See `feeds.TellsNewest`."""
        done = 0 if bookmark.place is None else number_of(self.settings, bookmark.place) + 1
        return self.settings.changes - done

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Gap | None = None
    ) -> Following:
        """See `feeds.Feed`."""
        if partition not in self.lineage or partition in self._unlisted:
            raise SettingsError(f"there is no partition {partition}")
        after = self._resumed(partition, bookmark)
        following = MemoryFollowing(self, partition, after)
        first = self.settings.trimmed if partition == "p0" else 0
        if following.next >= first:
            return following
        if despite is None:
            detail = f"{partition} begins at change {first} by now"
            gap = Gap(
                cause="trimmed",
                after="" if after is None else str(after),
                detail=detail,
                policy=self.settings.on_gap,
            )
            raise HistoryLost(gap, hint="on_gap: continue goes on after the gap")
        following.next = first
        following.begins = str(first)
        return following

    def _resumed(self, partition: PartitionId, bookmark: Bookmark) -> Place | None:
        """After which change to follow: with `tokens` the one that the mark names."""
        if bookmark.place is None:
            return self.acknowledged.get(partition)
        if not self.settings.tokens:
            return bookmark.place
        token = str((bookmark.mark or {}).get("token", ""))
        number = _number_of_token(token)
        if number is None:
            raise Malformed(f"the bookmark of {partition} at {bookmark.place} has no token")
        return place_of(self.settings, partition, number)

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """See `feeds.Feed`. What it makes up can be read."""
        kind = FetchingDecoder if self.settings.fetched else MemoryDecoder
        return kind(self.settings, images)

    def check(self) -> Sequence[Finding]:
        """See `feeds.Feed`."""
        return [Finding(level="ok", subject=self.backend, message="made up in memory")]


class MemoryFollowing:
    """The implementation of `feeds.Following`."""

    def __init__(self, feed: MemoryFeed, partition: PartitionId, after: Place | None) -> None:
        self._feed = feed
        self._partition = partition
        self.next = 0 if after is None else number_of(feed.settings, after) + 1
        self.begins = ""
        self._connected = True

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`."""
        if not self._connected:
            raise Unavailable(f"{self._partition} was closed")
        settings = self._feed.settings
        if settings.latency:
            time.sleep(settings.latency)
        pages: list[Page] = []
        while len(pages) < _PAGES_PER_READ and self.next < settings.changes:
            first, last = self.next, self._last()
            if last < first:
                if pages:
                    break
                self._fail(first)
            numbers = self._kept(first, last)
            if numbers:
                pages.append(self._page(numbers))
            self.next = last + 1
        if not pages and not self.drained:
            time.sleep(timeout)
        return pages

    def _last(self) -> int:
        """The last change of the next page: it ends before the next failure."""
        settings, first = self._feed.settings, self.next
        last = min(first + settings.page, settings.changes) - 1
        for number in settings.fail_at:
            if first <= number <= last and (self._partition, number) not in self._feed.failures:
                last = number - 1
        return last

    def _kept(self, first: int, last: int) -> Sequence[int]:
        """The changes that a later one of the same key has not replaced."""
        settings = self._feed.settings
        if not settings.supersede:
            return range(first, last + 1)
        return [each for each in range(first, last + 1) if each + _KEYS >= settings.changes]

    def _fail(self, number: int) -> None:
        self._feed.failures.add((self._partition, number))
        self._connected = False
        raise Unavailable(f"{self._partition} fails at change {number}, as its settings say")

    def _page(self, numbers: Sequence[int]) -> Page:
        settings = self._feed.settings
        return Page(
            partition=self._partition,
            first=place_of(settings, self._partition, numbers[0]),
            last=place_of(settings, self._partition, numbers[-1]),
            count=len(numbers),
            captured_at=time.time_ns() // 1000,
            context=b"",
            payload=b"" if settings.fetched else orjson.dumps(list(numbers)),
        )

    @property
    def drained(self) -> bool:
        """See `feeds.Following`."""
        return self._feed.ends(self._partition) and self.next >= self._feed.settings.changes

    def keep_alive(self) -> Sequence[Page]:
        """See `feeds.Following`: there is no connection to keep."""
        return ()

    def acknowledge(self, bookmark: Bookmark) -> None:
        """See `feeds.Following`."""
        known = self._feed.acknowledged.get(self._partition)
        if bookmark.place is not None and (known is None or bookmark.place > known):
            self._feed.acknowledged[self._partition] = bookmark.place

    def bookmark(self, place: Place | None) -> Bookmark:
        """See `feeds.Following`: there is one history only."""
        return bookmark_at(self._feed.settings, place)

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`."""
        confirmed = self._feed.acknowledged.get(self._partition)
        return {
            "connected": self._connected,
            "current": str(place_of(self._feed.settings, self._partition, self.next - 1))
            if self.next
            else None,
            "confirmed": str(confirmed) if confirmed else None,
        }

    def close(self) -> None:
        """See `feeds.Following`."""
        self._connected = False


class MemoryDecoder:
    """The implementation of `page.Decoder`: numbers of changes -> changes, column by column."""

    def __init__(self, settings: MemoryFeedSettings, images: Images) -> None:
        self._settings = settings
        self._images: Images = images
        self.unknown_types: set[str] = set()
        self._keys = pa.array([self._image({"id": n}) for n in range(_KEYS)], self._image_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings, self._images)

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`."""
        try:
            numbers = np.array(orjson.loads(page.payload), np.int64)
        except (orjson.JSONDecodeError, ValueError) as error:
            raise Malformed("a page of the memory feed is not JSON") from error
        rows, unit = len(numbers), self._settings.unit
        keys = numbers % _KEYS
        kinds = numbers // _KEYS % len(_OPERATIONS)
        cursor = _joined(
            _scalar(f"{page.partition}-"), pc.utf8_lpad(_text(numbers // unit), 12, "0")
        )
        ordinals = numbers % unit
        key: Any = self._keys.take(pa.array(keys, pa.int64()))
        deleted = pa.array(kinds == _OPERATIONS.index("DELETE"), pa.bool_())
        nothing = _nothing(rows, self._image_type)
        after = pa.array(
            [self._image({"id": n % _KEYS, "number": n, "text": f"change {n}"})
             for n in numbers.tolist()],
            self._image_type,
        )  # fmt: skip
        identity: tuple[Any, ...] = cursor, _scalar(":"), _text(ordinals)
        tokens: Any = None
        if self._settings.tokens:
            tokens = pa.array([_token(number) for number in numbers.tolist()], pa.string())
            identity = _scalar(f"{page.partition}-"), tokens
        committed = int(_COMMITTED.timestamp() * 1e6) + numbers * 1000
        captured = np.full(rows, page.captured_at, np.int64)
        made: dict[str, Any] = {
            "backend": _same(self._settings.name, rows),
            "partition": _same(page.partition, rows),
            "cursor": cursor,
            "ordinal": pa.array(ordinals, pa.int64()).cast(pa.int32()),
            "event_id": _joined(_scalar(f"{self._settings.name}:"), *identity),
            "operation": _KINDS.take(pa.array(kinds, pa.int64())),
            "namespace": _same("memory", rows),
            "collection": _same("items", rows),
            "document_id": _joined(_scalar(f"{page.partition}-"), _text(keys)),
            "key": key,
            "before": pc.if_else(deleted, key, nothing),
            "after": pc.if_else(deleted, nothing, after),
            "unchanged": pa.array([[]] * rows, schema().field("unchanged").type),
            "transaction": cursor,
            "committed_at": pa.array(committed, pa.int64()).cast(_TIME),
            "captured_at": pa.array(captured, pa.int64()).cast(_TIME),
        }
        if tokens is not None:
            made["mark"] = _joined(_scalar('{"token":"'), tokens, _scalar('"}'))
        chosen = schema(self._images)
        columns = [
            made[each.name] if each.name in made else _nothing(rows, each.type) for each in chosen
        ]
        return [pa.RecordBatch.from_arrays(columns, schema=chosen)]

    @property
    def _image_type(self) -> pa.DataType:
        return pa.string() if self._images == "json" else pa.binary()

    def _image(self, image: dict[str, Any]) -> str | bytes:
        return orjson.dumps(image).decode() if self._images == "json" else ormsgpack.packb(image)


class FetchingDecoder(MemoryDecoder):
    """A `page.Fetches`: makes up, in the task, what a page names by its first and last place."""

    def fetch(self, page: Page) -> Page:
        """See `page.Fetches`."""
        first, last = (number_of(self._settings, each) for each in (page.first, page.last))
        return replace(page, payload=orjson.dumps(list(range(first, last + 1))))


# With their types: to guess one, pyarrow looks for pandas, each time.
def _text(numbers: Any) -> Any:
    return pa.array(numbers, pa.int64()).cast(pa.string())


def _scalar(text: str) -> Any:
    return pa.scalar(text, pa.string())


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, _EMPTY)


_EMPTY = _scalar("")


def _nothing(rows: int, kind: pa.DataType) -> Any:
    made: Any = pa.nulls
    return made(rows, kind)


def _same(text: str, rows: int) -> Any:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def place_of(settings: MemoryFeedSettings, partition: str, number: int) -> Place:
    """The place of a partition's change; with its name, because event ids are unique in a
    backend."""
    return Place(f"{partition}-{number // settings.unit:012d}", number % settings.unit)


def number_of(settings: MemoryFeedSettings, place: Place) -> int:
    """The inverse; raises Malformed."""
    _, _, unit = place.cursor.rpartition("-")
    if not unit.isdecimal():
        raise Malformed(f"{place} is no place of the memory feed")
    return int(unit) * settings.unit + place.ordinal


def bookmark_at(settings: MemoryFeedSettings, place: Place | None) -> Bookmark:
    """What to store when everything up to a place is durable."""
    if place is None or not settings.tokens:
        return Bookmark(place, {})
    return Bookmark(place, {"token": _token(number_of(settings, place))})


# Numbers are scrambled, so that the order of tokens says nothing.
_TOKENS, _FACTOR = 1 << 48, 0x5DEECE66D


def _token(number: int) -> str:
    return f"{number * _FACTOR % _TOKENS:012x}"


def _number_of_token(token: str) -> int | None:
    """The inverse; None for what is no token."""
    try:
        return int(token, 16) * pow(_FACTOR, -1, _TOKENS) % _TOKENS
    except ValueError:
        return None


PLUGIN = FeedPlugin(settings=MemoryFeedSettings, build=MemoryFeed)
