"""A sink's progress as tests look at it."""

from collections.abc import Callable
from typing import Any

from penstock.model.position import PartitionId, Place, Position


class Noted:
    """A `Progress` that keeps what is stored in `position`, and calls `report` with each report."""

    def __init__(self, report: Callable[[Any], object] = lambda _: None) -> None:
        self.position: dict[PartitionId, Place] = {}
        self.report = report

    def stored(self, position: Position) -> None:
        """See `Progress`."""
        self.position |= position
