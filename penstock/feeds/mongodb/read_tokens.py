"""Which token belongs to which place: what a following has read and nobody has stored yet."""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.model.position import Bookmark, Mark, Place
from penstock.wire.changestream.tokens import mark_of


class _Read(NamedTuple):
    """What one page had: its events' (time, ordinal), in order, and their tokens (BSON)."""

    places: Sequence[tuple[int, int]]
    tokens: Sequence[bytes]
    also: Mark


class ReadTokens:
    """Bookmarks for places between the one that a following began after and the last one read.

    The token after an empty reply is further than that of the last event: it is the mark of the
    last place read, so that an idle or filtered stream advances. Each mark says which place it is
    for, because a place may be saved with an older mark. `at` is that of `begun`. `also` is what
    each mark has beside that, from the next page on. Thread-safe.
    """

    def __init__(
        self,
        begun: Bookmark,
        era: str,
        cluster: str = "",
        *,
        at: Place | None = None,
        time_of: Any,
        also: Mark = MappingProxyType({}),
    ) -> None:
        self.also = also
        self._lock = threading.Lock()
        self._begun = begun
        self._era, self._cluster = era, cluster
        self._time_of = time_of
        # What was read and is not stored.
        self._pages: deque[_Read] = deque()
        # The place that the newest mark is for, and the last one that was read.
        self._at = at
        self._last = begun.place
        self._newest: Mark | None = begun.mark
        self._closed = False

    @property
    def last(self) -> Place | None:
        """The last place read; where it began, before the first."""
        return self._last

    @property
    def mark(self) -> Mark | None:
        """From where a stream reads on after all that was read."""
        return self._newest

    def read(self, places: Sequence[tuple[int, int]], tokens: Sequence[bytes], last: Place) -> None:
        """A page was read."""
        with self._lock:
            self._pages.append(_Read(places, tokens, self.also))
            self._last = self._at = last
            if tokens[-1]:  # the event is not so broken that it has none
                self._newest = self._mark(tokens[-1], last, self.also)

    def passed(self, at: Place, token: bytes) -> None:
        """A change was passed over that is stored already."""
        with self._lock:
            self._at = at
            if token:
                self._newest = self._mark(token, at, self.also)

    def idle(self, token: bytes) -> None:
        """A reply ended with this token, and every event before it was read."""
        with self._lock:
            self._newest = self._mark(token, self._at, self.also)

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """See `feeds.Following`. Places before one that was asked for are forgotten, unless the
        following is closed."""
        with self._lock:
            if place == self._last:
                if not self._closed:
                    self._pages.clear()
                return Bookmark(place, self._newest)
            if place == self._begun.place:
                return self._begun
            found = None if place is None else self._token(self._time_of(place))
        return Bookmark(place, self._mark(found[0], place, found[1])) if found else None

    def close(self) -> None:
        """Nothing more is read: from now on nothing is forgotten."""
        with self._lock:
            self._closed = True

    def _mark(self, token: bytes, place: Place | None, also: Mark) -> Mark:
        shown = None if place is None else str(place)
        return {**mark_of(token, self._era, self._cluster), **also, "place": shown}

    def _token(self, wanted: tuple[int, int]) -> tuple[bytes, Mark] | None:
        pages = self._pages
        while pages and pages[0].places[-1] < wanted and not self._closed:
            pages.popleft()
        page = next((each for each in pages if each.places[-1] >= wanted), None)
        if page is None:
            return None
        found = bisect_right(page.places, wanted) - 1
        if found < 0 or page.places[found] != wanted or not page.tokens[found]:
            return None
        return page.tokens[found], page.also
