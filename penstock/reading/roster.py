"""Which partitions of a feed there are, which of them may be read, and from where.

Partitions are looked up at the start, on a timer, and often after one has ended. A partition is
read when its parents are done, from the first bookmark that the feed made for it.

One listing may be stale, so nothing follows from what a single one leaves out. While something is
known, a partition that descends from nothing known comes after a hole: it is opened behind a gap,
and only when nothing known is missing.
"""

import math
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.feeds import Feed, Lineage, Listing
from penstock.feeds.shared import LINEAGE_BROKEN, behind_hole, is_behind_hole
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId
from penstock.process.backoff import Clock, delays

# Seconds between two look-ups while nothing ends.
LOOKUP = 30.0
# Seconds after which a second listing says whether a partition is absent, or has no more children;
# and the longest between two questions for the first child of a partition.
AGAIN = 2.0
# Seconds between the first two of these, and between those of a partition that ended long ago.
SOON, LATE = 0.05, 10.0
# Seconds for which more children of an ended partition are awaited; and for which the first is.
MORE, FIRST = 120.0, 3600.0


class LookUp(NamedTuple):
    """What a look-up found. `ready`: the partitions that may be read and are not, with their
    bookmarks. `missing`: those that the listing leaves out although one with a bookmark, or a
    child, is not done, and those that descend from nothing known. `forgotten`: those that are done
    and not listed, and whose children are all known. `superseded`: see there, once what is ready is
    known. `parents`: of what is ready."""

    ready: dict[PartitionId, Bookmark]
    missing: set[PartitionId]
    forgotten: list[PartitionId]
    superseded: frozenset[PartitionId] = frozenset()
    parents: Mapping[PartitionId, tuple[PartitionId, ...]] = MappingProxyType({})


def openings(
    listed: Iterable[Lineage],
    known: Bookmarks,
    opened: Collection[PartitionId],
    absent: Collection[PartitionId] = (),
    wanted: Collection[PartitionId] = (),
) -> LookUp:
    """Pure: from what the source lists, what is known of each partition, which are read, which were
    missing in several listings, and which must be read in any case."""
    lineages = {each.partition: each for each in listed}
    done = {name for name, bookmark in known.items() if bookmark.ended}
    past = _ancestors(lineages, known)  # done, and forgotten
    over = {*done, *past, *opened}
    closed = [each for name, each in lineages.items() if name not in over]
    hidden = known.keys() - lineages.keys() - done
    unread = (hidden | set(wanted)) - lineages.keys() - done - set(opened)
    orphans = {
        parent
        for each in closed
        if each.partition not in known
        for parent in each.parents
        if parent not in lineages and parent not in known
    }
    unfinished = (lineages.keys() | known.keys() | orphans - set(absent)) - done - past
    unknown = _without_known_ancestors(lineages, known, past) if known else set()
    ready = {}
    for each in closed:
        name = each.partition
        if not unfinished.isdisjoint(each.parents):
            continue
        if name not in unknown:
            ready[name] = known.get(name) or each.first or START
        elif name in absent and not hidden:
            hole = behind_hole(LINEAGE_BROKEN, _broken(each))
            ready[name] = each.first or START if each.whole else hole
    ready |= {name: known.get(name, START) for name in sorted(unread & set(absent))}
    return LookUp(ready, unread | orphans | unknown, _forgotten(lineages, known, done | past))


def _ancestors(lineages: Mapping[PartitionId, Lineage], known: Bookmarks) -> set[PartitionId]:
    """Of known partitions: those that are not known any more. What is behind a hole that has not
    been passed has no such ancestors: they were lost."""
    found: set[PartitionId] = set()
    waiting = [
        name for name, each in known.items() if name in lineages and not is_behind_hole(each)
    ]
    while waiting:
        parents = lineages[waiting.pop()].parents
        fresh = {each for each in parents if each not in found and each not in known}
        found |= fresh
        waiting += [name for name in fresh if name in lineages]
    return found


def _without_known_ancestors(
    lineages: Mapping[PartitionId, Lineage], known: Bookmarks, past: Collection[PartitionId]
) -> set[PartitionId]:
    """Those that do not descend from known ones alone, and whose parents are not among them."""
    sound = {*known, *past}
    without: set[PartitionId] = set()
    waiting = [each for name, each in lineages.items() if name not in sound]
    while waiting:
        left = []
        for each in waiting:
            if each.parents and sound.issuperset(each.parents):
                sound.add(each.partition)
            elif any(parent in lineages and parent not in sound for parent in each.parents):
                left.append(each)  # its parents come first
            elif each.parents or each.first is None:
                without.add(each.partition)
            else:  # new, and none of it is lost
                sound.add(each.partition)
        if len(left) == len(waiting):
            break
        waiting = left
    return without


def _forgotten(
    lineages: Mapping[PartitionId, Lineage], known: Bookmarks, done: Collection[PartitionId]
) -> list[PartitionId]:
    children: dict[PartitionId, list[PartitionId]] = {}
    for each in lineages.values():
        for parent in each.parents:
            children.setdefault(parent, []).append(each.partition)
    kept = {*known, *done}
    return [
        name
        for name, bookmark in known.items()
        if bookmark.ended
        and name not in lineages
        and name in children
        and kept.issuperset(children[name])
    ]


