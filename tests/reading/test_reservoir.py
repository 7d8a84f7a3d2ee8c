"""Threads of a reservoir whose partitions are at several sources, of which some do not answer."""

import threading
from typing import Any

from penstock.feeds import Following
from penstock.leases.memory import MemoryStore
from penstock.model.errors import Unavailable
from penstock.model.position import START, PartitionId
from penstock.reading.gaps import GapLog
from penstock.reading.reservoir import THREADS, TRIES, Reservoir
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.reading.made import P0, positions_of
from tests.waiting import until


class Hanging(StagedFeed):
    """All partitions but the first are away: then their connections are made without an end."""

    def __init__(self) -> None:
        super().__init__(StagedSettings(partitions=3 * THREADS, changes=10, page=10))
        self.failed: set[PartitionId] = set()
        self.trying: set[PartitionId] = set()
        self.over = threading.Event()

    def follow(self, partition: PartitionId, *where: Any, **more: Any) -> Following:
        if partition == P0:
            return super().follow(partition, *where, **more)
        if partition in self.failed:
            self.trying.add(partition)
            self.over.wait()
        self.failed.add(partition)
        raise Unavailable("it does not answer")


def test_sources_that_do_not_answer_leave_threads_for_the_others() -> None:
    feed = Hanging()
    reservoir = Reservoir(feed, limit=10**6, gaps=GapLog(positions_of(MemoryStore())))
    for each in feed.partitions():
        if each.partition != P0:
            reservoir.open(each.partition, START)
    until(lambda: len(feed.trying) >= TRIES and len(feed.failed) == 3 * THREADS - 1)
    reservoir.open(P0, START)
    try:
        until(lambda: reservoir.rows()[P0]["buffered_events"] == 10)
        assert len(feed.trying) == TRIES
    finally:
        feed.over.set()
        assert reservoir.stop(30)
