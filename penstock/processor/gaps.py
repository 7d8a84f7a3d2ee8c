"""Gaps of the partitions of a host, recorded before anything else is done about them."""

from contextlib import suppress

from penstock.feeds import Feed, Gap, KnowsReader
from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.position import Bookmark, PartitionId
from penstock.reading.gaps import GapLog
from penstock.reading.host_leases import HostLeases


class LeasedGaps:
    """A `passed_gaps.GapRecorder`: only the owner of a lease connects, and records."""

    def __init__(self, feed: Feed, leases: HostLeases) -> None:
        self.log = GapLog(leases.positions)
        self._feed = feed
        self._leases = leases

    def verify(self, partition: PartitionId) -> None:
        """Called before a connection is made. Ends the connection of an owner that lost the lease
        and does not let go, where the source has one reader."""
        if not self._leases.holds(partition):  # else no other has it: the store need not be asked
            self.log.verify(partition)
        self._check(partition)
        reader = self._leases.predecessors.get(partition)
        if reader and isinstance(self._feed, KnowsReader):
            with suppress(Unavailable):
                for holder in self._feed.holders():
                    if (holder.partition, holder.reader) == (partition, reader):
                        self._feed.evict(holder)
                self._leases.predecessors.pop(partition, None)

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        """See `GapRecorder`."""
        self.log.verify(partition)
        self._check(partition)
        self.log.lost(partition, gap, bookmark, to=to)
        self._check(partition)

    def _check(self, partition: PartitionId) -> None:
        if not self._leases.is_ours(partition):
            raise LeaseLost(f"the lease of {partition} was taken by another host")
