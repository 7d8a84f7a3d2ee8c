"""The read side of a reader process over a feed, without Spark."""

import time
from collections.abc import Callable

from penstock.feeds import Feed
from penstock.microbatch.planner import Planner, ReadLimits
from penstock.model.position import Bookmark, PartitionId
from penstock.reading.gaps import GapLog
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster


class Reading:
    """Reads from the beginning, or after `done`; `found` has shard and key of every change. `clock`
    is of its look-ups, in monotonic seconds."""

    def __init__(
        self,
        feed: Feed,
        done: dict[PartitionId, Bookmark] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gaps = GapLog(None)
        self.found: list[tuple[str, str]] = []
        self.done = dict(feed.begin()) if done is None else done
        limits = ReadLimits(patience=0.0)
        self._reservoir = Reservoir(feed, limit=limits.buffer, gaps=self.gaps)
        self._planner = Planner(self._reservoir, Roster(feed, clock=clock), limits=limits)
        self._decoder = feed.decoder("json")

    def read(self) -> None:
        """One micro-batch, of what there is. Raises PositionLost."""
        end = self._planner.advance(self.done, patience=0.1)
        for split in self._planner.splits(self.done, end):
            for part in split.parts:
                for page in part.pages:
                    for batch in self._decoder.decode(page):
                        shards, keys = batch.column("partition"), batch.column("document_id")
                        self.found += zip(shards.to_pylist(), keys.to_pylist(), strict=True)
        self.done = dict(end)

    def stop(self) -> None:
        """Stops reading."""
        self._reservoir.stop(5.0)
