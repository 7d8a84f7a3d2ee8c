"""All partitions of an iterator: which may be read (parents before children), and their records as
one sequence.

Polling happens only when the buffer is empty, and then reads every active partition once. A child
is opened when its parents have ended and all their records were handed out, so that no heartbeat
and no clock can bring its records before theirs.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from penstock.backoff import delays
from penstock.errors import (
    PenstockError,
    PositionLost,
    RecordsExpired,
    ShardIteratorExpired,
    Unavailable,
)
from penstock.feeds import Feed, Gap, HistoryLost, NativeRecord, RecordReader
from penstock.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.roster import AGAIN, LATE, SOON, Absences, openings
from penstock.stream.buffer import Buffer
from penstock.stream.shard import Shard

__all__ = ["LISTING", "Coordinator"]

log = logging.getLogger("penstock")

# Seconds between two look-ups of partitions while nothing ends.
LISTING = 300.0
_HINT = "move_to another position, or `on_gap: continue` goes on after the gap"


class Coordinator:
    """The partitions of a feed, read from bookmarks on. `clock` is monotonic seconds; until
    `grace` of it, a partition that cannot be opened yet is tried again without an error (an own
    connection that was just closed may still hold the source)."""

    def __init__(
        self,
        feed: Feed,
        bookmarks: Bookmarks,
        read: RecordReader,
        *,
        clock: Callable[[], float] = time.monotonic,
        grace: float = 0.0,
    ) -> None:
        self.gaps: list[Gap] = []
        self._feed = feed
        self._read = read
        self._clock = clock
        self._grace = grace
        self._known: dict[PartitionId, Bookmark] = dict(bookmarks)
        self._shards: dict[PartitionId, Shard] = {}
        self._buffer = Buffer()
        self._refill = False
        self._look_at = clock()
        self._waits: Iterator[float] | None = None  # for children of an ended partition
        self._absences = Absences()

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
            while shard.has_pages and not self._buffer.holds(shard.partition):
                self._buffer.put(shard.partition, shard.decode())
        self._refill = False

    def poll(self, wait: float = 0.0) -> None:
        """Reads every active partition once; `wait` seconds at most where there is only one.

        Raises the first error after all were read: what was fetched stays, and comes first at the
        next call.
        """
        self._retire()
        errors = list(self._errors_of_look())
        patience = wait if len(self._shards) == 1 else 0.0
        for shard in self._shards.values():
            try:
                self._reading(shard, partial(shard.poll, patience))
            except PenstockError as error:
                if not isinstance(error, Unavailable) or self._clock() >= self._grace:
                    errors.append(error)
        self._refill = True
        if errors:
            raise errors[0]

    def _reading(self, shard: Shard, step: Callable[[], None]) -> None:
        """Does a step that may read. A gap is noted, and the shard goes on after it if it may;
        anything else that is lost is RecordsExpired."""
        try:
            self._following_again(shard, step)
        except HistoryLost as error:
            self._note(error.gap)
            if self._feed.on_gap != "continue":
                raise RecordsExpired(error.message, hint=_HINT) from error
            shard.poll(despite=error.gap)
        except (RecordsExpired, ShardIteratorExpired):
            raise
        except PositionLost as error:
            raise RecordsExpired(error.message, hint=_HINT) from error

    @staticmethod
    def _following_again(shard: Shard, step: Callable[[], None]) -> None:
        try:
            step()
        except (HistoryLost, RecordsExpired, ShardIteratorExpired):
            raise
        except PositionLost:
            shard.poll()  # what is lost is found by following again

    def _retire(self) -> None:
        """Closes partitions that have ended: all their records were handed out."""
        for name in [name for name, shard in self._shards.items() if self._has_ended(shard)]:
            shard = self._shards.pop(name)
            self._known[name] = shard.bookmark(holds=False)
            shard.close()
            self._look_at = self._clock()
            self._waits = delays(first=SOON, limit=LATE)

    def _has_ended(self, shard: Shard) -> bool:
        return shard.ended and not self._buffer.holds(shard.partition)

    @property
    def due(self) -> bool:
        """Whether another poll may find records without waiting: a partition has just ended."""
        return any(map(self._has_ended, self._shards.values()))

    def _errors_of_look(self) -> Iterator[PenstockError]:
        if self._clock() < self._look_at:
            return
        try:
            self._look()
        except PenstockError as error:
            yield error

    def _look(self) -> None:
        listed = self._feed.partitions()
        if not listed:  # a listing that is behind: it is no evidence that partitions are gone
            self._schedule(awaited=True)
            return
        missing = openings(listed, self._known, self._shards).missing
        absent = self._absences.confirmed(missing, self._clock())
        found = openings(listed, self._known, self._shards, absent)
        for name in found.forgotten:
            del self._known[name]
        for name, bookmark in found.ready.items():
            self._known[name] = bookmark
            self._shards[name] = Shard(self._feed, name, bookmark, self._read)
        parents = {parent for each in listed for parent in each.parents}
        done = {name for name, bookmark in self._known.items() if bookmark.ended}
        self._schedule(awaited=not found.ready and not done <= parents)
        if not missing <= absent:
            self._look_at = min(self._look_at, self._clock() + AGAIN)

    def _schedule(self, *, awaited: bool) -> None:
        if awaited:
            self._waits = self._waits or delays(first=SOON, limit=LATE)
            self._look_at = self._clock() + next(self._waits)
        else:
            self._waits = None
            self._look_at = self._clock() + LISTING

    def _note(self, gap: Gap) -> None:
        if gap not in self.gaps:
            self.gaps.append(gap)
            log.error("history lost: %s, after %s: %s", gap.cause, gap.after, gap.detail)

    def heartbeat(self) -> None:
        """Keeps every open partition; raises the first error after all were kept."""
        errors: list[PenstockError] = []
        for shard in self._shards.values():
            try:
                self._reading(shard, shard.heartbeat)
            except PenstockError as error:
                errors.append(error)
        self._refill = True
        if errors:
            raise errors[0]

    def bookmarks(self) -> Mapping[PartitionId, Bookmark]:
        """After what was handed out."""
        holds = self._buffer.holds
        return self._known | {
            name: shard.bookmark(holds=holds(name)) for name, shard in self._shards.items()
        }

    def acknowledge(self, bookmarks: Bookmarks) -> None:
        """The source may forget everything up to these bookmarks."""
        for name, shard in self._shards.items():
            if name in bookmarks:
                shard.acknowledge(bookmarks[name])

    def close(self) -> None:
        """Closes all partitions."""
        for shard in self._shards.values():
            shard.close()
