"""Reading for planned micro-batches: offsets are bookmarks, and tasks get what lies between two.

A trigger asks for the next end, idle or not, and only after the batch that ended at `start` was
committed to the sink. So `start` is durable: that is where it is saved, and then the source is
acknowledged, in this order. Spark's own `commit` comes a batch late, or never.

Without saved positions, Spark's checkpoint is the record. Spark logs where a micro-batch ends, and
asks the source anew where the first one starts: after a crash before the first commit, and at every
start until there is a change. So the first end comes at once, with a change or without, and carries
the beginning.
"""

import os
import time
from collections.abc import Collection
from contextlib import suppress

from penstock.feeds import Feed, LogEnd
from penstock.microbatch.draw import PlannedDraw
from penstock.microbatch.options import BatchLimits, SourceOptions
from penstock.microbatch.page_server import Pages, PageServer
from penstock.microbatch.run_end import RunEnd
from penstock.microbatch.source_reports import Json, Reading
from penstock.microbatch.ticket import Range, Report, Request, Split, SplitPages, Ticket
from penstock.model.errors import InUse, PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import (
    START,
    Bookmark,
    Bookmarks,
    PartitionId,
    Place,
    bookmarks_from_json,
    bookmarks_to_json,
)
from penstock.reading.keeper import Keeper
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import AGAIN, Roster

# Seconds between offsets of an idle source whose mark has moved, where offsets are the record.
IDLE = 10.0
# Seconds between two looks for partitions while a trigger waits for changes.
POLL = 0.1
# Seconds that a planned micro-batch waits for a partition to be listed, or to count as absent.
LISTED = 5 * AGAIN
# Seconds for which another reader may have the source: the one before, which was killed.
TAKEN = 15.0
# Seconds that the end of a run waits for the source to be acknowledged.
STOPPING = 5.0


# Where a query began, in its first offset, beside the partitions. No feed names a partition with @.
BEGUN = "@begun"


def bookmarks_of(offset: Json) -> dict[PartitionId, Bookmark]:
    """The bookmarks of any offset; raises Malformed."""
    return bookmarks_from_json({name: each for name, each in offset.items() if name[0] != "@"})


