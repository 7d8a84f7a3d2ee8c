"""The pages of all partitions of a backend, read by a bounded number of threads.

The buffer is only a cache: after a crash it is filled again from the bookmarks. When it is full the
threads stop reading and the source keeps its log: that is the back-pressure. One budget in bytes is
shared by all partitions. An unavailable source is tried again for ever, with back-off.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any

from penstock.feeds import Feed
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.reading.passed_gaps import Doubts, GapRecorder
from penstock.reading.reader import PartitionReader, Step
from penstock.reading.turns import Turns

# Seconds. How long one read may wait: an acknowledgement is sent after this time at the latest.
READ_TIMEOUT = 0.25
# Seconds between two keep-alives while the buffer is full.
KEEP_ALIVE = 1.0
# Seconds between two reads of a partition that has nothing, while threads have others to read.
FIRST_IDLE, LONGEST_IDLE = 0.05, 0.5
THREADS = 8
# Of these, how many may try a source that failed at once: each may take a connection's time limit.
TRIES = THREADS // 2


class Arrivals:
    """Partitions with pages that one consumer has not taken, oldest first; how far it took them."""

    def __init__(self) -> None:
        self.fresh: dict[PartitionId, None] = {}
        self.taken: dict[PartitionId, Place] = {}


class Buffered:
    """A partition in a reservoir: its reader, and its pages that are not durable yet. Guarded by
    the reservoir's lock, but for `reader`, which one thread at a time has."""

    def __init__(self, reader: PartitionReader) -> None:
        self.reader = reader
        self.pages: deque[Page] = deque()  # that are not durable
        self.size = 0  # bytes of the pages
        self.events = 0  # changes of the pages
        self.goal: Place | None = None  # read up to here, whatever is buffered already
        self.is_failed = False  # the reader's error ends reading, for now or for good
        self.idle = 0.0  # seconds that the last turns found nothing, doubling
        # As the pages in `pages` have it: the reader is ahead while its step is not taken in.
        self.read_to = reader.read_to
        self.drained = False

    def put(self, pages: Sequence[Page]) -> None:
        for page in pages:
            self.pages.append(page)
            self.size += page.size
            self.events += page.count
        self.read_to, self.drained = self.reader.read_to, self.reader.drained

    def beyond(self, after: Place | None) -> Iterator[Page]:
        """The pages beyond `after`, searched from the end: not all that is held, for each page."""
        pages, start = self.pages, len(self.pages)
        while start and (after is None or pages[start - 1].last > after):
            start -= 1
        return islice(pages, start, None)

    def reaches(self, end: Place) -> bool:
        return self.drained or (self.read_to is not None and self.read_to >= end)

    def release(self, place: Place) -> int:
        """Drops the pages up to `place`, which is durable; returns their changes."""
        released = 0
        while self.pages and self.pages[0].last <= place:
            page = self.pages.popleft()
            self.size -= page.size
            self.events -= page.count
            released += page.count
        self.reader.durable(place)
        return released

    def idled(self, step: Step, timeout: float) -> float:
        """Seconds until the partition is read again; more each time that it has nothing."""
        is_idle = not (step.error or step.pages or timeout)
        self.idle = min(max(FIRST_IDLE, 2 * self.idle), LONGEST_IDLE) if is_idle else 0.0
        return self.idle

    def status(self) -> Mapping[str, Any]:
        return {**self.reader.status(), "buffered_events": self.events, "buffered_bytes": self.size}


