"""Which partitions of a feed there are, which of them may be read, and from where.

Partitions are looked up at the start, on a timer, and soon after one has ended. A partition is read
when its parents are done, and begins with their last bookmarks. A parent that the source no longer
lists counts as done; if it had a bookmark, its remaining changes are lost: a gap.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from penstock.backoff import delays
from penstock.errors import PositionLost
from penstock.feeds import Feed, Gap, Lineage
from penstock.position import START, Bookmark, Bookmarks, PartitionId
from penstock.reservoir.part import GapRecorder

__all__ = ["LOOKUP", "Openings", "Roster", "openings"]

# Seconds between two look-ups while nothing ends.
LOOKUP = 30.0
# Seconds between look-ups while children of an ended partition are awaited: from, to.
SOON, LATE = 0.05, 10.0


class Openings(NamedTuple):
    """What a look-up found: the partitions that may be read and are not, with their bookmarks;
    those with a bookmark that the source no longer lists (and that count as done); and those that
    are done and can be forgotten, because the source lists neither them nor a child of theirs."""

    ready: dict[PartitionId, Bookmark]
    gone: list[PartitionId]
    forgotten: list[PartitionId]


def openings(
    listed: Sequence[Lineage], known: Bookmarks, opened: Collection[PartitionId]
) -> Openings:
    """Pure: from what the source lists, what is known of each partition, and which are read."""
    names = {each.partition for each in listed}
    parents = {parent for each in listed for parent in each.parents}
    done = {name for name, bookmark in known.items() if bookmark.ended}
    gone = [name for name in known if name not in names | done and name not in opened]
    ready = {
        each.partition: known.get(each.partition) or _child(each, known)
        for each in listed
        if each.partition not in done
        and each.partition not in opened
        and all(parent in done or parent not in names | set(known) for parent in each.parents)
    }
    return Openings(ready, gone, [name for name in done if name not in names | parents])


def _child(lineage: Lineage, known: Bookmarks) -> Bookmark:
    """The first bookmark of a partition: its parents' last ones are in the mark."""
    parents = {name: known[name].to_json() for name in lineage.parents if name in known}
    return Bookmark(mark={"parents": parents}) if parents else START


class Roster:
    """The partitions of a feed. `clock` is monotonic seconds. One thread at a time looks up."""

    def __init__(
        self,
        feed: Feed,
        gaps: GapRecorder,
        *,
        clock: Callable[[], float] = time.monotonic,
        every: float = LOOKUP,
    ) -> None:
        self._feed = feed
        self._gaps = gaps
        self._clock = clock
        self._every = every
        self._next = clock()
        self._done: set[PartitionId] = set()
        self._waits: Iterator[float] | None = None  # for children that are awaited
        self._retries = delays()
        self._lock = threading.Lock()

    def look(self, known: Bookmarks, opened: Collection[PartitionId]) -> Openings | None:
        """Looks up if it is time to: None if it is not. Raises as `Feed.partitions` does, and
        PositionLost if all that could be read is lost."""
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
            found = openings(listed, known, opened)
            lost = [self._lose(name, known[name]) for name in found.gone]
            if self._feed.on_gap == "continue" and found.gone:
                ended = {name: known[name]._replace(ended=True) for name in found.gone}
                found = openings(listed, {**known, **ended}, opened)._replace(gone=list(ended))
            else:
                found = found._replace(gone=[])
            self._schedule(found)
        if lost and not found.ready and not opened and self._feed.on_gap != "continue":
            raise PositionLost(
                lost[0].detail, hint="on_gap: continue goes on with the partitions that there are"
            )
        return found

    def _schedule(self, found: Openings) -> None:
        if found.ready or found.gone or self._waits is None:
            self._waits = None
            self._next = self._clock() + self._every
        else:
            self._next = self._clock() + min(next(self._waits), self._every)

    def _lose(self, name: PartitionId, bookmark: Bookmark) -> Gap:
        gap = Gap(
            cause="partition_gone",
            after="" if bookmark.place is None else str(bookmark.place),
            detail=f"{self._feed.backend} no longer lists the partition {name}: its changes after"
            f" {bookmark.place or 'its beginning'} are lost",
            policy=self._feed.on_gap,
        )
        self._gaps.lost(name, gap, bookmark)
        return gap
