"""How far each partition is: its changes are committed by several workers, in any order. Pure.

What lies before the first change that is not committed is stored; changes that no table of the map
has, and traffic without changes, advance it as well.
"""

import threading
from collections import deque

from penstock.model.position import PartitionId, Place, Position


class HandedOver:
    """Changes that were handed over together, up to `last`, to some workers: stored once each of
    these has called `finish`."""

    def __init__(self, last: Place, workers: int) -> None:
        self.last, self._open = last, workers
        self._lock = threading.Lock()

    def finish(self) -> None:
        """One of them has committed its part."""
        with self._lock:
            self._open -= 1

    @property
    def is_stored(self) -> bool:
        """Whether nobody has uncommitted changes of it."""
        return not self._open


class Tracker:
    """The entries of each partition in their order. Used by one thread."""

    def __init__(self) -> None:
        self._entries: dict[PartitionId, deque[HandedOver]] = {}

    def open(self, partition: PartitionId, last: Place, workers: int) -> HandedOver:
        """Notes changes up to a place, of which so many workers have some."""
        entry = HandedOver(last, workers)
        self._entries.setdefault(partition, deque()).append(entry)
        return entry

    def stored(self) -> Position:
        """The places up to which everything is stored, of partitions that advanced since the last
        call."""
        found: dict[PartitionId, Place] = {}
        for partition, entries in self._entries.items():
            while entries and entries[0].is_stored:
                found[partition] = entries.popleft().last
        return found

    @property
    def is_idle(self) -> bool:
        """Whether all changes are stored."""
        return not any(self._entries.values())
