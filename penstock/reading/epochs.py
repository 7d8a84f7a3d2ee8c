"""Open micro-batches: long epochs, a ticket for each group of partitions.

An epoch's end is known only when it is over, so Spark's offset is no position but a number. What is
durable comes from the tasks while they write: pages are released at once, and bookmarks are saved
and then acknowledged to the source during the epoch, by a thread that keeps no page waiting for a
disk. Partitions join, end and leave while an epoch is open. A start resumes from the stored
bookmarks, and repeats what the sink's own record of places (delivery `exactly-once`) or the message
ids then drop.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.errors import Unavailable
from penstock.position import START, Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.reading.assignments import AssignmentDraw, Assignments
from penstock.reading.draw import OpenDraw
from penstock.reading.keeper import Keeper
from penstock.reading.positions import Positions
from penstock.reading.roster import Roster
from penstock.reservoir.reservoir import Reservoir

__all__ = ["Epoch", "Epochs"]

# The first epochs are short: Spark's code for turning one over is loaded and partly compiled while
# nothing waits. (Measured: the turn after 0, 3, 20 of them takes 0.4, 0.17, 0.13 s.)
WARM_UP = 3
SHORT = 0.2
# An epoch whose time is over goes on while there is more, for so many times its time: what comes
# while epochs are turned over waits.
LONGER = 2.0
# Seconds between two looks at whether it is time to save, when tasks report nothing new.
SETTLE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One ticket: group `group` of `groups`, for `seconds`; up to `most` while more waits."""

    group: int
    groups: int
    seconds: float
    most: float


