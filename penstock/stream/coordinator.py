"""All partitions of an iterator: which may be read (parents before children), and their records as
one sequence.

Polling happens only when the buffer is empty, and then reads every active partition once, as far as
the buffer has room; the others come first the next time. A child is opened when its parents have
ended and all their records were handed out, so that nothing can bring its records before theirs.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from threading import Event, Lock

from penstock.feeds import Feed, Gap, NativeRecord, RecordReader
from penstock.model.errors import (
    PenstockError,
    PositionLost,
    RecordsExpired,
    ShardIteratorExpired,
    Unavailable,
)
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.process.backoff import Clock
from penstock.reading.passed_gaps import GapRecorder
from penstock.reading.reader import PartitionReader, Step
from penstock.reading.roster import LookUp, Roster
from penstock.stream.buffer import Buffer
from penstock.stream.shard import Shard
from penstock.stream.side_by_side import NEVER, SideBySide

log = logging.getLogger("penstock")

# Seconds between two look-ups of partitions while nothing ends.
LISTING = 300.0
# Seconds after a look-up that failed.
_PAUSE = 0.1
# Seconds: how long one read may take until it is looked whether to stop.
_LOOK = 0.5
# Bytes of pages that are held, unless it is said how many.
BUFFER = 64 << 20
_HINT = "move_to another position, or `on_gap: continue` goes on after the gap"


class Coordinator(GapRecorder):
    """The partitions of a feed, read from bookmarks on. `clock` is monotonic seconds; until `grace`
    of it, it is no error that a partition cannot be opened (an own connection that was just closed
    may still hold the source). `buffer`: bytes of pages after which no more are read; a page for
    each thread may come on top."""

    def __init__(
        self,
        feed: Feed,
        bookmarks: Bookmarks,
        read: RecordReader,
        *,
        clock: Clock = time.monotonic,
        grace: float = 0.0,
        buffer: int = BUFFER,
    ) -> None:
        self.gaps: list[Gap] = []  # that were found since the start
        self._feed = feed
        self._read = read  # makes records of pages
        self._clock = clock
        self._grace = grace  # until when a partition that cannot be opened is no error
        self._shards: dict[PartitionId, Shard] = {}  # that are read now
        self._buffer = Buffer()  # records that were not handed out
        self._refill = False  # the buffer may lack records of pages that are here
        # Seconds until another poll is worth it, after one that raised an error.
        self.pause = _PAUSE
        self._room = _Room(buffer)
        # Partitions that anyone may poll are read side by side, and kept from the start.
        self._is_polled = feed.polled
        self._reads: SideBySide[Step | None] = SideBySide()
        roster = Roster(feed, clock=clock, every=LISTING)
        self._known = _Known(roster, bookmarks, SideBySide(1) if self._is_polled else None)

    def head(self) -> NativeRecord | None:
        """The next record of what was fetched, which stays. Raises Malformed."""
        if self._refill:
            self._decode()
        return None if self._buffer.empty else self._buffer.head()[1]

    def pop(self) -> None:
        """Takes that record out: it is handed out, and the bookmarks move."""
        partition, record = self._buffer.pop()
        self._shards[partition].handed_out(record)
        self._refill = not self._buffer.holds(partition)

    def _decode(self) -> None:
        for shard in self._shards.values():
            while shard.has_pages and not self._buffer.holds(shard.reader.partition):
                self._buffer.put(shard.reader.partition, shard.decode())
        self._refill = False

    def poll(self, wait: float = 0.0, stopped: Event = NEVER) -> None:
        """Reads every active partition once; `wait` seconds at most where there is only one with a
        connection of its own. Returns early when `stopped`. Raises the first error after all were
        read: what was fetched stays, and comes first at the next call."""
        self._retire()
        errors = self._open(stopped)
        self._room.free(sum(shard.size for shard in self._shards.values()))
        try:
            if self._is_polled:
                self._read_together(stopped, errors)
            else:
                self._read_in_turn(wait if len(self._shards) == 1 else 0.0, stopped, errors)
        finally:
            self._refill = True
        if errors:
            self.pause = min(
                (shard.pause for shard in self._shards.values() if shard.pause), default=_PAUSE
            )
            raise errors[0]

    def _read_in_turn(self, wait: float, stopped: Event, errors: list[PenstockError]) -> None:
        deadline = self._clock() + wait
        for shard in self._in_order():
            waits = True  # the source waits for more, and does not return at once
            while waits and not stopped.is_set():
                asked = self._clock()
                patience = min(max(0.0, deadline - asked), _LOOK)
                self._take(shard, self._step(shard, patience), errors)
                now = self._clock()
                waits = now < deadline and now - asked > patience / 2 and not shard.has_pages

    def _read_together(self, stopped: Event, errors: list[PenstockError]) -> None:
        shards = {shard.reader.partition: shard for shard in self._in_order()}
        for shard in shards.values():
            shard.is_reading = True
        try:
            self._reads.run(
                {name: partial(self._step, shard) for name, shard in shards.items()},
                lambda name, step: self._take(shards[PartitionId(str(name))], step, errors),
                stopped,
            )
        finally:
            busy = self._reads.busy
            for name, shard in shards.items():
                shard.is_reading = name in busy

    def _in_order(self) -> list[Shard]:
        names = list(self._shards)
        skipped = self._room.skipped()
        start = names.index(skipped) if skipped in names else 0
        return [self._shards[name] for name in names[start:] + names[:start]]

    def _step(self, shard: Shard, wait: float = 0.0) -> Step | None:
        """Reads a partition, if the buffer has room for it; several threads may, each one."""
        if not self._room.has(shard.reader.partition):
            return None
        step = shard.step(wait)
        self._room.take(sum(page.size for page in step.pages))
        return step

    def _take(self, shard: Shard, step: Step | None, errors: list[PenstockError]) -> None:
        if step is None:
            return
        try:
            self._reading(partial(shard.take, step))
        except PenstockError as error:
            if not isinstance(error, Unavailable) or self._clock() >= self._grace:
                errors.append(error)

    def _reading(self, step: Callable[[], None]) -> None:
        """Does a step that may read; what is lost is RecordsExpired."""
        try:
            step()
        except (RecordsExpired, ShardIteratorExpired):
            raise
        except PositionLost as error:
            raise RecordsExpired(error.message, error.code, hint=_HINT) from error

    def verify(self, partition: PartitionId) -> None:
        """Tokens are the caller's."""

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        if gap not in self.gaps:
            self.gaps.append(gap)
            log.error("history lost: %s, after %s: %s", gap.cause, gap.after, gap.detail)

    def _retire(self) -> None:
        for name in [name for name, shard in self._shards.items() if self._has_ended(shard)]:
            shard = self._shards.pop(name)
            self._known.bookmarks[name] = shard.bookmark(holds=False)
            shard.reader.disconnect()

    def _has_ended(self, shard: Shard) -> bool:
        return shard.ended and not self._buffer.holds(shard.reader.partition)

    @property
    def due(self) -> bool:
        """Whether another poll may find records without waiting: a partition has just ended."""
        return any(map(self._has_ended, self._shards.values()))

    def _open(self, stopped: Event = NEVER) -> list[PenstockError]:
        """Opens the partitions that may be read, if it is time to look for them."""
        try:
            found = self._known.look_up(list(self._shards), stopped)
        except PenstockError as error:
            return [error]
        if found is not None:
            self._take_in(found)
        return []

    def _take_in(self, found: LookUp) -> None:
        for name in found.forgotten:
            self._known.bookmarks.pop(name, None)
        for name, bookmark in found.ready.items():
            if name in self._shards:  # Ctrl-C came while this was taken in
                continue
            self._known.bookmarks[name] = bookmark
            reader = PartitionReader(
                self._feed, name, bookmark, self, is_stored=False, clock=self._clock
            )
            self._shards[name] = Shard(reader, bookmark, self._read)
        # Last: a token leaves these out, and must have their children.
        self._known.superseded = found.superseded

    def heartbeat(self) -> None:
        """Keeps every open partition; raises the first error after all were kept."""
        errors: list[PenstockError] = []
        if self._is_polled and not self._shards:
            errors += self._open()  # an iterator expires, also before the first poll
        for shard in self._shards.values():
            if shard.is_reading:
                continue
            try:
                self._reading(partial(shard.heartbeat, connects=self._is_polled))
            except PenstockError as error:
                errors.append(error)
        self._refill = True
        if errors:
            raise errors[0]

    def bookmarks(self) -> Mapping[PartitionId, Bookmark]:
        """After what was handed out; without those that have ended and whose children are here."""
        holds, known = self._buffer.holds, self._known
        return {
            name: each for name, each in known.bookmarks.items() if name not in known.superseded
        } | {name: shard.bookmark(holds=holds(name)) for name, shard in self._shards.items()}

    @property
    def open_partitions(self) -> Sequence[PartitionId]:
        return list(self._shards)

    def acknowledge(self, saved: Bookmarks) -> None:
        for name, shard in self._shards.items():
            if name in saved:
                shard.reader.acknowledge(saved[name])

    def close(self) -> None:
        """Closes all partitions, but those that another thread reads: their reads end soon."""
        for shard in self._shards.values():
            if not shard.is_reading:
                shard.reader.disconnect()


