"""Where the pages of a range end, with the continuations there: bookmarks of any place."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.feeds.cosmos.marks import FeedMark
from penstock.model.position import Bookmark, Place


class _Boundary(NamedTuple):
    """A page's last place, when that was written, and the marks before and after the page."""

    last: Place | None
    before: FeedMark
    after: FeedMark
    created: float = 0.0


class PageBoundaries:
    """Of the pages after `place`, which began at `mark`. Thread-safe.

    A place at a page's end is resumed after the page; one inside it by reading the page again. The
    mark of the newest place is renewed while nothing comes: an idle range advances.
    """

    def __init__(self, place: Place | None, mark: FeedMark) -> None:
        self._lock = threading.Lock()
        self._pages = deque([_Boundary(place, mark, mark)])
        # The newest place that a bookmark was made of.
        self.asked = place
        self._is_kept = False

    def keep(self) -> None:
        """From now on places may be asked for in any order."""
        self._is_kept = True

    def note(self, last: Place, before: FeedMark, after: FeedMark, created: float) -> None:
        """A page was read."""
        with self._lock:
            self._pages.append(_Boundary(last, before, after, created))

    def created(self, place: Place | None) -> float:
        """When the change at a place was written, in seconds since 1970, by the page's end; without
        a place that of the first page. 0 where that is not known."""
        with self._lock:
            for page in self._pages:
                if page.created and not _is_before(page.last, place):
                    return page.created
            return 0.0

    def renew(self, after: FeedMark) -> None:
        """There was nothing until then."""
        with self._lock:
            self._pages[-1] = self._pages[-1]._replace(after=after)

    def end(self, cuts: Sequence[str]) -> None:
        """The range has ended, with these boundaries of its children."""
        with self._lock:
            newest = self._pages[-1]
            self._pages[-1] = newest._replace(after=replace(newest.after, cuts=tuple(cuts)))

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """None for a place before all that are known."""
        with self._lock:
            if place is None:
                first = self._pages[0]
                return Bookmark(None, first.after.to_json()) if first.last is None else None
            while (
                not self._is_kept
                and len(self._pages) > 1
                and _is_before(self._pages[1].last, place)
            ):
                self._pages.popleft()
            self.asked = place if self.asked is None or place > self.asked else self.asked
            for page in self._pages:
                if page.last == place:
                    return Bookmark(place, page.after.to_json())
                if _is_before(place, page.last):
                    known = page is not self._pages[0] or page.last is None
                    return Bookmark(place, page.before.inside().to_json()) if known else None
            return None


def _is_before(place: Place | None, other: Place | None) -> bool:
    return other is not None and (place is None or place < other)