class Epochs:
    """Plans epochs over a reservoir. The page server's threads call `stored`, and one of them
    `watch`; `slots` says how many tasks may run at a time now (None: enough); `clock` is monotonic
    seconds."""

    def __init__(
        self,
        reservoir: Reservoir | Assignments,
        roster: Roster,
        positions: Positions,
        *,
        seconds: float,
        clock: Callable[[], float],
        slots: Callable[[], int | None] = lambda: None,
        groups: Callable[[], int] = lambda: 1,
    ) -> None:
        self._reservoir = reservoir
        self._roster = roster
        self._positions = positions
        self._keeper = Keeper(reservoir, positions)
        self._seconds = seconds
        self._slots = slots
        self._wanted = groups
        self._groups = 1
        self._clock = clock
        self._settled = clock()
        self._saving = threading.Lock()
        self._lock = threading.Lock()  # of what follows; never held for long
        self._durable: dict[PartitionId, Bookmark] = {}
        self._released = 0  # guarded by `reservoir.wake`
        self._fresh = threading.Event()
        self._had_slots = False

    def begin(self, bookmarks: Bookmarks) -> None:
        """Everything up to `bookmarks` is durable: the stored ones of a start."""
        with self._lock:
            self._durable = dict(bookmarks)

    @property
    def durable(self) -> Bookmarks:
        """Everything up to here is in the sink."""
        with self._lock:
            return dict(self._durable)

    def plan(self, number: int) -> list[Epoch]:
        """The tickets of epoch `number`, from 1; the epoch before it is over, and durable."""
        self._look()
        self._groups = max(1, self._wanted())
        lacking = self._lacks_slots()
        self._had_slots = not lacking
        seconds = SHORT if number <= WARM_UP or lacking else self._seconds
        most = SHORT if lacking else LONGER * self._seconds
        return [
            Epoch(group=group, groups=self._groups, seconds=seconds, most=most)
            for group in range(self._groups)
        ]

    def is_cut_short(self) -> bool:
        """Whether the open epoch was planned as a long one, and slots are gone since then: it must
        end, so that groups and queries without a slot have their turn. Or whether there are more by
        now, and tasks that read by themselves may be more."""
        return self._had_slots and (self._lacks_slots() or self._wanted() > self._groups)

    def _lacks_slots(self) -> bool:
        slots = self._slots()
        return slots is not None and slots < self._groups

    def draw(self, group: int, groups: int) -> OpenDraw | AssignmentDraw:
        """The pages of one ticket, from where its partitions are durable; or the partitions that
        its task reads by itself."""
        if isinstance(self._reservoir, Assignments):
            return AssignmentDraw(self._reservoir, group, groups)
        return OpenDraw(self._reservoir, group, groups, self._place)

    def _place(self, partition: PartitionId) -> Place | None:
        return self._durable.get(partition, START).place

    def stored(self, places: Position) -> None:
        """A task reports that everything up to `places` is durable: releases the pages, and wakes
        `watch` to save it."""
        fresh: dict[PartitionId, Place] = {}
        with self._lock:
            for partition, place in places.items():
                known = self._durable.get(partition, START)
                if not known.ended and (known.place is None or place > known.place):
                    self._durable[partition] = known._replace(place=place)
                    fresh[partition] = place
        if not fresh:
            return
        with self._reservoir.wake:
            self._released += self._reservoir.stored(fresh)
            done = self._done(fresh)
        self._end(done)
        self._fresh.set()

    def marked(self, bookmarks: Bookmarks) -> None:
        """The same from a task that reads the source by itself: with the bookmarks to save."""
        assert isinstance(self._reservoir, Assignments)
        with self._lock:
            fresh = {
                name: bookmark
                for name, bookmark in bookmarks.items()
                if name in self._durable and _is_newer(bookmark, self._durable[name])
            }
            self._durable |= {name: each._replace(ended=False) for name, each in fresh.items()}
        self._reservoir.report(fresh)
        self._fresh.set()

    def watch(self, timeout: float = 0.0) -> None:
        """Opens and ends partitions, saves what is durable if it is time to, then acknowledges it.
        Waits at most `timeout` seconds for something to do.

        Raises LeaseLost if another process saved meanwhile, and PositionLost.
        """
        self._fresh.wait(timeout)
        with self._reservoir.wake:
            done = self._done(self._reservoir.ended)
        self._end(done)
        self._look()
        if self._fresh.is_set() or self._clock() - self._settled >= SETTLE:
            self.settle(force=False)

    def settle(self, *, force: bool = True) -> None:
        """Saves what is durable (now, unless `force` is false) and acknowledges it. Raises as
        `watch` does."""
        with self._saving:
            self._fresh.clear()
            self._settled = self._clock()
            with self._reservoir.wake:
                released, self._released = self._released, 0
            self._keeper.save(self.durable, released, force=force)
            for name in list(self._positions.lost):
                self.revoke(name)

    def revoke(self, partition: PartitionId) -> None:
        """The partition is another instance's: nothing of it is read, delivered or saved here any
        more, apart from what a task has in its hands."""
        self._reservoir.close(partition)
        with self._lock:
            self._durable.pop(partition, None)

    def _done(self, candidates: Iterable[PartitionId]) -> list[PartitionId]:
        """Those that have ended, and are wholly durable; with the reservoir's lock held."""
        ended = self._reservoir.ended
        return [
            name
            for name in candidates
            if name in ended and self._reservoir.is_done(name, self._place(name))
        ]

    def _end(self, partitions: Iterable[PartitionId]) -> None:
        for name in partitions:
            place = self._place(name)
            last = self._reservoir.bookmark(name, place) or Bookmark(place)
            with self._lock:
                if self._durable.get(name, START).ended:  # another thread was faster
                    continue
                self._durable[name] = last._replace(ended=True)
            self._reservoir.close(name)
            self._fresh.set()

    def _look(self) -> None:
        taken = {*self._reservoir.open_partitions, *self._positions.lost}
        try:
            found = self._roster.look(self.durable, taken)
        except Unavailable:
            return  # the roster tries again; who is read already goes on
        if found is None:
            return
        with self._lock:
            for name in found.forgotten:
                self._durable.pop(name, None)
            for name, bookmark in found.ready.items():
                self._durable.setdefault(name, bookmark)
        for name, bookmark in found.ready.items():
            self._reservoir.open(name, bookmark)
        if found.forgotten:
            self._positions.forget(found.forgotten)


def _is_newer(bookmark: Bookmark, known: Bookmark) -> bool:
    """Whether a report of it is no late one of an earlier place."""
    if known.ended:
        return False
    return known.place is None or (bookmark.place is not None and bookmark.place >= known.place)