class _Known:
    """Partitions that are known, and look-ups of others: in a thread of `looking`, if given."""

    def __init__(
        self, roster: Roster, bookmarks: Bookmarks, looking: SideBySide[LookUp | None] | None
    ) -> None:
        self.bookmarks: dict[PartitionId, Bookmark] = dict(bookmarks)
        self.superseded: frozenset[PartitionId] = frozenset()  # by the last listing taken in
        self._roster, self._looking = roster, looking

    def look_up(self, opened: Collection[PartitionId], stopped: Event) -> LookUp | None:
        """See `Roster.look_up`; None also when `stopped`."""
        if self._looking is None:
            return self._roster.look_up(self.bookmarks, opened)
        found: list[LookUp | None] = []
        look_up = partial(self._roster.look_up, dict(self.bookmarks), opened)
        self._looking.run({"": look_up}, lambda _, result: found.append(result), stopped)
        return found[0] if found else None


class _Room:
    """Bytes that one poll may still read; threads that read share it."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit
        self._first: PartitionId | None = None  # that found none
        self._lock = Lock()

    def free(self, used: int) -> None:
        """Begins a poll, while `used` bytes are held."""
        with self._lock:
            self._left = self._limit - used

    def has(self, partition: PartitionId) -> bool:
        with self._lock:
            if self._left <= 0 and self._first is None:
                self._first = partition
            return self._left > 0

    def take(self, size: int) -> None:
        with self._lock:
            self._left -= size

    def skipped(self) -> PartitionId | None:
        """The first partition without room since the last call: the next poll begins there."""
        with self._lock:
            found, self._first = self._first, None
            return found
