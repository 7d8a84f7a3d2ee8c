"""Offsets and splits of one feed: what Spark's driver-side source process does, without Spark.

`advance(start)` runs on every trigger, idle or not, and only after the batch that ended at `start`
was committed to the sink. So `start` is durable: that is where the position is saved, and then the
source is acknowledged, in this order. Spark's own `commit` comes a batch late, or never.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.feeds import Feed, Mark
from penstock.handover.split import Split
from penstock.page import Page
from penstock.position import DRAINED, PartitionId, Place, Position
from penstock.reading.gap_log import GapLog
from penstock.reading.positions import Save
from penstock.reading.reservoir import Reservoir

__all__ = ["Planner", "ReadLimits"]

Offset = dict[PartitionId, Place]
# What lies in a partition behind one place, up to another.
Range = tuple[PartitionId, Place | None, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """`events` and `bytes` bound one micro-batch of one partition (at least one page always
    passes); `buffer` bounds what is held in memory, in bytes; `patience` is how long an idle
    trigger waits for a first change, in seconds."""

    events: int = 50_000
    bytes: int = 16 * 2**20
    buffer: int = 48 * 2**20
    patience: float = 0.5


class Planner:
    """Plans micro-batches over all partitions of a feed. One thread calls it; `draw`, `settle`,
    `marks`, `settled` and `status` may be called from others meanwhile.

    `save` is `Positions.save` or `in_spark`: what it returns is saved, and only that is
    acknowledged to the source.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        limits: ReadLimits,
        save: Save,
        watch: Callable[[], None] = lambda: None,
        ledger: GapLog | None = None,
    ) -> None:
        self._feed = feed
        self._limits = limits
        self._save = save
        self._watch = watch
        self._ledger = ledger
        self._wake = threading.Condition()
        # Replaced, never changed: other threads walk through it.
        self._reservoirs: Mapping[PartitionId, Reservoir] = {}
        # The drained partitions when the feed was last asked for its partitions.
        self._done: set[PartitionId] | None = None
        # How many changes `splits` and `draw` have handed out, by whole pages.
        self.drawn = 0

    def advance(self, start: Position, *, patience: float | None = None) -> Position:
        """The end of the next micro-batch; `start` itself if nothing came in time.

        Everything up to `start` is durable in the sink.
        """
        self._fill_from(start)
        self.settle(start)
        deadline = time.monotonic() + (self._limits.patience if patience is None else patience)
        with self._wake:
            while True:
                end = self._end(start)
                left = deadline - time.monotonic()
                if end != start or left <= 0:
                    return end
                self._wake.wait(left)

    def ranges(
        self, start: Position, end: Position
    ) -> list[tuple[PartitionId, Place | None, Place]]:
        """What lies between two offsets, where there may be changes."""
        self._fill_from(start)
        return [
            (partition, start.get(partition), until)
            for partition, until in end.items()
            if until != start.get(partition)
        ]

    def settle(self, durable: Position, *, force: bool = False) -> None:
        """Everything up to `durable` is in the sink: save it (now, if `force`), then tell the
        source what is saved."""
        with self._wake:
            changes = sum(
                pool.release(durable[name])
                for name, pool in self._reservoirs.items()
                if name in durable
            )
        saved = self._save(durable, changes, force=force)
        for name, pool in self._reservoirs.items():
            if name in saved:
                pool.acknowledge(saved[name])

    def splits(self, start: Position, end: Position) -> list[Split]:
        """The changes between two offsets, a split for each partition; the same again each time.

        From a cold planner (after a crash) it reads them from the source again, and waits for
        them for as long as the source needs to come back.
        """
        made = []
        ranges = self.ranges(start, end)
        with self._wake:
            for partition, after, until in ranges:
                reservoir = self._reservoirs[partition]
                while not reservoir.reaches(until):
                    self._wake.wait(1.0)
                pages = tuple(_up_to(reservoir.beyond(after), until))
                if pages:
                    made.append(Split(pages=pages, after=after, until=until))
                    self.drawn += sum(page.count for page in pages)
        return made

    def open(self, position: Position) -> Sequence[PartitionId]:
        """Starts to read what may be read behind `position`; the partitions that are read."""
        self._fill_from(position)
        return [name for name in self._reservoirs if position.get(name) != DRAINED]

    def draw(
        self, partition: PartitionId, after: Place | None, until: Place | None, wait: float
    ) -> tuple[Sequence[Page], bool]:
        """The buffered pages behind `after` (up to `until`), waiting at most `wait` seconds for
        the first; and whether nothing more will come. Any thread; raises what reading failed
        with. Read in this way, a cold planner's pages go out as they come in."""
        reservoir = self._reservoirs[partition]
        with self._wake:
            pages, over = _drawn(reservoir, after, until)
            if not pages and not over and wait > 0:
                self._wake.wait(wait)
                pages, over = _drawn(reservoir, after, until)
            self.drawn += sum(page.count for page in pages)
        return pages, over

    def ended(self, position: Position) -> set[PartitionId]:
        """The partitions that have ended, with nothing left behind `position`."""
        with self._wake:
            return {
                name
                for name, pool in self._reservoirs.items()
                if pool.drained and not any(pool.beyond(position.get(name)))
            }

    def marks(self, durable: Position) -> Mapping[PartitionId, Mark]:
        """What to store beside the durable position of every partition that is being read."""
        found = {name: pool.mark(durable.get(name)) for name, pool in self._reservoirs.items()}
        return {name: mark for name, mark in found.items() if mark}

    def settled(self, partition: PartitionId, mark: Mark) -> None:
        """`mark` is stored: the source may be told as much as it covers."""
        self._reservoirs[partition].settle(mark)

    def status(self) -> Mapping[str, Any]:
        """Plain JSON of every partition, summed where sums make sense."""
        parts = {name: dict(pool.status()) for name, pool in self._reservoirs.items()}
        if len(parts) == 1:
            return next(iter(parts.values()))
        return {
            "connected": all(part["connected"] for part in parts.values()),
            "partitions": parts,
        }

    def stop(self, timeout: float = 5.0) -> None:
        """Stops reading; sources hear the last acknowledgement. Nothing depends on it."""
        for reservoir in self._reservoirs.values():
            reservoir.stop(timeout)

    def _fill_from(self, start: Position) -> None:
        """Starts to read the partitions whose parents are done; looks for new ones only at the
        start and when one has ended, because looking is I/O."""
        done = {name for name, place in start.items() if place == DRAINED}
        if self._done == done:
            return
        for lineage in self._feed.partitions():
            ready = all(parent in done for parent in lineage.parents)
            if ready and lineage.partition not in done | self._reservoirs.keys():
                self._open(lineage.partition, start.get(lineage.partition))
        self._done = done

    def _open(self, name: PartitionId, after: Place | None) -> None:
        reservoir = Reservoir(
            self._feed,
            name,
            after,
            limit=self._limits.buffer,
            wake=self._wake,
            watch=self._watch,
            ledger=self._ledger,
        )
        self._reservoirs = {**self._reservoirs, name: reservoir}
        reservoir.start()

    def _end(self, start: Position) -> Offset:
        end = dict(start)
        for partition, reservoir in self._reservoirs.items():
            pages = self._within(reservoir, start.get(partition))
            if pages:
                end[partition] = pages[-1].last
            elif reservoir.drained:
                end[partition] = DRAINED
        return end

    def _within(self, reservoir: Reservoir, after: Place | None) -> Sequence[Page]:
        chosen: list[Page] = []
        events = size = 0
        for page in reservoir.beyond(after):
            events += page.count
            size += page.size
            if chosen and (events > self._limits.events or size > self._limits.bytes):
                break
            chosen.append(page)
        return chosen


def _drawn(
    reservoir: Reservoir, after: Place | None, until: Place | None
) -> tuple[Sequence[Page], bool]:
    beyond = reservoir.beyond(after)
    if until is None:
        return list(beyond), reservoir.drained
    return _up_to(beyond, until), reservoir.reaches(until)


def _up_to(pages: Iterable[Page], until: Place) -> Sequence[Page]:
    chosen = []
    for page in pages:
        if page.first > until:
            break
        chosen.append(page)
    return chosen
