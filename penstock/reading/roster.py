"""Which partitions of a feed there are, which of them may be read, and from where.

Partitions are looked up at the start, on a timer, and soon after one has ended. A partition is read
when its parents are done, and begins with their last bookmarks.

One listing may be stale, so a partition counts as absent only when several have left it out. An
absent parent that nothing is known of is done. One with a bookmark is read all the same: reading
says what is lost.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from penstock.backoff import delays
from penstock.feeds import Feed, Lineage
from penstock.position import START, Bookmark, Bookmarks, PartitionId

__all__ = [
    "AGAIN", "LOOKUP", "Absences", "LeaseChanges", "Openings", "Roster", "lease_changes",
    "openings",
]  # fmt: skip

# Seconds between two look-ups while nothing ends.
LOOKUP = 30.0
# Seconds between look-ups while children of an ended partition are awaited: from, to.
SOON, LATE = 0.05, 10.0
# Seconds after which a second listing says whether a partition is absent.
AGAIN = 2.0


class Openings(NamedTuple):
    """What a look-up found: the partitions that may be read and are not, with their bookmarks;
    those that the listing leaves out although one with a bookmark, or a child, is not done; and
    those that are done and can be forgotten, because the source lists neither them nor a child of
    theirs."""

    ready: dict[PartitionId, Bookmark]
    missing: set[PartitionId]
    forgotten: list[PartitionId]


def openings(
    listed: Sequence[Lineage],
    known: Bookmarks,
    opened: Collection[PartitionId],
    absent: Collection[PartitionId] = (),
    wanted: Collection[PartitionId] = (),
) -> Openings:
    """Pure: from what the source lists, what is known of each partition, which are read, which are
    missing for long enough to count as absent, and which must be read in any case."""
    names = {each.partition for each in listed}
    parents = {parent for each in listed for parent in each.parents}
    done = {name for name, bookmark in known.items() if bookmark.ended}
    closed = [each for each in listed if each.partition not in done | set(opened)]
    unread = {*known, *wanted} - names - done - set(opened)
    orphans = {
        parent
        for each in closed
        if each.partition not in known
        for parent in each.parents
        if parent not in names | set(known)
    }
    unfinished = (names | set(known) | orphans - set(absent)) - done
    ready = {
        each.partition: known.get(each.partition) or _child(each, known)
        for each in closed
        if unfinished.isdisjoint(each.parents)
    }
    ready |= {name: known.get(name, START) for name in sorted(unread & set(absent))}
    return Openings(ready, unread | orphans, [name for name in done if name not in names | parents])


class LeaseChanges(NamedTuple):
    """Which partitions get a lease, and which lose theirs."""

    made: list[PartitionId]
    dropped: list[PartitionId]


def lease_changes(listed: Sequence[Lineage], known: Bookmarks) -> LeaseChanges:
    """Pure: what a look-up means for the leases, each of which has a bookmark. A partition gets
    one when its parents are done. One that is done keeps it until its children have theirs, for
    they begin with its bookmark; without children, while it is listed."""
    children: dict[PartitionId, list[PartitionId]] = {}
    for each in listed:
        for parent in each.parents:
            children.setdefault(parent, []).append(each.partition)
    past = dict.fromkeys(_ancestors(listed, known), Bookmark(ended=True))
    leased = {*known, *past}  # now or before
    found = openings(listed, {**past, **known}, ())
    dropped = [
        name
        for name, bookmark in known.items()
        if bookmark.ended
        and (leased.issuperset(children[name]) if name in children else name in found.forgotten)
    ]
    return LeaseChanges([name for name in found.ready if name not in known], dropped)


def _ancestors(listed: Sequence[Lineage], known: Bookmarks) -> set[PartitionId]:
    """Of leased partitions: done, and their leases dropped."""
    parents = {each.partition: each.parents for each in listed}
    found: set[PartitionId] = set()
    waiting = list(known)
    while waiting:
        fresh = set(parents.get(waiting.pop(), ())) - found - known.keys()
        found |= fresh
        waiting += fresh
    return found


class Absences:
    """Since when listings have left partitions out."""

    def __init__(self) -> None:
        self._since: dict[PartitionId, float] = {}

    def confirmed(self, missing: Collection[PartitionId], now: float) -> set[PartitionId]:
        """Those that were missing in every listing of the last `AGAIN` seconds, at least two."""
        self._since = {name: self._since.get(name, now) for name in missing}
        return {name for name, since in self._since.items() if now - since >= AGAIN}


def _child(lineage: Lineage, known: Bookmarks) -> Bookmark:
    """The first bookmark of a partition: its parents' last ones are in the mark."""
    parents = {name: known[name].to_json() for name in lineage.parents if name in known}
    return Bookmark(mark={"parents": parents}) if parents else START


class Roster:
    """The partitions of a feed. `clock` is monotonic seconds. One thread at a time looks up."""

    def __init__(
        self,
        feed: Feed,
        *,
        clock: Callable[[], float] = time.monotonic,
        every: float = LOOKUP,
    ) -> None:
        self._feed = feed
        self._clock = clock
        self._every = every
        self._next = clock()
        self._done: set[PartitionId] = set()
        self._waits: Iterator[float] | None = None  # for children that are awaited
        self._absences = Absences()
        self._retries = delays()
        self._lock = threading.Lock()

    def look(
        self,
        known: Bookmarks,
        opened: Collection[PartitionId],
        wanted: Collection[PartitionId] = (),
    ) -> Openings | None:
        """Looks up if it is time to: None if it is not. Raises as `Feed.partitions` does."""
        with self._lock:
            done = {name for name, bookmark in known.items() if bookmark.ended}
            if not done <= self._done:  # a partition has ended: its children may be there
                self._waits = delays(first=SOON, limit=LATE)
                self._next = self._clock()
            self._done = done
            if self._clock() < self._next:
                return None
            self._next = self._clock() + next(self._retries)  # if that fails
            listed = self._feed.partitions()
            self._retries = delays()
            missing = openings(listed, known, opened, (), wanted).missing
            absent = self._absences.confirmed(missing, self._clock())
            found = openings(listed, known, opened, absent, wanted)
            self._schedule(found, is_in_doubt=not missing <= absent)
            return found

    def _schedule(self, found: Openings, *, is_in_doubt: bool) -> None:
        wait = self._every
        if found.ready or self._waits is None:
            self._waits = None
        else:
            wait = min(next(self._waits), wait)
        self._next = self._clock() + (min(wait, AGAIN) if is_in_doubt else wait)
