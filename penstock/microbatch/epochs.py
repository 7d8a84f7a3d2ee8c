"""Open micro-batches: long epochs, a ticket for each group of partitions.

An epoch's end is known only when it is over, so Spark's offset is no position but a number. What is
durable comes from the tasks while they write: pages are released at once, and bookmarks are saved
and then acknowledged to the source during the epoch, by a thread that keeps no page waiting for a
disk. Partitions join, end and leave while an epoch is open. A start resumes from the stored
bookmarks, and repeats what the sink's own record of places (delivery `exactly-once`) or the message
ids then drop.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import suppress

from penstock.microbatch.assignments import AssignmentDraw, Assignments
from penstock.microbatch.draw import Draw, OpenDraw
from penstock.microbatch.options import SourceOptions
from penstock.microbatch.ticket import (
    FoundGap,
    Report,
    ReportedBookmarks,
    ReportedPlaces,
    Request,
    Rows,
)
from penstock.model.errors import Unavailable
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.process.backoff import Clock
from penstock.reading.gaps import GapLog
from penstock.reading.keeper import Keeper
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster

# The first epochs are short: Spark's code for turning one over is loaded and partly compiled while
# nothing waits. (Measured: the turn after 0, 3, 20 of them takes 0.4, 0.17, 0.13 s.)
WARM_UP = 3
SHORT = 0.2
# An epoch whose time is over goes on while there is more, for so many times its time: what comes
# while epochs are turned over waits.
LONGER = 2.0
# Seconds between two questions whether it is time to save, when tasks report nothing new.
SAVE = 0.5


class Lengths:
    """How long epochs are, and for how many groups: one, or (`is_spread`) one a task slot."""

    def __init__(self, options: SourceOptions, *, is_spread: bool = False) -> None:
        self._options, self._is_spread = options, is_spread
        self._groups = 1
        self._had_slots = False

    def next(self, number: int) -> list[Request]:
        """What the tickets of epoch `number`, from 1, are for."""
        self._groups = self._wanted()
        lacking = self._lacks_slots()
        self._had_slots = not lacking
        usual = self._options.epoch
        seconds = SHORT if number <= WARM_UP or lacking else usual
        most = SHORT if lacking else LONGER * usual
        return [
            Request(group=group, groups=self._groups, seconds=seconds, most=most)
            for group in range(self._groups)
        ]

    def ends_early(self) -> bool:
        """Whether the open epoch was planned as a long one, and slots are gone since then: it must
        end, so that groups and queries without a slot have their turn. Or whether there are more by
        now, and tasks that read by themselves may be more."""
        return self._had_slots and (self._lacks_slots() or self._wanted() > self._groups)

    def _wanted(self) -> int:
        return self._options.live_slots() or 1 if self._is_spread else 1

    def _lacks_slots(self) -> bool:
        slots = self._options.live_slots()
        return slots is not None and slots < self._groups


class Epochs(ABC):
    """Plans epochs, and knows what is durable meanwhile, by tasks. One thread calls `watch`."""

    def __init__(
        self,
        reader: Reservoir | Assignments,
        keeper: Keeper,
        roster: Roster,
        lengths: Lengths,
        clock: Clock,
    ) -> None:
        self.reader = reader  # of the partitions: this process, or tasks
        self._keeper = keeper
        self._roster = roster  # finds others
        self._lengths, self._clock = lengths, clock
        self._saved_at = clock()
        self._saving = threading.Lock()  # one save at a time
        self._lock = threading.Lock()  # of `_durable`; never held for long
        self._durable: dict[PartitionId, Bookmark] = {}  # everything up to here is in the sink
        self._fresh = threading.Event()  # something may be saved

    def begin(self, bookmarks: Bookmarks) -> None:
        """Everything up to `bookmarks` is durable: the stored ones of a start."""
        with self._lock:
            self._durable = dict(bookmarks)

    @property
    def durable(self) -> Bookmarks:
        with self._lock:
            return dict(self._durable)

    def plan(self, number: int) -> list[Request]:
        """What is asked for in epoch `number`, from 1; the epoch before it is over, and durable."""
        self._look_up()
        return self._lengths.next(number)

    def ends_early(self) -> bool:
        return self._lengths.ends_early()

    @abstractmethod
    def draw(self, group: int, groups: int) -> Draw:
        """What the task of one ticket gets."""

    @abstractmethod
    def take(self, report: Report) -> None:
        """Takes in what a task reports."""

    def check(self) -> None:
        """Raises what reading failed with, where this process reads."""
        return

    def stop(self, timeout: float) -> None:
        """Reads no more, where this process does; waits at most `timeout` seconds."""
        return

    def watch(self, timeout: float = 0.0) -> None:
        """Opens and ends partitions, saves what is durable if it is time to, then acknowledges it.
        Waits at most `timeout` seconds for something to do, or until it is time to look up.

        Raises LeaseLost if another process saved meanwhile, and PositionLost.
        """
        self._fresh.wait(min(timeout, self._roster.due_in))
        self._end()
        self._look_up()
        if self._fresh.is_set() or self._clock() - self._saved_at >= SAVE:
            self.save(force=False)

    def save(self, *, force: bool = True) -> None:
        """Saves what is durable (now, if `force`) and acknowledges it; see `Keeper.save`."""
        with self._saving:
            self._fresh.clear()
            self._saved_at = self._clock()
            self._keeper.save(self.durable, self._released(), force=force)

    def _look_up(self) -> None:
        try:
            found = self._roster.look_up(self.durable, self.reader.open_partitions)
        except Unavailable:
            return  # the roster tries again; who is read already goes on
        if found is None:
            return
        with self._lock:
            for name, bookmark in found.ready.items():
                self._durable.setdefault(name, bookmark)
        if any(found.parents.values()):
            # Parents that have ended, and the first bookmarks of their children, before a child is
            # read: after a crash a feed may divide a parent in another way.
            with suppress(Unavailable):
                self.save()
        for name, bookmark in found.ready.items():
            self.reader.open(name, bookmark)
        if found.forgotten:
            with self._saving:
                is_done = self._keeper.forget(found.forgotten, self.durable)
            with self._lock:
                for name in found.forgotten if is_done else ():
                    self._durable.pop(name, None)

    def _end(self) -> None:
        """Ends partitions that have ended at the source, and are wholly durable."""
        return

    def _released(self) -> int:
        """How many changes have become durable since the last call, where they are counted."""
        return 0


class BufferedEpochs(Epochs):
    """Where pages are read and buffered in this process."""

    def __init__(
        self,
        reservoir: Reservoir,
        roster: Roster,
        positions: Positions,
        lengths: Lengths,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(reservoir, Keeper(positions, reservoir), roster, lengths, clock)
        self._reservoir = reservoir
        self._count = 0  # of changes since the last save; guarded by `reservoir.wake`

    def draw(self, group: int, groups: int) -> OpenDraw:
        begins = {
            name: each.place for name, each in self.durable.items()
            if each.place is not None and each.mark  # without one an operator gave it
        }  # fmt: skip
        return OpenDraw(self._reservoir, self._place, begins=begins)

    def take(self, report: Report) -> None:
        if isinstance(report, ReportedPlaces):
            self.stored(report.places)

    def check(self) -> None:
        with self._reservoir.wake:
            self._reservoir.check()

    def stop(self, timeout: float) -> None:
        self._reservoir.stop(timeout)

    def stored(self, places: Position) -> None:
        """A task reports what is durable: releases the pages, and wakes `watch` to save it."""
        fresh: dict[PartitionId, Place] = {}
        with self._lock:
            for partition, place in places.items():
                known = self._durable.get(partition, START)
                if not known.ended and (known.place is None or place > known.place):
                    self._durable[partition] = known._replace(place=place)
                    fresh[partition] = place
        if fresh:
            with self._reservoir.wake:
                self._count += self._reservoir.stored(fresh)
            self._end(fresh)
            self._fresh.set()

    def _place(self, partition: PartitionId) -> Place | None:
        return self._durable.get(partition, START).place

    def _released(self) -> int:
        with self._reservoir.wake:
            count, self._count = self._count, 0
            return count

    def _end(self, among: Collection[PartitionId] | None = None) -> None:
        reservoir = self._reservoir
        with reservoir.wake:
            ended = reservoir.ended.intersection(reservoir.ended if among is None else among)
            done = [name for name in ended if reservoir.is_done(name, self._place(name))]
        for name in done:
            last = reservoir.last_bookmark(name, self._place(name))
            with self._lock:
                if self._durable.get(name, START).ended:  # another thread was faster
                    continue
                self._durable[name] = last
            reservoir.close(name)
            self._fresh.set()


class AssignedEpochs(Epochs):
    """Where tasks read the source by themselves."""

    def __init__(
        self,
        assignments: Assignments,
        roster: Roster,
        positions: Positions,
        lengths: Lengths,
        *,
        gaps: GapLog,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(assignments, Keeper(positions), roster, lengths, clock)
        self._assignments, self._gaps = assignments, gaps

    def draw(self, group: int, groups: int) -> AssignmentDraw:
        return AssignmentDraw(self._assignments, group, groups)

    def take(self, report: Report) -> None:
        if isinstance(report, ReportedBookmarks):
            self.stored(report.bookmarks)
        elif isinstance(report, FoundGap):
            self._gaps.lost(report.partition, report.gap, report.bookmark, to=report.to)
        elif isinstance(report, Rows):
            self._assignments.report_rows(report)

    def stored(self, bookmarks: Bookmarks) -> None:
        """A task reports what is durable, and to be saved: wakes `watch`."""
        with self._lock:
            fresh = {
                name: bookmark
                for name, bookmark in bookmarks.items()
                if name in self._durable and _is_newer(bookmark, self._durable[name])
            }
            self._durable |= fresh
        self._assignments.reached(fresh)
        self._fresh.set()


def _is_newer(bookmark: Bookmark, known: Bookmark) -> bool:
    """Whether a report of it is no late one of an earlier place."""
    if known.ended:
        return False
    return known.place is None or (bookmark.place is not None and bookmark.place >= known.place)
