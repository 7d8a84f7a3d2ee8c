"""Partitions that tasks read by themselves: which there are, and what tasks report of them.

Nothing is read here: a feed's partitions may be read by anyone.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.microbatch.draw import Draw
from penstock.microbatch.ticket import Join, Leave, Rows
from penstock.model.position import Bookmark, Bookmarks, PartitionId


class Assignments:
    """The partitions that may be read now. `limit`: of what all tasks together buffer, in bytes."""

    def __init__(self, limit: int) -> None:
        self.wake = threading.Condition()
        # As a reservoir's: over all tasks, as they have reported it.
        self.counts = {"events": 0, "pages": 0, "reconnects": 0}
        self._limit = limit
        self._open: dict[PartitionId, Bookmark] = {}
        # By number of groups: the group of each partition, which it keeps while it is open.
        self._groups: dict[int, dict[PartitionId, int]] = {}
        self._rows: dict[PartitionId, Mapping[str, Any]] = {}

    @property
    def open_partitions(self) -> Sequence[PartitionId]:
        return list(self._open)

    def open(self, partition: PartitionId, bookmark: Bookmark) -> None:
        with self.wake:
            self._open.setdefault(partition, bookmark)
            self.wake.notify_all()

    def close(self, partition: PartitionId) -> None:
        with self.wake:
            self._open.pop(partition, None)
            self._rows.pop(partition, None)
            self.wake.notify_all()

    def reached(self, bookmarks: Bookmarks) -> None:
        """Everything up to these bookmarks is stored; a partition that ended is closed."""
        with self.wake:
            for name, bookmark in bookmarks.items():
                if bookmark.ended:
                    self.close(name)
                elif name in self._open:
                    self._open[name] = bookmark

    def report_rows(self, reported: Rows) -> None:
        """Takes in the status of a task's partitions (`Following.status`), and what it counted."""
        with self.wake:
            self._rows |= {name: row for name, row in reported.rows.items() if name in self._open}
            for name in self.counts:
                self.counts[name] += reported.counts.get(name, 0)

    @property
    def connected(self) -> int:
        """How many partitions are read."""
        return len(self._open)

    @property
    def drawn(self) -> int:
        """How many changes tasks have taken."""
        return self.counts["events"]

    @property
    def fill(self) -> float:
        """How full the tasks' buffers are, in percent."""
        rows = dict(self._rows)  # one step, whatever other threads do meanwhile
        held: int = sum(row.get("buffered_bytes", 0) for row in rows.values())
        return round(100 * held / self._limit, 1)

    def rows(self) -> Mapping[PartitionId, Mapping[str, Any]]:
        return {
            name: {
                "connected": True,
                **self._rows.get(name, {}),
                "place": str(each.place) if each.place else None,
            }
            for name, each in dict(self._open).items()
        }

    def of(self, group: int, groups: int) -> dict[PartitionId, Bookmark]:
        """The partitions of one group; with `wake` held. A new one joins the smallest group."""
        before = self._groups.get(groups, {})
        placed = {name: before[name] for name in self._open if name in before}
        sizes = Counter(dict.fromkeys(range(groups), 0))
        sizes.update(placed.values())
        for name in self._open:
            if name not in placed:
                placed[name] = min(sizes, key=lambda each: (sizes[each], each))
                sizes[placed[name]] += 1
        self._groups[groups] = placed
        return {name: each for name, each in self._open.items() if placed[name] == group}


class AssignmentDraw(Draw):
    """Which partitions the task of one group reads, as they join and leave."""

    def __init__(self, assignments: Assignments, group: int, groups: int) -> None:
        self._assignments = assignments
        self._group, self._groups = group, groups
        self._joined: set[PartitionId] = set()

    def next(self, wait: float) -> tuple[Sequence[Join | Leave], bool]:
        with self._assignments.wake:
            if not (found := self._changed()):
                self._assignments.wake.wait(wait)
                found = self._changed()
            return found, False

    def _changed(self) -> list[Join | Leave]:
        now = self._assignments.of(self._group, self._groups)
        joined = {name: each for name, each in now.items() if name not in self._joined}
        left = [name for name in self._joined if name not in now]
        self._joined = set(now)
        changed: list[Join | Leave] = [Leave(left)] if left else []
        return [*changed, Join(joined)] if joined else changed
