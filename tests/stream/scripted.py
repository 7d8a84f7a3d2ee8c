"""A feed for the iterator's tests: a tree of shards with pages that appear when the test says so.

Each shard is a list of pages, each page a list of creation times in hours (0 records: an empty
page). Records are named `SHARD/NUMBER`. Calls are counted, and fail once where the test says so.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from penstock.feeds import At, Feed, Following, Gap, GapPolicy, HistoryLost, Lineage, Listing
from penstock.model.change import Images, OnError, schema
from penstock.model.errors import InvalidPosition, Malformed, PositionLost, Unavailable
from penstock.model.finding import Finding
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place

HOUR = 3_600_000_000


def tree(text: str) -> dict[str, tuple[str, ...]]:
    """`"S0 => S1 S2, S1 => S3"`: shard -> its parents."""
    found: dict[str, tuple[str, ...]] = {}
    for part in text.split(","):
        parent, _, children = (each.strip() for each in part.partition("=>"))
        found.setdefault(parent, ())
        for child in children.split():
            found[child] = (*found.get(child, ()), parent)
    return found


class ScriptedFeed(Feed):
    """`feeds.Feed`: see above. `shown`: how many pages of each shard there are by now; a shard with
    children ends after its last page, when `closed` has it."""

    def __init__(
        self,
        lineage: Mapping[str, tuple[str, ...]],
        pages: Mapping[str, Sequence[Sequence[int]]],
        *,
        on_gap: GapPolicy = "fail",
    ) -> None:
        self.lineage = lineage
        self.pages = pages
        self.shown = {name: len(pages.get(name, ())) for name in lineage}
        self.trimmed = dict.fromkeys(lineage, 0)
        self.unlisted: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.failing: set[str] = set()
        self.losing: dict[str, PositionLost] = {}
        self.interrupted: set[str] = set()
        self.broken: set[str] = set()
        self.taken: set[str] = set()
        self.acknowledged: dict[str, Bookmark] = {}
        self.open = 0
        self._on_gap: GapPolicy = on_gap

    backend = "scripted"

    @property
    def on_gap(self) -> GapPolicy:
        return self._on_gap

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        self.fail("list")
        self.calls["list"] += 1
        return Listing(
            lineages=[
                Lineage(partition=PartitionId(name), parents=tuple(map(PartitionId, parents)))
                for name, parents in self.lineage.items()
                if name not in self.unlisted and all(map(self.ended, parents))
            ]
        )

    def ended(self, name: str) -> bool:
        if not all(map(self.ended, self.lineage[name])):
            return False  # it is not there yet
        has_child = any(name in parents for parents in self.lineage.values())
        return has_child and self.shown[name] == len(self.pages.get(name, ()))

    def fail(self, name: str) -> None:
        if name in self.failing:
            self.failing.discard(name)
            raise Unavailable(f"{name} fails, as the test says")

    def numbers(self, name: str) -> list[tuple[int, list[int]]]:
        """The pages that there are: the first record's number, and creation times."""
        found, first = [], 0
        for page in self.pages.get(name, ())[: self.shown[name]]:
            found.append((first, list(page)))
            first += len(page)
        return found

    def judged(self, error: PositionLost, bookmark: Bookmark) -> HistoryLost:
        return HistoryLost(Gap(cause="trimmed", after="", policy=self._on_gap))

    def begin(self, at: At = None) -> Bookmarks:
        if isinstance(at, Mapping):
            return at
        if isinstance(at, datetime):
            raise InvalidPosition("no times here")
        if at == "now":
            listed = self.partitions()
            return {
                PartitionId(name): Bookmark(mark={"page": self.shown[name]}, ended=self.ended(name))
                for name in (each.partition for each in listed)
            }
        return {PartitionId(name): START for name, of in self.lineage.items() if not of}

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[Gap] = (),
    ) -> Following:
        if partition in self.taken:
            self.taken.discard(partition)
            raise Unavailable("the reader before has not gone yet")
        start = int((bookmark.mark or {}).get("page", 0))
        if bookmark.place is not None:
            start = self._page_after(partition, bookmark.place)
        if start < self.trimmed[partition]:
            gap = Gap(cause="trimmed", after=str(bookmark.place or ""), policy=self.on_gap)
            if not despite:
                raise HistoryLost(gap)
            start = self.trimmed[partition]
        self.open += 1
        return ScriptedFollowing(self, partition, bookmark, start)

    def _page_after(self, name: str, place: Place) -> int:
        number = int(place.cursor.rpartition("-")[2])
        for index, (first, times) in enumerate(self.numbers(name)):
            if first + len(times) - 1 > number:
                return index
        return len(self.numbers(name))

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        return ScriptedDecoder(self, images)

    def check(self) -> Sequence[Finding]:
        return []


class ScriptedFollowing:
    """`feeds.Following`: one page for each read."""

    begins = ""

    def __init__(self, feed: ScriptedFeed, name: PartitionId, after: Bookmark, page: int) -> None:
        self._feed = feed
        self._name = name
        self._after = after
        self._page = page

    def read(self, timeout: float) -> Sequence[Page]:
        feed, name = self._feed, self._name
        feed.fail(name)
        if name in feed.losing:
            feed.trimmed[name] = 1
            raise feed.losing.pop(name)
        feed.calls[name] += 1
        pages = feed.numbers(name)
        if self._page >= len(pages):
            return ()
        first, times = pages[self._page]
        self._page += 1
        if name in feed.interrupted:
            feed.interrupted.discard(name)
            raise KeyboardInterrupt
        done = -1
        if self._after.place is not None:
            done = int(self._after.place.cursor.rpartition("-")[2])
        left = [(first + i, hour) for i, hour in enumerate(times) if first + i > done]
        if not left:
            return ()
        return [
            Page(
                partition=name,
                first=place_of(name, left[0][0]),
                last=place_of(name, left[-1][0]),
                count=len(left),
                captured_at=0,
                context=b"",
                payload=json.dumps(left).encode(),
            )
        ]

    @property
    def drained(self) -> bool:
        return self._feed.ended(self._name) and self._page >= len(self._feed.numbers(self._name))

    def keep_alive(self) -> Sequence[Page]:
        """A source that can only be kept alive by reading."""
        return self.read(0.0) if self._after.place is None else ()

    def bookmark(self, place: Place | None) -> Bookmark | None:
        return self._after if place is None else Bookmark(place, {"kept": True})

    def acknowledge(self, bookmark: Bookmark) -> None:
        self._feed.acknowledged[self._name] = bookmark

    def status(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self._feed.open -= 1


class ScriptedDecoder:
    """`page.Decoder`: a row for each record."""

    def __init__(self, feed: ScriptedFeed, images: Images) -> None:
        self.unknown_types: set[str] = set()
        self._feed = feed
        self._images: Images = images

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        if page.partition in self._feed.broken:
            raise Malformed("the page is broken, as the test says")
        rows = [self._row(page.partition, *each) for each in json.loads(page.payload)]
        return [pa.RecordBatch.from_pylist(rows, schema=schema(self._images))]

    def _row(self, name: str, number: int, hour: int) -> dict[str, Any]:
        place = place_of(name, number)
        return {
            "backend": "scripted",
            "partition": name,
            "cursor": place.cursor,
            "ordinal": 0,
            "event_id": f"scripted:{place}",
            "operation": "INSERT",
            "key": '{"id":1}' if self._images == "json" else b"\x81\xa2id\x01",
            "committed_at": hour * HOUR,
            "captured_at": 0,
        }


def place_of(name: str, number: int) -> Place:
    return Place(f"{name}-{number:06d}", 0)
