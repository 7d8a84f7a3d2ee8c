"""A sink's progress as tests look at it."""

from collections.abc import Callable
from typing import Any

from penstock.model.position import PartitionId, Place, Position


class Noted(list[Any]):
    """A `Progress` that is the list of its reports, keeps what is stored in `position`, and calls
    `then` with each report."""

    def __init__(self, then: Callable[[Any], object] = lambda _: None) -> None:
        super().__init__()
        self.position: dict[PartitionId, Place] = {}
        self._then = then

    @property
    def outages(self) -> list[str]:
        """The errors for which something was tried again."""
        return [note["error"] for note in list(self) if note.get("connected") is False]

    def stored(self, position: Position) -> None:
        """See `Progress`."""
        self.position |= position

    def report(self, status: Any) -> None:
        """See `Progress`."""
        self.append(status)
        self._then(status)
