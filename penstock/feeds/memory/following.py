"""A partition of the memory feed, being read: pages of numbers, and failures where the settings
say.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from penstock.feeds import HistoryLost
from penstock.feeds.memory.places import bookmark_at, number_of, place_of
from penstock.model.errors import Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place

if TYPE_CHECKING:
    from penstock.feeds.memory.feed import MemoryFeed

_PAGES_PER_READ = 8


class MemoryFollowing:
    """The implementation of `feeds.Following`."""

    def __init__(
        self,
        feed: "MemoryFeed",
        partition: PartitionId,
        after: Place | None,
        *,
        since: int = 0,
        loss: HistoryLost | None = None,
    ) -> None:
        self._feed = feed
        self._partition = partition
        self._since = since
        self._loss = loss  # which the first read finds
        self.next = since if after is None else number_of(feed.settings, after) + 1
        self.begins = ""
        self._connected = True

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`."""
        self._feed.reads += 1
        settings = self._feed.settings
        if settings.latency:
            time.sleep(settings.latency)
        if not self._connected:
            raise Unavailable(f"{self._partition} was closed")
        if self._loss is not None:
            self._connected = False
            raise self._loss
        pages = self._take()
        if timeout and not pages and not self.drained:
            time.sleep(timeout)
        return pages

    def _take(self) -> Sequence[Page]:
        settings = self._feed.settings
        pages: list[Page] = []
        while len(pages) < _PAGES_PER_READ and self.next < settings.changes:
            first, last = self.next, self._last()
            if last < first:
                if pages:
                    break
                self._fail(first)
            pages.append(self._page(range(first, last + 1)))
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
            payload=orjson.dumps(list(numbers)),
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
        """See `feeds.Following`."""
        return bookmark_at(self._feed.settings, place, since=self._since)

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
