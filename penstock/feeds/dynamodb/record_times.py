"""When the record at each place of a shard was created, while the shard is read."""

import threading
from collections import deque
from itertools import islice, zip_longest
from typing import NamedTuple

from penstock.model.position import Place

# Pages that are remembered one by one; older ones count as one page.
_PAGES = 1000


class _PageAges(NamedTuple):
    """The last place of a page, and when its first and its last record were created."""

    last: Place | None
    first_created: float
    last_created: float


class RecordTimes:
    """Of the places after `after`, whose record was created at `through`. Seconds since 1970, 0
    where that is not known. Thread-safe."""

    def __init__(self, after: Place | None, through: float) -> None:
        self._lock = threading.Lock()
        self._pages = deque([_PageAges(after, through, through)])
        # The newest place that a bookmark was made of.
        self.asked = after

    @property
    def newest(self) -> float:
        """Of all that was read."""
        return self._pages[-1].last_created

    def note(self, last: Place, first_created: float, last_created: float) -> None:
        """A page was read."""
        with self._lock:
            self._pages.append(_PageAges(last, first_created, last_created))
            if len(self._pages) > _PAGES:
                oldest = self._pages.popleft()
                self._pages[0] = self._pages[0]._replace(first_created=oldest.first_created)

    def renew(self, through: float) -> None:
        """After the last page there was nothing until then."""
        with self._lock:
            newest = self._pages[-1]
            self._pages[-1] = newest._replace(last_created=max(newest.last_created, through))

    def at(self, place: Place | None) -> float:
        """Of a place: exact at the end of a page, and that of the page's first record inside it."""
        with self._lock:
            return self._at(place)

    def of_bookmark(self, place: Place) -> float:
        """The same; places before it are asked for no more."""
        with self._lock:
            self.asked = place
            while len(self._pages) > 1 and _is_before(self._pages[0].last, place):
                self._pages.popleft()
            return self._at(place)

    def _at(self, place: Place | None) -> float:
        for page, following in zip_longest(self._pages, islice(self._pages, 1, None)):
            if page.last == place:
                # Where nothing is known of the place itself, then of what comes after it.
                is_known = page.last_created or following is None
                return page.last_created if is_known else following.first_created
            if not _is_before(page.last, place):
                return page.first_created
        return self._pages[-1].last_created


def _is_before(place: Place | None, other: Place | None) -> bool:
    return other is not None and (place is None or place < other)