class Room:
    """The budget in bytes that all partitions share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0  # the sum of the partitions' sizes
        self.held: dict[Buffered, None] = {}  # those that found no room: only kept alive

    def is_free(self, part: Buffered, parts: int) -> bool:
        """Whether a partition may read on: all share the budget while half of it is free, then
        each of `parts` has its part; one that holds nothing may always read a little."""
        if part.goal is not None and not part.reaches(part.goal):
            return True
        if self.used >= self.limit:
            return not part.pages and self.used < 2 * self.limit
        return self.used < self.limit / 2 or part.size < self.limit / parts

    def freed(self, parts: int) -> list[Buffered]:
        """Those that were held, and have room now: they are not held any more."""
        found = [part for part in self.held if self.is_free(part, parts)]
        for part in found:
            del self.held[part]
        return found

    def leave(self, part: Buffered) -> None:
        """Drops the pages of a partition that is closed."""
        self.used -= part.size
        part.pages.clear()
        part.size = part.events = 0
        self.held.pop(part, None)


class Reservoir:
    """Buffered pages of any number of partitions; thread-safe.

    `limit` is in bytes and counts pages until they are durable, so that a micro-batch can be
    planned again. `wake` guards the buffer, and is notified of pages, ends and failures. `watch` is
    called by reader threads after every turn. `doubts`: those of the reservoirs before, if it is
    short-lived.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        limit: int,
        gaps: GapRecorder,
        watch: Callable[[], None] = lambda: None,
        doubts: Doubts | None = None,
    ) -> None:
        self._feed, self._gaps = feed, gaps  # of new readers
        self._doubts: Doubts = {} if doubts is None else doubts  # theirs, too
        self._watch = watch
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()  # for each page: a condition's own `with` costs two calls
        self.wake = threading.Condition(self._lock)  # consumers wait for it
        self._turns: Turns[Buffered] = Turns(lock=self._lock)  # reader threads wait for these
        self._parts: dict[PartitionId, Buffered] = {}
        self._room = Room(limit)
        self._arrivals: list[Arrivals] = []  # of each consumer that listens
        self._tried: set[Buffered] = set()  # those that failed, and have a turn
        # Partitions whose end was read, until they are closed.
        self.ended: set[PartitionId] = set()
        # What was read, and how often a connection was lost, over all partitions ever opened.
        self.counts = {"events": 0, "pages": 0, "reconnects": 0}
        # How many changes consumers have taken, by whole pages.
        self.drawn = 0

    def open(self, partition: PartitionId, bookmark: Bookmark) -> None:
        """Starts to read a partition after the bookmark, unless it is being read."""
        with self.wake:
            if partition in self._parts or self._turns.is_closed:
                return
            reader = PartitionReader(
                self._feed, partition, bookmark, self._gaps, doubts=self._doubts
            )
            part = self._parts[partition] = Buffered(reader)
            self._turns.add(part)
            if len(self._threads) < min(THREADS, len(self._parts)):
                name = f"reader-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self, partition: PartitionId) -> None:
        """Stops reading a partition that ended, and forgets its pages."""
        with self.wake:
            if (part := self._parts.pop(partition, None)) is None:
                return
            self._room.leave(part)
            for arrivals in self._arrivals:
                arrivals.fresh.pop(partition, None)
                arrivals.taken.pop(partition, None)
            self.ended.discard(partition)
            if self._turns.claim(part):  # else the thread that reads it closes the connection
                part.reader.disconnect()
                self._turns.done(part, None)
            self._make_room()
            self.wake.notify_all()

    def stop(self, timeout: float) -> bool:
        """Stops reading; the last acknowledgements are sent if the source can be reached. Waits
        at most `timeout` seconds; returns whether all threads have ended."""
        with self.wake:
            self._turns.close()
            self.wake.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # Consumers; call these with `wake` held.

    @property
    def open_partitions(self) -> Sequence[PartitionId]:
        """The partitions that are being read, or have pages left."""
        return list(self._parts)

    def listen(self, arrivals: Arrivals, after: Callable[[PartitionId], Place | None]) -> None:
        """Tells `arrivals` of pages from now on, and of those beyond `after` at once."""
        for name, part in self._parts.items():
            if any(part.beyond(after(name))):
                arrivals.fresh[name] = None
        self._arrivals.append(arrivals)

    def unlisten(self, arrivals: Arrivals) -> None:
        with suppress(ValueError):
            self._arrivals.remove(arrivals)

    def beyond(
        self, partition: PartitionId, after: Place | None, until: Place | None = None
    ) -> Iterator[Page]:
        """The buffered pages that reach beyond `after`, and begin at `until` at the latest."""
        part = self._parts.get(partition)
        pages = iter(()) if part is None else part.beyond(after)
        return pages if until is None else takewhile(lambda page: page.first <= until, pages)

    def is_done(self, partition: PartitionId, durable: Place | None) -> bool:
        """Whether the partition has ended, with nothing left after `durable`."""
        part = self._parts.get(partition)
        return part is not None and part.drained and part.reader.is_done(durable)

    def reaches(self, partition: PartitionId, end: Place) -> bool:
        """Whether everything up to `end` has been read; if not, it is read whatever is buffered.
        Raises what reading the partition failed with, and Unavailable if it is not open."""
        if (part := self._parts.get(partition)) is None:
            raise Unavailable(
                f"the partition {partition}, of which a planned micro-batch has changes, is not"
                " read any more",
                "reading",
                hint="the query starts again, and sees whether its changes are lost",
            )
        if part.reaches(end):
            return True
        if part.is_failed and part.reader.error is not None:
            raise part.reader.error
        if part.goal is None or part.goal < end:
            part.goal = end
            self._make_room()
        return False

    def check(self) -> None:
        """Raises what reading failed with; not a lost history of some of several partitions."""
        failed = [part for part in self._parts.values() if part.is_failed]
        for part in failed:
            if (error := part.reader.error) is None:  # it is read again just now
                continue
            if len(failed) == len(self._parts) or not isinstance(error, PositionLost):
                raise error

    def ended_at(self, partition: PartitionId) -> Bookmark | None:
        """The bookmark of a partition's end, after all that it had; None: it has no end yet."""
        part = self._parts.get(partition)
        if part is None or not part.drained:
            return None
        return self.last_bookmark(partition, part.read_to)

    def emptied_at(self, partition: PartitionId) -> float:
        """When a read of the partition began, monotonic, that found that there was no more."""
        part = self._parts.get(partition)
        return -math.inf if part is None else part.reader.emptied_at

    @property
    def errors(self) -> Mapping[PartitionId, PenstockError]:
        """What reading failed with, for now or for good, of partitions that are not read."""
        found = ((name, part.reader.error) for name, part in self._parts.items())
        return {name: error for name, error in found if error is not None}

    def stored(self, places: Position) -> int:
        """Everything up to these places is durable: forgets those pages, returns their changes."""
        released = 0
        for name, place in places.items():
            if (part := self._parts.get(name)) is not None:
                before = part.size
                released += part.release(place)
                self._room.used += part.size - before
        if released:
            self._make_room()
        return released

    # From any thread.

    def bookmark(self, partition: PartitionId, place: Place | None) -> Bookmark | None:
        part = self._parts.get(partition)
        return None if part is None else part.reader.bookmark(place)

    def last_bookmark(self, partition: PartitionId, place: Place | None) -> Bookmark:
        """What to store of a partition that is done: that it has ended."""
        part = self._parts.get(partition)
        found = Bookmark(place) if part is None else part.reader.last_bookmark(place)
        return found._replace(ended=True)

    def acknowledge(self, saved: Bookmarks) -> None:
        for name, bookmark in saved.items():
            if (part := self._parts.get(name)) is not None:
                part.reader.acknowledge(bookmark)

    def rows(self) -> Mapping[PartitionId, Mapping[str, Any]]:
        parts = dict(self._parts)  # one step, whatever other threads do meanwhile
        return {name: part.status() for name, part in parts.items()}

    @property
    def connected(self) -> int:
        """How many partitions have a connection."""
        return sum(part.reader.is_connected for part in tuple(self._parts.values()))

    @property
    def fill(self) -> float:
        """How full the buffer is, in percent."""
        return round(100 * self._room.used / self._room.limit, 1)

    # Reader threads.

    def _run(self) -> None:
        while (part := self._next()) is not None:
            # A thread may wait for its partition while no other could have its turn meanwhile.
            timeout = READ_TIMEOUT if len(self._parts) <= len(self._threads) else 0.0
            step = part.reader.step(timeout, keep_alive=part in self._room.held)
            self._take(part, step, timeout)
            self._watch()
        with self.wake:
            mine = [part for part in self._parts.values() if self._turns.claim(part)]
        for part in mine:
            part.reader.disconnect()
        self._watch()

    def _next(self) -> Buffered | None:
        """The next partition whose turn it is; None when reading has stopped."""
        with self._lock:
            while (part := self._turns.next(None)) is not None:
                is_failing = part.reader.error is not None
                if is_failing and len(self._tried) >= TRIES:
                    self._turns.done(part, LONGEST_IDLE)
                elif part in self._room.held or self._room.is_free(part, len(self._parts)):
                    if is_failing:
                        self._tried.add(part)
                    return part
                else:
                    self._room.held[part] = None
                    self._turns.done(part, KEEP_ALIVE)
            return None

    def _take(self, part: Buffered, step: Step, timeout: float) -> None:
        partition = part.reader.partition
        with self._lock:
            self.counts["events"] += sum([page.count for page in step.pages])
            self.counts["pages"] += len(step.pages)
            self.counts["reconnects"] += isinstance(step.error, Unavailable)
            self._room.held.pop(part, None)
            self._tried.discard(part)
            if self._parts.get(partition) is not part:  # it was closed meanwhile
                self._turns.done(part, None)
                part.reader.disconnect()
                return
            part.is_failed = step.error is not None and not isinstance(step.error, Unavailable)
            if step.pages or part.reader.drained:
                before = part.size
                part.put(step.pages)
                self._room.used += part.size - before
                for arrivals in self._arrivals:
                    arrivals.fresh[partition] = None
            if step.pages or part.drained or part.is_failed:
                self.wake.notify_all()
            if part.drained:
                self.ended.add(partition)
            is_over = part.drained or (part.is_failed and not isinstance(step.error, PositionLost))
            wait = step.wait or part.idled(step, timeout)
            self._turns.done(part, None if is_over else wait)

    def _make_room(self) -> None:
        """After pages were released: those that waited for room have their turn."""
        for part in self._room.freed(len(self._parts)):
            self._turns.hurry(part)
