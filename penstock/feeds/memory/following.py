"""Partitions of the memory feed, being read, alone or together: pages of numbers, and failures
where the settings say.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from penstock.errors import Unavailable
from penstock.feeds import Following, Gap
from penstock.feeds.memory.places import KEYS, bookmark_at, number_of, place_of
from penstock.page import Page
from penstock.position import START, Bookmark, PartitionId, Place

if TYPE_CHECKING:
    from penstock.feeds.memory.feed import MemoryFeed

__all__ = ["MemoryConnection", "MemoryFollowing"]

_PAGES_PER_READ = 8


class MemoryFollowing:
    """The implementation of `feeds.Following`."""

    def __init__(self, feed: "MemoryFeed", partition: PartitionId, after: Place | None) -> None:
        self._feed = feed
        self._partition = partition
        self.next = 0 if after is None else number_of(feed.settings, after) + 1
        self.begins = ""
        self._connected = True

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`."""
        self._feed.read_once()
        pages = self.take(_PAGES_PER_READ)
        if not pages and not self.drained:
            time.sleep(timeout)
        return pages

    def take(self, most: int) -> Sequence[Page]:
        """The next pages, if there are any."""
        if not self._connected:
            raise Unavailable(f"{self._partition} was closed")
        settings = self._feed.settings
        pages: list[Page] = []
        while len(pages) < most and self.next < settings.changes:
            first, last = self.next, self._last()
            if last < first:
                if pages:
                    break
                self._fail(first)
            numbers = self._kept(first, last)
            if numbers:
                pages.append(self._page(numbers))
            self.next = last + 1
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
        return [each for each in range(first, last + 1) if each + KEYS >= settings.changes]

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
    def is_connected(self) -> bool:
        """Whether it can be read."""
        return self._connected

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


class MemoryConnection:
    """The implementation of `feeds.SharedConnection`."""

    def __init__(self, feed: "MemoryFeed") -> None:
        self._feed = feed
        self._open: list[MemoryFollowing] = []
        self._first = 0

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Gap | None = None
    ) -> Following:
        """See `feeds.SharedConnection`."""
        self._open = [each for each in self._open if each.is_connected]
        following = self._feed.following(partition, bookmark, despite)
        self._feed.connections += not self._open
        self._open.append(following)
        return following

    def read(self, followings: Sequence[Following], timeout: float) -> Sequence[Page]:
        """See `feeds.SharedConnection`. Begins at another one of them each time."""
        self._feed.read_once()
        self._first = first = (self._first + 1) % max(1, len(followings))
        pages: list[Page] = []
        try:
            for each in (*followings[first:], *followings[:first]):
                if isinstance(each, MemoryFollowing) and len(pages) < _PAGES_PER_READ:
                    pages += each.take(1)
        except Unavailable:
            for open_one in self._open:
                open_one.close()
            raise
        if not pages and not all(each.drained for each in followings):
            time.sleep(timeout)
        return pages