class PlannedReading(Pages, Reading):
    """Plans micro-batches over all partitions of a feed; one thread calls it. With the `Pages` of
    its server: pages go to tasks in splits, or, where tasks make stubs (`late`), through the page
    server. Where `positions` is None the offsets are the record, and carry marks. `acknowledges`:
    the source is told what is durable."""

    def __init__(
        self,
        reservoir: Reservoir,
        roster: Roster,
        options: SourceOptions,
        positions: Positions | None = None,
        *,
        acknowledges: bool = True,
    ) -> None:
        self.reader = self._reservoir = reservoir
        self._roster, self._options = roster, options
        self._keeper = Keeper(positions, reservoir if acknowledges else None)
        self._is_record = positions is None  # what offsets are
        self._durable: Bookmarks = {}  # everything up to here is in the sink
        self._initial: Json | None = None  # where a query began whose offsets are the record
        self._idle_since = time.monotonic()
        self._ending: Feed | None = None  # of a query that ends by itself
        self._run_end: RunEnd | None = None  # since its first `next`
        self._is_renewed = False  # its last offset has the marks of its end
        self._is_over = False
        self.floor: Place | None = None  # changes up to there are left out
        self._limits = options.limits
        self._parent = os.getppid()  # the JVM
        self._taken_since: float | None = None  # when another reader was found at the source
        # The first bookmarks of children that may be read, until a `start` has them.
        self._announced: dict[PartitionId, Bookmark] = {}
        self._server = PageServer.of(options, self)

    def draw(self, request: Request) -> PlannedDraw:
        return PlannedDraw(self._reservoir, request.ranges)

    def take(self, report: Report) -> None:
        """Tasks that decode store nothing."""

    def check(self) -> None:
        """Nothing is saved while tasks read."""

    def is_over(self) -> bool:
        """A planned micro-batch ends with its pages."""
        return False

    @property
    def durable(self) -> Bookmarks:
        return self._durable

    def begin(self, bookmarks: Bookmarks) -> Json:
        begun = bookmarks_to_json(bookmarks)
        self._initial = begun if self._is_record else None
        return begun

    def end_by_itself(self, feed: Feed) -> None:
        self._ending = feed

    def end_at(self, feed: Feed, end: LogEnd) -> None:
        """As `end_by_itself`, at an end that is known."""
        self._run_end = RunEnd(feed, self._reservoir, end)

    def next(self, start: Json, limits: BatchLimits) -> Json:
        self._durable, self._limits = bookmarks_of(start), limits
        if self._is_over:
            return start
        if self._ending is not None and self._run_end is None:
            self.end_at(self._ending, self._ending.end(self._durable))
        # The first offset comes at once.
        is_run = self._run_end is not None and start != self._initial
        found = self.advance(self._durable, is_run=is_run)
        if start == self._initial:
            return {**bookmarks_to_json(found), BEGUN: start}
        return start if found == self._durable else bookmarks_to_json(found)

    def parts(self, start: Json, end: Json) -> list[Split] | list[Ticket]:
        tasks = max(1, self._options.live_slots() or 1)
        between = bookmarks_of(end.get(BEGUN, start)), bookmarks_of(end)
        if not self._options.late:  # tasks get tickets, not pages
            return self.splits(*between, most=tasks)
        self._server.open()
        ranges = self.ranges(*between)
        shares = [tuple(ranges[first::tasks]) for first in range(min(tasks, len(ranges)))]
        address, key = self._server.address, self._server.key
        return [Ticket(request=Request(ranges=share), address=address, key=key) for share in shares]

    def save(self, start: Json) -> None:
        self._durable = bookmarks_of(start)
        self._keep(self._durable, force=True)

    def connect(self) -> None:
        self.advance(self._durable, patience=0)

    def stop(self, timeout: float) -> None:
        self._server.close()
        self._reservoir.stop(timeout)

    def advance(
        self, start: Bookmarks, *, patience: float | None = None, is_run: bool = False
    ) -> Bookmarks:
        """The end after `start`, which is durable; `start` itself if nothing came in time, or, of a
        run, at its end."""
        deadline = time.monotonic() + (self._options.patience if patience is None else patience)
        self._begin(start)
        while True:
            known = self._look_up(start)
            with self._reservoir.wake:
                end = self._end(known)
                left = deadline - time.monotonic()
                if end == known:
                    self._check()
                if end != start or (left <= 0 and not is_run):
                    break
                if is_run:
                    if os.getppid() != self._parent:
                        raise Unavailable("the driver has ended, and nothing reads this", "spark")
                    if self._is_reached(known):
                        break
                    left = POLL
                self._reservoir.wake.wait(min(left, POLL))
        if end == start and is_run:
            return self._last(start)
        if end != start:
            self._idle_since = time.monotonic()
        elif self._is_record and time.monotonic() - self._idle_since >= IDLE:
            self._idle_since = time.monotonic()
            end = {name: self._newest(name, bookmark) for name, bookmark in start.items()}
        return end

    def _last(self, start: Bookmarks) -> Bookmarks:
        """The end of the run is reached: one more offset where marks have moved, so that the source
        is acknowledged as far as it was read, also where it had nothing for us. Then `start`, and
        nothing more is read: the source is free for the next run."""
        if self._is_record and not self._is_renewed:
            self._is_renewed = True
            newest = {name: self._newest(name, bookmark) for name, bookmark in start.items()}
            if newest != start:
                return newest
        with suppress(Unavailable):
            self._keep(start, force=True)
        self._is_over = True
        self._reservoir.stop(STOPPING)
        return start

    def _is_reached(self, known: Bookmarks) -> bool:
        """Whether the run has ended. Raises what is lost of some partitions."""
        if self._run_end is None or not self._run_end.is_reached(known):
            return False
        for error in self._reservoir.errors.values():
            if isinstance(error, PositionLost):
                raise error
        return True

    def _check(self) -> None:
        """Raises what reading failed with; and that another reader has the source, where no lease
        says whose it is: two queries would wait for one another."""
        self._reservoir.check()
        taken = [each for each in self._reservoir.errors.values() if isinstance(each, InUse)]
        if not taken or not self._is_record:
            self._taken_since = None
            return
        now = time.monotonic()
        self._taken_since = now if self._taken_since is None else self._taken_since
        if now - self._taken_since >= TAKEN:
            raise taken[0]

    def _begin(self, start: Bookmarks) -> None:
        """Saves what is durable, and opens the children that are. Their parents' ends and their own
        first bookmarks are stored before a child is read: else what is between them could be lost
        without a word."""
        fresh = [name for name in self._announced if name in start]
        try:
            self._keep(start, force=bool(fresh))
        except Unavailable:
            return
        for name in fresh:
            self._reservoir.open(name, start[name])
            del self._announced[name]

    def _keep(self, durable: Bookmarks, *, force: bool = False) -> None:
        """Everything up to `durable` is in the sink: releases it; saves it if due, or `force`."""
        places = {name: each.place for name, each in durable.items() if each.place is not None}
        with self._reservoir.wake:
            released = self._reservoir.stored(places)
        self._keeper.save(durable, released, force=force)

    def ranges(self, start: Bookmarks, end: Bookmarks) -> list[Range]:
        """What lies between two offsets, where there may be changes."""
        ranges = []
        for partition, until in end.items():
            after = start.get(partition, START).place
            if self.floor is not None and (after is None or after < self.floor):
                after = self.floor
            if until.place not in (None, after) and not (self.floor and until.place <= self.floor):
                ranges.append(Range(partition, after, until.place))
        if ranges:
            self._open({each.partition for each in ranges}, start)
        return ranges

    def splits(self, start: Bookmarks, end: Bookmarks, *, most: int = 1) -> list[Split]:
        """The changes between two offsets in at most `most` splits; the same again each time. After
        a crash they are read from the source again, for as long as it needs to come back."""
        made: list[list[SplitPages]] = [[] for _ in range(most)]
        for number, each in enumerate(self.ranges(start, end)):
            with self._reservoir.wake:
                while not self._reservoir.reaches(each.partition, each.until):
                    self._check()
                    self._reservoir.wake.wait(1.0)
                pages = tuple(self._reservoir.beyond(*each))
            parts = [SplitPages(pages, each.after, each.until)] if pages else []
            for part in parts + self._inherited(each):
                made[number % most].append(part)
                self._reservoir.drawn += sum(page.count for page in part.pages)
        return [Split(parts=tuple(parts)) for parts in made if parts]

    def _inherited(self, each: Range) -> list[SplitPages]:
        """What children have by now of a range that was planned, because its partition was split
        since. They are read for this alone; the next micro-batch reads them after it."""
        with self._reservoir.wake:
            read_to = self._reservoir.ended_at(each.partition)
        if read_to is None or (read_to.place is not None and read_to.place >= each.until):
            return []
        heirs, opened_at = self._roster.heirs(each.partition, read_to), time.monotonic()
        found: list[SplitPages] = []
        for heir in heirs:
            self._reservoir.open(heir.partition, heir.first or START)
        for heir in heirs:
            child = Range(heir.partition, each.after, each.until)
            with self._reservoir.wake:
                while (
                    not self._reservoir.reaches(heir.partition, each.until)
                    and self._reservoir.emptied_at(heir.partition) < opened_at
                ):
                    self._reservoir.wake.wait(POLL)
                pages = tuple(self._reservoir.beyond(*child))
            found += [SplitPages(pages, *child[1:])] if pages else []
            found += self._inherited(child)
        for heir in heirs:
            self._reservoir.close(heir.partition)
        return found

    def _open(self, wanted: set[PartitionId], start: Bookmarks) -> None:
        """Opens the partitions of a planned micro-batch. One that the source does not list any more
        is read when several listings have left it out: reading says what is lost."""
        deadline = time.monotonic() + LISTED
        self._look_up(start, wanted)
        while missing := wanted.difference(self._reservoir.open_partitions):
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"the source lists the partition {min(missing)}, of which a planned micro-batch"
                    " has changes, at times only",
                    "microbatch",
                    hint="the query starts again and plans the same micro-batch",
                )
            time.sleep(POLL)
            self._look_up(start, wanted)

    def _look_up(self, start: Bookmarks, wanted: Collection[PartitionId] = ()) -> Bookmarks:
        """Opens what may be read after `start`, which is durable, and what is `wanted`; returns
        `start` without partitions that are done for good, and with children to be opened."""
        for name in [name for name, bookmark in start.items() if bookmark.ended]:
            self._reservoir.close(name)
        found = self._roster.look_up(start, self._reservoir.open_partitions, wanted)
        if found is None:
            return {**self._announced, **start}
        if self._run_end is not None:
            self._run_end.have_children(found.superseded)
        for name, bookmark in found.ready.items():
            if name in start or name in wanted or not found.parents.get(name):
                self._reservoir.open(name, bookmark)
            else:
                self._announced[name] = bookmark
        start = {**self._announced, **start}
        if not found.forgotten or not self._keeper.forget(found.forgotten, start):
            return start
        return {name: each for name, each in start.items() if name not in found.forgotten}

    def _newest(self, name: PartitionId, bookmark: Bookmark) -> Bookmark:
        return self._reservoir.bookmark(name, bookmark.place) or bookmark

    def _end(self, start: Bookmarks) -> Bookmarks:
        end = dict(start)
        names = self._reservoir.open_partitions
        places = {name: start.get(name, START).place for name in names}
        ready = [name for name in names if any(self._reservoir.beyond(name, places[name]))]
        share = max(1, len(ready))
        for name in names:
            before = start.get(name, START)
            pages = self._within(name, places[name], share) if name in ready else []
            last = pages[-1].last if pages else None
            if pages and self._run_end is not None:
                last = self._run_end.last_of(pages, places[name])
            if last is not None:
                found = self._reservoir.bookmark(name, last) if self._is_record else None
                end[name] = found or Bookmark(last, before.mark)
            elif self._reservoir.is_done(name, before.place):
                last_one = self._newest(name, before) if self._is_record else before
                end[name] = last_one._replace(ended=True)
        return end

    def _within(self, name: PartitionId, after: Place | None, share: int) -> list[Page]:
        """What one partition may add to a micro-batch of `share` partitions."""
        found: list[Page] = []
        events = size = 0
        for page in self._reservoir.beyond(name, after):
            events += page.count
            size += page.size
            if found and (events * share > self._limits.events or size * share > self._limits.size):
                break
            found.append(page)
        return found
