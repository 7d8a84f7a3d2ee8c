"""Which changes share a message, with `messages: batch`. Pure.

Three things must hold. *No two routes in one message*: a consumer of a subject gets that subject.
*Order per key*: a key's changes may have several routes (its insert, its update, another tenant),
but one table. So a table has one open message at a time: a change of another route of the same
table closes it, and messages are stored in the order of their last changes, in which the messages
of one table never overlap. Changes of different tables do pass each other, and with hash partitions
those of different partitions of one table; a logical message, which is in no table, and a change
that concerns a whole table (TRUNCATE, DROP) close every open message, so that nothing passes them.

*The stream's last message says what is stored.* Its position is that of its last change, and the
messages of interleaved tables overlap: with a1 b1 a2 b2, message (a1 a2) is stored first, and
names a2, while b1 is still to come. A batch of messages therefore may only end where everything
up to its last change is in it (`ends`): behind (b1 b2). Atomic batches are cut there and stored
whole, so whatever crashes, the stream holds a prefix of the changes, its last message names the
prefix's end, and a restart that drops what is not behind that place neither loses nor repeats one.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.sinks.encoding.columns import Numbers

__all__ = ["Group", "ends_of", "grouped"]

Sizes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class Group:
    """The changes of one message, as runs of rows: (first, behind the last), ascending."""

    kind: int
    runs: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    size: int = 0

    @property
    def last(self) -> int:
        """The row of its last change."""
        return self.runs[-1][1] - 1

    def rows(self) -> Sizes:
        """All its rows."""
        return np.concatenate([np.arange(*run, dtype=np.int64) for run in self.runs])

    def add(self, start: int, stop: int, size: int) -> None:
        """Rows behind those it has."""
        if self.runs and self.runs[-1][1] == start:
            start = self.runs.pop()[0]
        self.runs.append((start, stop))
        self.count = sum(stop - start for start, stop in self.runs)
        self.size += size


def grouped(
    kinds: Numbers, tables: Sequence[Hashable | None], sizes: Sizes, *, most: int, largest: int
) -> list[Group]:
    """The messages of some rows, in the order in which they are to be stored.

    `kinds` is each row's route, `tables` each route's table, `sizes` each row's bytes. A message
    has at most `most` changes of together at most `largest` bytes; a larger change is alone.
    """
    totals = np.concatenate(([0], np.cumsum(sizes)))
    bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    found: list[Group] = []
    opened: dict[Hashable, Group] = {}
    for start, stop in pairwise(bounds):
        kind = int(kinds[start])
        table = tables[kind]
        if table is None:
            opened.clear()
        group = opened.get(table)
        at = start
        while at < stop:
            if group is None or group.kind != kind:
                found.append(group := Group(kind))
            room = int(np.searchsorted(totals, totals[at] + largest - group.size, side="right"))
            fits = min(room - 1, at + most - group.count, stop)
            until = max(fits, at if group.count else at + 1)
            if until == at:
                group = None
                continue
            group.add(at, until, int(totals[until] - totals[at]))
            at = until
        if table is not None and group is not None:
            opened[table] = group
    return sorted(found, key=lambda group: group.last)


def ends_of(groups: Sequence[Group]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Behind which messages everything up to their last change has been said."""
    said = np.cumsum([group.count for group in groups])
    return np.asarray(said == np.array([group.last + 1 for group in groups]), np.bool_)
