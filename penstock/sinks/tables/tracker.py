"""How far each partition is: its changes are committed by several workers, in any order. Pure.

What lies before the first change that is not committed is stored; changes that no table of the map
has, and traffic without changes, advance it as well.
"""

from collections import deque
from collections.abc import Iterable

from penstock.model.position import PartitionId, Place, Position


class Tracker:
    """What was handed over together, of each partition in its order: up to which place, and which
    workers have not committed what they have of it. Used by one thread."""

    def __init__(self) -> None:
        self._entries: dict[PartitionId, deque[tuple[Place, set[int]]]] = {}

    def open(self, partition: PartitionId, last: Place, workers: Iterable[int]) -> set[int]:
        """Notes changes up to a place, of which these workers have some. Each takes its number out
        of the returned set, in its own thread, when it has committed them."""
        pending = set(workers)
        self._entries.setdefault(partition, deque()).append((last, pending))
        return pending

    def stored(self) -> Position:
        """The places up to which everything is stored, of partitions that advanced since the last
        call."""
        found: dict[PartitionId, Place] = {}
        for partition, entries in self._entries.items():
            while entries and not entries[0][1]:
                found[partition], _ = entries.popleft()
        return found

    @property
    def is_idle(self) -> bool:
        return not any(self._entries.values())
