"""Partitions that tasks read by themselves: which there are, and what tasks report of them.

Stands in for a reservoir where a feed's partitions may be read by anyone: nothing is read here.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import PenstockError
from penstock.handover.conversation import Join, Leave
from penstock.position import Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.reading.draw import group_of

__all__ = ["AssignmentDraw", "Assignments"]


class Assignments:
    """The partitions that may be read now; see `Reservoir` for what its methods are to epochs."""

    def __init__(self) -> None:
        self.wake = threading.Condition()
        self.ended: set[PartitionId] = set()
        self.drawn = 0
        self.fill = 0.0
        self.failure: PenstockError | None = None
        self._open: dict[PartitionId, Bookmark] = {}
        self._rows: dict[PartitionId, Mapping[str, Any]] = {}

    @property
    def open_partitions(self) -> Sequence[PartitionId]:
        """Those that tasks read, or may read."""
        return list(self._open)

    def open(self, partition: PartitionId, bookmark: Bookmark) -> None:
        """The partition may be read after the bookmark."""
        with self.wake:
            self._open.setdefault(partition, bookmark)
            self.wake.notify_all()

    def close(self, partition: PartitionId) -> None:
        """The partition ended, or was revoked."""
        with self.wake:
            self._open.pop(partition, None)
            self._rows.pop(partition, None)
            self.ended.discard(partition)
            self.wake.notify_all()

    def report(self, bookmarks: Bookmarks) -> None:
        """A task stored everything up to these bookmarks."""
        with self.wake:
            for name, bookmark in bookmarks.items():
                if name in self._open:
                    self._open[name] = bookmark
                    if bookmark.ended:
                        self.ended.add(name)

    def report_rows(self, rows: Mapping[PartitionId, Mapping[str, Any]]) -> None:
        """The status of partitions, as their task has it; see `Following.status`."""
        with self.wake:
            self._rows |= {name: row for name, row in rows.items() if name in self._open}

    def is_done(self, partition: PartitionId, durable: Place | None) -> bool:
        """Whether a task reported that the partition has ended, and is wholly stored."""
        return partition in self.ended

    def bookmark(self, partition: PartitionId, place: Place | None) -> Bookmark | None:
        """What a task reported last."""
        found = self._open.get(partition)
        return found if found is not None and found.place == place else None

    def stored(self, places: Position) -> int:
        """No page is held here."""
        return 0

    def acknowledge(self, saved: Bookmarks) -> None:
        """Sources that anyone may read keep nothing for us."""

    def check(self) -> None:
        """Raises what a task failed with."""
        if self.failure is not None:
            raise self.failure

    def rows(self) -> Mapping[PartitionId, Mapping[str, Any]]:
        """Plain JSON of every partition, as its task has it."""
        return {
            name: {
                "connected": True,
                **self._rows.get(name, {}),
                "place": str(each.place) if each.place else None,
            }
            for name, each in dict(self._open).items()
        }

    def of(self, group: int, groups: int) -> dict[PartitionId, Bookmark]:
        """The partitions of one group; with `wake` held."""
        return {n: each for n, each in self._open.items() if group_of(n, groups) == group}

    def stop(self, timeout: float) -> bool:
        """Nothing runs here."""
        return True


class AssignmentDraw:
    """Which partitions the task of one group reads, as they join and leave."""

    def __init__(self, assignments: Assignments, group: int, groups: int) -> None:
        self._assignments = assignments
        self._group, self._groups = group, groups
        self._told: set[PartitionId] = set()

    def next(self, wait: float) -> tuple[Sequence[Join | Leave], bool]:
        """See `draw.Draw`."""
        with self._assignments.wake:
            found = self._changed()
            if not found:
                self._assignments.check()
                self._assignments.wake.wait(wait)
                found = self._changed()
            return found, False

    def _changed(self) -> list[Join | Leave]:
        now = self._assignments.of(self._group, self._groups)
        joined = {name: each for name, each in now.items() if name not in self._told}
        left = [name for name in self._told if name not in now]
        self._told = set(now)
        changed: list[Join | Leave] = []
        if left:
            changed.append(Leave(left))
        if joined:
            changed.append(Join(joined))
        return changed

    def close(self) -> None:
        """See `draw.Draw`."""
