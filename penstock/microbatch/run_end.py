"""The end of a run, of a query that ends by itself: what the source had when it started (the
trigger AvailableNow), or a position (a batch of changes). Changes are found to be after it without
decoding, but for the last page.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from penstock.feeds import Feed, LogEnd
from penstock.model.errors import PositionLost
from penstock.model.page import Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import AGAIN

# Seconds after which a partition that has ended is taken to have no child that is not listed.
CHILDLESS = 2 * AGAIN


class RunEnd:
    """At `log`, which was pinned before this is made. Called with `wake` held."""

    def __init__(self, feed: Feed, reservoir: Reservoir, log: LogEnd) -> None:
        self._feed, self._reservoir = feed, reservoir
        self._log = log
        self._pinned_at = time.monotonic()
        self._decoder = feed.decoder("json", "dead-letter")
        # Of partitions of which a change after the end was read: the last place before it.
        self._cut: dict[PartitionId, Place | None] = {}
        # When those that have ended were first seen, and those whose children are all known.
        self._ended: dict[PartitionId, float] = {}
        self._superseded: set[PartitionId] = set()

    def last_of(self, pages: Sequence[Page], after: Place | None) -> Place | None:
        """The last change of these pages, of one partition, after `after` and not after the end."""
        name = pages[0].partition
        if name in self._cut:
            return _beyond(self._cut[name], after)
        for page in reversed(pages):
            until = self._log.places.get(name)
            if until is not None and page.last <= until:
                return page.last
            if until is not None and page.first > until:
                self._cut[name] = after
                continue
            places = list(self._places(page))
            within = list(takewhile(lambda each: each[1], places))
            if len(within) == len(places):
                return page.last
            self._cut[name] = after
            if within:
                self._cut[name] = _beyond(within[-1][0], after) or after
                break
        return _beyond(self._cut[name], after)

    def is_reached(self, known: Bookmarks) -> bool:
        """Whether all of the source's changes up to the end are durable, with nothing planned after
        `known`, which is."""
        now, names = time.monotonic(), {*known, *self._reservoir.open_partitions}
        for name in names:
            if known.get(name, START).ended:
                since = self._ended.setdefault(name, now)
                if name not in self._superseded and now - since < CHILDLESS:
                    return False  # a child of it may be listed yet
            elif not self._is_read(name, known.get(name, START)):
                return False
        return True

    def have_children(self, superseded: frozenset[PartitionId]) -> None:
        """The children of these, which have ended, are all known."""
        self._superseded |= superseded

    def _is_read(self, name: PartitionId, bookmark: Bookmark) -> bool:
        if name in self._cut or isinstance(self._reservoir.errors.get(name), PositionLost):
            return True  # what is lost is raised in the end: the others go on until there
        if self._reservoir.emptied_at(name) < self._pinned_at:
            return False
        if (until := self._log.places.get(name)) is None:
            return True
        passed = self._feed.passed(self._reservoir.bookmark(name, bookmark.place) or bookmark)
        return passed is not None and passed >= until

    def _places(self, page: Page) -> Iterator[tuple[Place, bool]]:
        """Of each change, in order; and whether it is not after the end."""
        until, time_us = self._log.places.get(page.partition), self._log.time * 1e6
        for batch in self._decoder.decode(page):
            times = batch.column("committed_at").cast(pa.int64()).to_pylist()
            cursors, ordinals = (batch.column(n).to_pylist() for n in ("cursor", "ordinal"))
            rows: Iterable[Any] = zip(cursors, ordinals, times, strict=True)
            for cursor, ordinal, at in rows:
                place = Place(cursor, ordinal)
                is_within = place <= until if until is not None else at is None or at <= time_us
                yield place, is_within


def _beyond(place: Place | None, after: Place | None) -> Place | None:
    return place if place is not None and (after is None or place > after) else None
