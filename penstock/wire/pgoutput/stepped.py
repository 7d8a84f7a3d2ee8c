"""`Scan`, one message at a time: the messages that the native kernel leaves to Python."""

from typing import Any

from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.layout import RowLayout
from penstock.wire.pgoutput.scan import PADDING, Resolve, Scan


class Stepped(Scan):
    """A Scan whose payload comes in steps. Between two of them, the kernel may have moved on:
    `unit`, `ordinal` and `commit_lsn` are then to be set, and units to be added to `constants`."""

    def __init__(self, context: Context, *, resolve: Resolve, **settings: Any) -> None:
        # Not through `self`: no garbage is collected while a worker's epoch runs, so no cycles.
        fresh = self._fresh = list[int]()

        def announce(raw: bytes) -> RowLayout:
            layout = resolve(raw)
            fresh.append(layout.relation.oid)
            return layout

        super().__init__(b"", context, resolve=announce, **settings)

    def step(self, message: bytes) -> None:
        """One whole CopyData message; adds to `rows`. Raises Malformed."""
        self._data, self._end = message + PADDING, len(message)
        self.run()

    def announced(self) -> list[tuple[int, RowLayout]]:
        """The relations since the last call, and their indexes."""
        found = [self._layouts[oid] for oid in self._fresh]
        self._fresh.clear()
        return found

    @property
    def streamed(self) -> bool:
        return self._streamed

    @property
    def unit(self) -> int:
        return self._unit

    @unit.setter
    def unit(self, unit: int) -> None:
        self._unit = unit

    @property
    def ordinal(self) -> int:
        return self._ordinal

    @ordinal.setter
    def ordinal(self, ordinal: int) -> None:
        self._ordinal = ordinal

    @property
    def commit_lsn(self) -> int:
        return self._commit_lsn

    @commit_lsn.setter
    def commit_lsn(self, lsn: int) -> None:
        self._commit_lsn = lsn
