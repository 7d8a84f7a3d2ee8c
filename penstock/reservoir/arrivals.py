"""What one consumer of a reservoir has not taken yet."""

from collections.abc import Callable

from penstock.position import PartitionId, Place

__all__ = ["Arrivals"]


class Arrivals:
    """Which partitions have pages that one consumer has not taken yet, oldest arrival first, and
    how far it took each. `wants` chooses the consumer's partitions."""

    def __init__(self, wants: Callable[[PartitionId], bool] = lambda _: True) -> None:
        self.wants = wants
        self.fresh: dict[PartitionId, None] = {}
        self.taken: dict[PartitionId, Place] = {}