def superseded(listed: Iterable[Lineage], known: Bookmarks) -> frozenset[PartitionId]:
    """Those that have ended and whose listed children, one at least, are all known: a position
    without them says the same, because ancestors of known partitions are done. What is no partition
    of the source, or is not listed any more, stays."""
    children: dict[PartitionId, list[PartitionId]] = {each.partition: [] for each in listed}
    for each in listed:
        for parent in each.parents:
            if parent in children:
                children[parent].append(each.partition)
    return frozenset(
        name
        for name, found in children.items()
        if found and name in known and known[name].ended and known.keys() >= set(found)
    )


def _broken(lineage: Lineage) -> str:
    parents = f", whose parents were {', '.join(lineage.parents)}," if lineage.parents else ""
    return (
        f"the partition {lineage.partition}{parents} descends from none that was read: what was"
        " between them is lost"
    )


class Absences:
    """Since when listings have left partitions out."""

    def __init__(self) -> None:
        self._since: dict[PartitionId, float] = {}

    def confirmed(
        self, missing: Collection[PartitionId], now: float, *, counts: bool = True
    ) -> set[PartitionId]:
        """Missing in every listing of the last `AGAIN` seconds, two at least, if this counts."""
        self._since = {
            name: self._since.get(name, now) for name in missing if counts or name in self._since
        }
        if not counts:
            return set()
        return {name for name, since in self._since.items() if now - since >= AGAIN}


class _Ended:
    """One that has ended: when children were `asked` for last, and the first was `found`."""

    def __init__(self, since: float) -> None:
        self.since = self.asked = since
        self.found = math.inf

    @property
    def due(self) -> float:
        """When to ask for its children again: a child is read two seconds after it is listed, also
        one that is listed a little later than another."""
        age = self.asked - self.since
        wait = min(max(SOON, age), AGAIN)
        if self.asked >= self.found:
            return self.asked + max(wait, (self.asked - self.found) / 5) if age < MORE else math.inf
        return self.asked + (wait if age < FIRST else LATE)


class Roster:
    """The partitions of a feed. One thread at a time looks up."""

    def __init__(self, feed: Feed, *, clock: Clock = time.monotonic, every: float = LOOKUP) -> None:
        self._feed, self._clock = feed, clock
        self._every = every  # seconds between look-ups of all partitions
        self._next = self._whole = clock()  # the next look-up, and the next one of all partitions
        self._ended: dict[PartitionId, _Ended] = {}  # that are known to have ended
        self._absences = Absences()  # of partitions that are known, or parents
        self._childless = Absences()  # of partitions that may be forgotten
        self._retries = delays()  # after look-ups that failed
        self._lock = threading.Lock()  # one look-up at a time

    @property
    def due_in(self) -> float:
        """Seconds until it is time to look up, unless a partition ends before."""
        return max(0.0, self._next - self._clock())

    def heirs(self, partition: PartitionId, ended: Bookmark) -> Sequence[Lineage]:
        """The children that have what a partition had after a bookmark, which has ended; none where
        it has that itself. Does I/O."""
        if not self._feed.splits_move_changes:
            return ()
        listing = self._feed.partitions({partition: ended})
        return [each for each in listing if partition in each.parents]

    def look_up(
        self,
        known: Bookmarks,
        opened: Collection[PartitionId],
        wanted: Collection[PartitionId] = (),
    ) -> LookUp | None:
        """Looks up if it is time to: None if it is not. Raises as `Feed.partitions` does."""
        with self._lock:
            now, before = self._clock(), self._ended
            done = [name for name, bookmark in known.items() if bookmark.ended]
            self._ended = {name: before.get(name) or _Ended(now) for name in done}
            fresh = [name for name in done if name not in before]
            if fresh:  # their children may be there
                self._next = now
            if now < self._next:
                return None
            self._next = now + next(self._retries)  # if that fails
            asked = fresh + [name for name in done if name in before and before[name].due <= now]
            listing = self._feed.children(known, asked) if now < self._whole else None
            if listing is None:
                listing = self._feed.partitions(known)
                asked, self._whole = done, now
            self._retries = delays()
            return self._found(listing, known, opened, wanted, asked)

    def _found(
        self,
        listing: Listing,
        known: Bookmarks,
        opened: Collection[PartitionId],
        wanted: Collection[PartitionId],
        asked: Collection[PartitionId],
    ) -> LookUp:
        now, counts = self._clock(), listing.complete
        first = openings(listing, known, opened, (), wanted)
        absent = self._absences.confirmed(first.missing, now, counts=counts)
        over = self._childless.confirmed(first.forgotten, now, counts=counts)
        found = openings(listing, known, opened, absent, wanted)
        self._plan(listing, now, asked, in_doubt=not first.missing <= absent)
        return found._replace(
            forgotten=[name for name in first.forgotten if name in over],
            superseded=superseded(listing, {**known, **found.ready}),
            parents={
                each.partition: each.parents for each in listing if each.partition in found.ready
            },
        )

    def _plan(
        self, listing: Listing, now: float, asked: Collection[PartitionId], *, in_doubt: bool
    ) -> None:
        """When to look up next, after children of these were asked for."""
        parents = {parent for each in listing for parent in each.parents}
        for each in (self._ended[name] for name in asked):
            each.asked = now
        for name in self._ended.keys() & parents:
            self._ended[name].found = min(self._ended[name].found, now)
        if listing.complete or self._whole <= now:
            self._whole = now + (self._every if listing.complete else AGAIN)
        if in_doubt:
            self._whole = min(self._whole, now + AGAIN)
        self._next = min([self._whole, *(each.due for each in self._ended.values())])
