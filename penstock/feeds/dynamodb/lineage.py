"""The tree of a stream's shards, as pure code: from what DescribeStream lists, in any order.

A shard has one parent at most. A parent that is not listed any more is done: its records are gone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShard:
    """One shard of a stream. `first` and `last` are sequence numbers, which compare as integers;
    `last` is None while the shard is open."""

    id: str
    parent: str | None = None
    first: int = 0
    last: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether records may still come."""
        return self.last is None

    @classmethod
    def of(cls, listed: dict[str, Any]) -> "StreamShard":
        """From an entry of DescribeStream's `Shards`."""
        numbers = listed.get("SequenceNumberRange", {})
        last = numbers.get("EndingSequenceNumber")
        return cls(
            id=listed["ShardId"],
            parent=listed.get("ParentShardId") or None,
            first=int(numbers.get("StartingSequenceNumber", 0)),
            last=None if last is None else int(last),
        )


class ShardTree:
    """Shards by id. Of a shard that is listed twice, a closed one counts: shards do not reopen."""

    def __init__(self, shards: Iterable[StreamShard]) -> None:
        self.shards: dict[str, StreamShard] = {}
        for each in shards:
            known = self.shards.get(each.id)
            if known is None or known.is_open:
                self.shards[each.id] = each
        self._children: dict[str, list[str]] = {}
        for each in self.shards.values():
            if each.parent is not None:
                self._children.setdefault(each.parent, []).append(each.id)

    @property
    def roots(self) -> list[StreamShard]:
        """Those without a parent that is listed."""
        return [each for each in self.ordered if each.parent not in self.shards]

    @property
    def open_leaves(self) -> list[StreamShard]:
        """Those that take records now."""
        return [each for each in self.ordered if each.is_open and not self._children.get(each.id)]

    @property
    def leaves(self) -> list[StreamShard]:
        """Those without a child."""
        return [each for each in self.ordered if not self._children.get(each.id)]

    @property
    def ordered(self) -> list[StreamShard]:
        """All, parents before their children."""
        found, waiting = [], sorted(
            (each.id for each in self.shards.values() if each.parent not in self.shards),
            reverse=True,
        )  # fmt: skip
        while waiting:
            name = waiting.pop()
            found.append(self.shards[name])
            waiting += sorted(self._children.get(name, ()), reverse=True)
        return found

    def children(self, shard: str) -> Sequence[str]:
        """The ids of a shard's children, also of one that is not listed any more."""
        return sorted(self._children.get(shard, ()))

    def descendants(self, shard: str) -> list[str]:
        """Children, their children and so on, also of a shard that is not listed any more."""
        found: list[str] = []
        waiting = list(self.children(shard))
        while waiting:
            name = waiting.pop(0)
            found.append(name)
            waiting += self.children(name)
        return found
