"""Open micro-batches of a host that divides a feed's partitions with others by leases.

A partition that another host asks for is handed over between two epochs, when everything of it is
stored: the open epoch is cut short, the bookmarks are saved, and only then is the lease given back.
"""

import threading
import time
from collections.abc import Callable, Sequence

from penstock.errors import Unavailable
from penstock.position import PartitionId
from penstock.reading.assignments import AssignmentDraw, Assignments
from penstock.reading.epochs import SAVE, AssignedEpochs, Epoch, Lengths
from penstock.reading.positions import Positions
from penstock.reading.sharing import SharedPartitions


class SharedEpochs(AssignedEpochs):
    """Where only partitions are read whose leases are this host's."""

    def __init__(
        self,
        assignments: Assignments,
        shared: SharedPartitions,
        positions: Positions,
        lengths: Lengths,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(assignments, shared, positions, lengths, clock)
        self._shared = shared
        # Two threads give partitions up: the one that watches, and the one that plans.
        self._giving = threading.RLock()
        self._ended_at = clock()  # when ends of partitions are to be saved next

    def draw(self, group: int, groups: int) -> AssignmentDraw:
        """See AssignedEpochs. A host whose tasks do not run takes no lease."""
        self._shared.start()
        return super().draw(group, groups)

    def plan(self, number: int) -> list[Epoch]:
        """See Epochs. Nothing is in flight: what other hosts ask for is handed over."""
        self._hand_over()
        self._shared.renew_epoch()
        return super().plan(number)

    def is_cut_short(self) -> bool:
        """See Epochs."""
        return super().is_cut_short() or bool(self._shared.asked) or self._shared.has_given_up

    def watch(self, timeout: float = 0.0) -> None:
        """See Epochs. What another host may have by now is read no longer."""
        with self._giving:
            for name in self._shared.doubtful(list(self.durable)):
                self.revoke(name)
        super().watch(timeout)
        self._save_ends()

    def revoke(self, partition: PartitionId) -> None:
        """See Epochs."""
        super().revoke(partition)
        self._shared.give_up(partition)

    def finish(self) -> None:
        """See Epochs. Gives all leases back."""
        self.save()
        with self._giving:
            for name in list(self.durable):
                super().revoke(name)
            self._shared.leave()

    def _hand_over(self) -> None:
        names = [name for name in self.durable if name in self._shared.asked]
        if names and self._is_saved():
            with self._giving:
                names = self._given(names)
                self._shared.release(names)

    def _save_ends(self) -> None:
        """The end of a partition is saved before its lease is given back, and only after that are
        its children looked for."""
        ended = [name for name, bookmark in self.durable.items() if bookmark.ended]
        if not ended or self._clock() < self._ended_at:
            return
        self._ended_at = self._clock() + SAVE
        if self._is_saved():
            with self._giving:
                self._shared.ended(self._given(ended))

    def _given(self, partitions: Sequence[PartitionId]) -> list[PartitionId]:
        """Those that are still ours, and are read no longer."""
        known = self.durable
        names = [name for name in partitions if name in known]
        for name in names:
            super().revoke(name)
        return names

    def _is_saved(self) -> bool:
        try:
            self.save()
        except Unavailable:
            return False
        return True
