"""The pages of all partitions of a backend, read by a bounded number of threads.

The buffer is only a cache: after a crash it is filled again from the bookmarks. When it is full the
threads stop reading and the source keeps its log: that is the back-pressure. One budget in bytes is
shared by all partitions. An unavailable source is tried again for ever, with back-off.
"""

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import PenstockError, PositionLost, Unavailable
from penstock.feeds import Feed, FollowsMany
from penstock.page import Page
from penstock.position import Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.reservoir.arrivals import Arrivals
from penstock.reservoir.part import BLOCKED, GapRecorder, PartitionReader
from penstock.reservoir.turns import FIRST_IDLE, Turn, turn_alone, turn_together

__all__ = ["Reservoir"]

# Seconds. How long one read may wait: an acknowledgement is sent after this time at the latest.
READ_TIMEOUT = 0.25
# Seconds between two keep-alives while the buffer is full.
KEEP_ALIVE = 1.0
THREADS = 8


class Reservoir:
    """Buffered pages of any number of partitions; thread-safe.

    `limit` is in bytes and counts pages until they are durable, so that a micro-batch can be
    planned again. `wake` guards the buffer, and is notified of pages, ends and failures. `watch` is
    called by reader threads after every turn.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        limit: int,
        gaps: GapRecorder,
        watch: Callable[[], None] = lambda: None,
        threads: int = THREADS,
    ) -> None:
        self._shared = feed.shared_connection() if isinstance(feed, FollowsMany) else None
        self._source = self._shared or feed
        self._limit = limit
        self._gaps = gaps
        self._watch = watch
        self._most_threads = 1 if self._shared else threads
        lock = threading.RLock()
        self.wake = threading.Condition(lock)  # consumers wait for it
        self._work = threading.Condition(lock)  # and reader threads for this
        self._parts: dict[PartitionId, PartitionReader] = {}
        self._size = 0
        self._schedule: list[tuple[float, int, int, PartitionReader]] = []
        self._entries = 0
        self._held: dict[PartitionReader, None] = {}  # those that found no room
        self._turning: set[PartitionReader] = set()
        self._leaving: set[PartitionReader] = set()
        self._arrivals: list[Arrivals] = []
        # Partitions whose end was read, until they are closed.
        self.ended: set[PartitionId] = set()
        # What was read, and how often a connection was lost, over all partitions ever opened.
        self.counts = {"events": 0, "pages": 0, "reconnects": 0}
        # How many changes consumers have taken, by whole pages.
        self.drawn = 0
        self._threads: list[threading.Thread] = []
        self._stopping = False

    def open(self, partition: PartitionId, bookmark: Bookmark) -> None:
        """Starts to read a partition after the bookmark, unless it is being read."""
        with self.wake:
            if partition in self._parts or self._stopping:
                return
            part = self._parts[partition] = PartitionReader(
                self._source, partition, bookmark, self._gaps
            )
            self._plan(part, 0.0)
            if len(self._threads) < min(self._most_threads, len(self._parts)):
                name = f"reader-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self, partition: PartitionId) -> None:
        """Stops reading a partition that ended or was revoked, and forgets its pages."""
        with self.wake:
            part = self._parts.pop(partition, None)
            if part is None:
                return
            self._size -= part.size
            part.pages.clear()
            part.size = part.events = 0
            part.turn_number += 1
            self._held.pop(part, None)
            for arrivals in self._arrivals:
                arrivals.fresh.pop(partition, None)
                arrivals.taken.pop(partition, None)
            self.ended.discard(partition)
            if part in self._turning:
                self._leaving.add(part)  # its thread closes the connection
            else:
                part.disconnect()
            self._make_room()
            self.wake.notify_all()

    def stop(self, timeout: float) -> bool:
        """Stops reading; the last acknowledgements are sent if the source can be reached. Waits
        at most `timeout` seconds; returns whether all threads have ended."""
        with self.wake:
            self._stopping = True
            self._work.notify_all()
            self.wake.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # Consumers; call these with `wake` held.

    @property
    def open_partitions(self) -> Sequence[PartitionId]:
        """Those that are being read, or have pages left."""
        return list(self._parts)

    def listen(self, arrivals: Arrivals, after: Callable[[PartitionId], Place | None]) -> None:
        """Tells `arrivals` of pages from now on, and of those beyond `after` at once."""
        for name, part in self._parts.items():
            if arrivals.wants(name) and any(part.beyond(after(name))):
                arrivals.fresh[name] = None
        self._arrivals.append(arrivals)

    def unlisten(self, arrivals: Arrivals) -> None:
        """The consumer is gone."""
        with suppress(ValueError):
            self._arrivals.remove(arrivals)

    def beyond(self, partition: PartitionId, after: Place | None) -> Iterator[Page]:
        """The buffered pages that reach beyond `after`."""
        part = self._parts.get(partition)
        return iter(()) if part is None else part.beyond(after)

    def drained(self, partition: PartitionId) -> bool:
        """Whether the partition has ended, and all of it is here or was released."""
        part = self._parts.get(partition)
        return part is None or part.drained

    def is_done(self, partition: PartitionId, durable: Place | None) -> bool:
        """Whether the partition has ended, with nothing left after `durable`."""
        part = self._parts.get(partition)
        return part is not None and part.drained and not any(part.beyond(durable))

    def reaches(self, partition: PartitionId, end: Place) -> bool:
        """Whether everything up to `end` has been read; if not, it is read whatever is buffered.
        Raises what reading the partition failed with, and Unavailable if it is not open."""
        part = self._parts.get(partition)
        if part is None:
            raise Unavailable(
                f"the partition {partition}, of which a planned micro-batch has changes, is not"
                " read any more",
                hint="the query starts again, and sees whether its changes are lost",
            )
        if part.reaches(end):
            return True
        if part.failure is not None:
            raise part.failure
        if part.goal is None or part.goal < end:
            part.goal = end
            self._make_room()
        return False

    def check(self) -> None:
        """Raises what reading failed with, unless it concerns some of several partitions only: one
        that lost its history does not stop the others."""
        failed = [part for part in self._parts.values() if part.failure is not None]
        for part in failed:
            assert part.failure is not None
            if len(failed) == len(self._parts) or not isinstance(part.failure, PositionLost):
                raise part.failure

    def stored(self, places: Position) -> int:
        """Everything up to these places is durable: forgets those pages, returns their changes."""
        released = 0
        for name, place in places.items():
            if (part := self._parts.get(name)) is not None:
                before = part.size
                released += part.release(place)
                self._size += part.size - before
        if released:
            self._make_room()
        return released

    # From any thread.

    def bookmark(self, partition: PartitionId, place: Place | None) -> Bookmark | None:
        """What to store when everything up to `place` is durable; None: what is stored stays."""
        part = self._parts.get(partition)
        return None if part is None else part.bookmark(place)

    def acknowledge(self, saved: Bookmarks) -> None:
        """These bookmarks are stored."""
        for name, bookmark in saved.items():
            if (part := self._parts.get(name)) is not None:
                part.acknowledge(bookmark)

    def rows(self) -> Mapping[PartitionId, Mapping[str, Any]]:
        """Plain JSON of every partition."""
        parts = dict(self._parts)  # one step, whatever other threads do meanwhile
        return {name: part.status() for name, part in parts.items()}

    @property
    def fill(self) -> float:
        """How full the buffer is, in percent."""
        return round(100 * self._size / self._limit, 1)

    # Reader threads.

    def _run(self) -> None:
        while parts := self._next():
            turns = self._turn(parts)
            self._count(turns)
            for turn in turns:
                if turn.failure is not None:
                    self._failed(turn.part, turn.failure)
                else:
                    self._turned(turn.part, turn.pages, turn.wait)
            self._watch()
        with self.wake:
            mine = [part for part in self._parts.values() if part not in self._turning]
            self._turning |= set(mine)
        for part in mine:
            part.disconnect()
        self._watch()

    def _turn(self, parts: Sequence[PartitionReader]) -> Sequence[Turn]:
        # A thread may wait for its partitions while no other could have its turn meanwhile.
        if self._shared is None:
            (part,) = parts
            timeout = READ_TIMEOUT if len(self._parts) <= len(self._threads) else 0.0
            return [turn_alone(part, timeout, full=part in self._held)]
        reading = [part for part in parts if part not in self._held]
        held = [part for part in parts if part in self._held]
        timeout = READ_TIMEOUT if len(self._parts) <= len(reading) else 0.0
        turns = turn_together(self._shared, reading, held, timeout)
        if any(turn.is_lost for turn in turns):
            self._disconnect_others()
        return turns

    def _disconnect_others(self) -> None:
        """The shared connection is lost for those, too, that were not read just now."""
        with self.wake:
            for part in self._parts.values():
                if part not in self._turning:
                    part.disconnect()

    def _count(self, turns: Sequence[Turn]) -> None:
        pages = [page for turn in turns for page in turn.pages]
        lost = any(turn.is_lost for turn in turns)
        if pages or lost:
            with self.wake:
                self.counts["events"] += sum(page.count for page in pages)
                self.counts["pages"] += len(pages)
                self.counts["reconnects"] += lost

    def _next(self) -> Sequence[PartitionReader]:
        """The next partitions whose turn it is: one, or with a shared connection all; none when
        reading has stopped."""
        # A shared connection is not read once more for those who are due a little later.
        early = FIRST_IDLE if self._shared else 0.0
        found: list[PartitionReader] = []
        with self.wake:
            while not self._stopping:
                now = time.monotonic()
                while self._schedule and self._schedule[0][0] <= now + early:
                    _, _, number, part = heapq.heappop(self._schedule)
                    if number != part.turn_number:
                        continue
                    if part in self._held or self._has_room(part):
                        self._turning.add(part)
                        found.append(part)
                        if self._shared is None:
                            return found
                        continue
                    self._held[part] = None
                    self._plan(part, KEEP_ALIVE)
                if found:
                    return found
                left = self._schedule[0][0] - now if self._schedule else None
                self._work.wait(left)
            return ()

    def _turned(self, part: PartitionReader, pages: Sequence[Page], wait: float) -> None:
        with self.wake:
            self._turning.discard(part)
            self._held.pop(part, None)
            if part in self._leaving:
                self._leaving.discard(part)
                part.disconnect()
                return
            part.failure = None
            ends = part.ends_here
            if pages or (ends and not part.drained):
                before = part.size
                part.put(pages, drained=ends)
                self._size += part.size - before
                for arrivals in self._arrivals:
                    if arrivals.wants(part.partition):
                        arrivals.fresh[part.partition] = None
                self.wake.notify_all()
            if part.drained:
                part.turn_number += 1
                self.ended.add(part.partition)
            else:
                self._plan(part, wait)

    def _failed(self, part: PartitionReader, failure: PenstockError) -> None:
        part.disconnect()
        with self.wake:
            self._turning.discard(part)
            self._held.pop(part, None)
            if part in self._leaving:
                self._leaving.discard(part)
                return
            part.fail(failure)
            self.wake.notify_all()
            if isinstance(failure, PositionLost):
                self._plan(part, BLOCKED)

    def _plan(self, part: PartitionReader, wait: float) -> None:
        part.turn_number += 1
        self._entries += 1
        entry = (time.monotonic() + wait, self._entries, part.turn_number, part)
        heapq.heappush(self._schedule, entry)
        self._work.notify()

    def _has_room(self, part: PartitionReader) -> bool:
        """Whether a partition may read on: all share the budget while half of it is free, then
        each has its part; one that holds nothing may always read a little."""
        if part.goal is not None and not part.reaches(part.goal):
            return True
        if self._size >= self._limit:
            return not part.pages and self._size < 2 * self._limit
        return self._size < self._limit / 2 or part.size < self._limit / len(self._parts)

    def _make_room(self) -> None:
        """After pages were released: those that waited for room have their turn."""
        for part in [part for part in self._held if self._has_room(part)]:
            if part not in self._turning:
                del self._held[part]
                self._plan(part, 0.0)
