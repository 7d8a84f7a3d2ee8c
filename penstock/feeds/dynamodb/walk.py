"""How far a shard was read, as pure code: one walk through it, and what a process knows of it; when
the records at places were created; and when it may be read again.

No answer of DynamoDB Streams says that a shard has nothing more: an empty page proves nothing about
the next one. A shard counts as read up to now when a record that is seconds old was read, or after
a minute of reads without a record, and as long as nothing comes after that. Only the lag and what
is judged to be lost follow from it; where reading goes on never does.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import NamedTuple

from penstock.feeds.dynamodb.beginning import LIFETIME, ShardBeginning, is_before
from penstock.feeds.shared import comes_before
from penstock.model.position import Place
from penstock.process.backoff import delays
from penstock.wire.dynamodb.decoder import RecordHead, place_of

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
        self._empty_since = 0.0
        self.found(through, now)

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
    """When records were created; of `after` at `through`. 0: it is not known. Thread-safe."""

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
            while len(self._pages) > 1 and comes_before(self._pages[0].last, place):
                self._pages.popleft()
            return self._at(place)

    def _at(self, place: Place | None) -> float:
        for page, following in zip_longest(self._pages, islice(self._pages, 1, None)):
            if page.last == place:
                # Where nothing is known of the place itself, then of what comes after it.
                is_known = page.last_created or following is None
                return page.last_created if is_known else following.first_created
            if not comes_before(page.last, place):
                return page.first_created
        return self._pages[-1].last_created


# Empty pages of one walk after which a shard is read at the pace of its tip, which they may not be.
TO_THE_TIP = 5
_WINDOW = 1.0  # seconds in which the service counts reads


@dataclass(frozen=True, slots=True)
class Tip:
    """Of one walk through a shard: how many empty pages it had, and when the next may be read."""

    empty_pages: int = 0
    not_before: float = 0.0

    @property
    def is_sought(self) -> bool:
        """Whether an empty page is followed by another read at once."""
        return self.empty_pages < TO_THE_TIP

    def found(self, count: int, asked: float, pause: float) -> "Tip":
        """After a page of so many records, asked for then; at the tip one every `pause` seconds."""
        after = Tip(self.empty_pages + (not count))
        return Tip(after.empty_pages, asked + pause) if not count and not after.is_sought else after


class ShardPace:
    """Of one shard, whoever reads it in this process: its calls of the last second, and whether
    there are too many. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: list[float] = []
        self.answered()

    def due(self, reads: int) -> float:
        """When the next read may be, of at most `reads` a second."""
        recent = self._recent
        full = len(recent) >= reads
        return max(self._not_before, recent[-reads] + _WINDOW if full else 0.0)

    def reads(self, now: float) -> None:
        with self._lock:
            self._recent = [each for each in self._recent if each > now - _WINDOW] + [now]

    def answered(self) -> None:
        self.is_throttled = False
        self._not_before = 0.0
        self._waits = delays(first=0.5)

    def throttled(self, now: float) -> None:
        """The service refused the call because they are too many: fewer, for a while."""
        self.is_throttled = True
        self._not_before = now + next(self._waits)


class WalkOrigin(NamedTuple):
    """Where a walk comes from: after a record of the feed's user; or from `since` (None: the
    horizon), asked for at `asked` (0 for the horizon), in which alone two differ that began at
    "now" in the same second."""

    after: Place | None
    since: float | None = None
    asked: float = 0.0


class ShardWalk:
    """Everything up to the next iterator was read. `now`: the service's; `clock`: monotonic."""

    def __init__(self, beginning: ShardBeginning, *, now: float, clock: float) -> None:
        if beginning.after is None and not beginning.asked:
            beginning = replace(beginning, asked=now)
        # Counts until there is a record, and while it scans.
        self.beginning = beginning
        # The last record read; when it was created (0: there is none), and when it was read.
        self.after = beginning.after
        self.created, self.read_at = 0.0, now
        # Whether records are passed over that are older than the beginning.
        self.scans = False
        # Of the next page; None: to be made anew, or the shard has ended.
        self.iterator: str | None = beginning.live_iterator(now) or None
        # When that was made, in monotonic seconds.
        self.iterated = clock - (now - beginning.asked if self.iterator else 0.0)
        self.read_through = ReadThrough(beginning.through, now)
        self.tip = Tip()

    @property
    def origin(self) -> WalkOrigin:
        if self.after is not None and not self.scans:
            return WalkOrigin(self.after)
        begins = self.beginning
        return WalkOrigin(None, begins.since, 0.0 if begins.since is None else begins.asked)

    def go_on(self, walk: "ShardWalk | None", clock: float) -> None:
        """Takes over what this walk has read, if it came from the same place."""
        if walk is None or walk.origin != self.origin or not self.beginning.pinned:
            return
        self.after, self.scans = walk.after, walk.scans
        if clock - walk.iterated < LIFETIME:
            self.iterator, self.iterated = walk.iterator, walk.iterated
            self.read_through, self.tip = copy(walk.read_through), walk.tip

    def remembered(self) -> "ShardWalk | None":
        """What the next following from here goes on with, in this process."""
        if self.iterator is None or (self.after is None and not self.beginning.pinned):
            return None
        kept = copy(self)
        kept.read_through = copy(self.read_through)
        return kept

    def expire(self) -> bool:
        """The iterator has expired; false where nothing but it says where to go on."""
        if self.after is None and not self.beginning.pinned:
            return False
        self.iterator = None
        self.beginning = self.beginning.without_iterator()
        return True

    def read(self, records: Sequence[RecordHead], now: float) -> int:
        """Records were read; how many of them are passed over."""
        skip, since = 0, self.beginning.since if self.scans else None
        if since is not None:
            while skip < len(records) and is_before(records[skip].created, since):
                skip += 1
            self.scans = skip == len(records)  # times may go back: records are not sorted by them
        self.after = place_of(records[-1].sequence)
        self.created, self.read_at = records[-1].created, now
        self.read_through.found(self.created, now)
        return skip

    def is_at_the_horizon(self, now: float) -> bool:
        """Whether the horizon moved after the iterator was made: it is what we are to begin at."""
        is_at = self.after is None and self.beginning.since is None
        return is_at and not self.beginning.is_overdue(now)


class KnownShard:
    """A shard that this process reads. `walk` is replaced after each answer; the next following of
    the same origin goes on with it. `refusals`: calls since then that did not find records."""

    def __init__(self) -> None:
        self.pace = ShardPace()
        self.walk: ShardWalk | None = None
        self.refusals = 0

    def begin(self, beginning: ShardBeginning, iterator: str) -> None:
        """An iterator that is exact where `beginning` is a time, for this process."""
        self.walk = ShardWalk(beginning, now=beginning.asked, clock=time.monotonic())
        self.walk.iterator = iterator
        self.walk.read_through = ReadThrough(beginning.asked, beginning.asked)
