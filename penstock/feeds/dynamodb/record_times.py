"""Times of a shard that is read, as pure code: when the record at each place was created, and up to
when the shard has been read. Seconds since 1970, by the source.

No answer of DynamoDB Streams says that a shard has nothing more: an empty page proves nothing about
the next one. A shard counts as read up to now when a record that is seconds old was read, or after
a minute of reads without a record, and as long as nothing comes after that. Only the lag and what
is judged to be lost follow from it; where reading goes on never does.
"""

import threading
from collections import deque
from itertools import islice, zip_longest
from typing import NamedTuple

from penstock.feeds.shared import is_before
from penstock.model.position import Place

# Pages that are remembered one by one; older ones count as one page.
_PAGES = 1000
# Seconds: how old a record is that was read at the tip; and how many reads without a record, for
# how long, are evidence of it.
FRESH = 10.0
EMPTY_READS, EMPTY_SECONDS = 60, 60.0


class ReadThrough:
    """Of one walk through a shard. `through`: everything that was created before it was read; 0 if
    that is not known. Times are the server's, in seconds."""

    def __init__(self, through: float, now: float) -> None:
        self.through = through
        self.is_at_tip = through > now - FRESH
        self._empty = 0
        self._empty_since = 0.0

    def found(self, created: float, now: float) -> None:
        """Records were read; the last was created then."""
        self.through = created
        self.is_at_tip = created > now - FRESH
        self._empty = 0

    def found_nothing(self, now: float) -> None:
        if not self._empty:
            self._empty_since = now
        self._empty += 1
        if self._empty >= EMPTY_READS and now - self._empty_since >= EMPTY_SECONDS:
            self.is_at_tip = True
        if self.is_at_tip:
            self.through = max(self.through, now)


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
        return self._pages[-1].last_created

    def note(self, last: Place, first_created: float, last_created: float) -> None:
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
            while len(self._pages) > 1 and is_before(self._pages[0].last, place):
                self._pages.popleft()
            return self._at(place)

    def _at(self, place: Place | None) -> float:
        for page, following in zip_longest(self._pages, islice(self._pages, 1, None)):
            if page.last == place:
                # Where nothing is known of the place itself, then of what comes after it.
                is_known = page.last_created or following is None
                return page.last_created if is_known else following.first_created
            if not is_before(page.last, place):
                return page.first_created
        return self._pages[-1].last_created
