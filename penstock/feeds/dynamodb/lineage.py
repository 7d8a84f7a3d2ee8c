"""The tree of a stream's shards, as pure code: from what DescribeStream lists, in any order; and
the partitions of a table's streams, one after the other.

A shard has one parent at most. A parent that is not listed any more is done: its records are gone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.feeds import Lineage
from penstock.model.position import Bookmark, Bookmarks, PartitionId

# In the mark of a stream's first partitions: which stream of the table there was before it.
REPLACES = "replaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShard:
    """One shard of a stream. `last`: the last sequence number, None while the shard is open."""

    id: str
    parent: str | None = None
    last: int | None = None

    @property
    def is_open(self) -> bool:
        return self.last is None

    @classmethod
    def of(cls, listed: dict[str, Any]) -> "StreamShard":
        """From an entry of DescribeStream's `Shards`."""
        last = listed.get("SequenceNumberRange", {}).get("EndingSequenceNumber")
        return cls(
            id=listed["ShardId"],
            parent=listed.get("ParentShardId") or None,
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
    def leaves(self) -> list[StreamShard]:
        return [each for each in self.ordered if not self._children.get(each.id)]

    @property
    def open_leaves(self) -> list[StreamShard]:
        """Those that take records now."""
        return [each for each in self.leaves if each.is_open]

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


def partition_of(label: str, shard: str) -> PartitionId:
    """A shard's name in all streams of a table."""
    return PartitionId(f"{label}/{shard}")


def label_of(partition: PartitionId) -> str:
    return partition.rpartition("/")[0]


def start_of(label: str) -> PartitionId:
    """The bookmark of where reading of a stream began: an ended partition, and a parent of all
    shards whose own parents are not there: one that is listed late begins where the others did."""
    return partition_of(label, "start")


def lineages(trees: Mapping[str, ShardTree], known: Bookmarks) -> list[Lineage]:
    """The partitions of a table's streams, by label; parents first. A child inherits where its
    parents began, if nothing was read of them. A stream's first shards are children of the last
    ones that are known of the stream before it."""
    found: list[Lineage] = []
    last: tuple[PartitionId, ...] = ()
    for label in sorted({*trees, *map(label_of, known)}):
        tree = trees.get(label) or ShardTree(())
        is_whole = _is_whole(label, tree, known)
        for shard in tree.ordered:
            parents = _parents(label, shard, tree, last, known)
            found.append(
                Lineage(
                    partition=partition_of(label, shard.id),
                    parents=parents,
                    first=_first(label, parents, known),
                    whole=is_whole and start_of(label) in parents,
                )
            )
        listed = {partition_of(label, each) for each in tree.shards}
        before = [name for name in known if label_of(name) == label and name not in listed]
        leaves = [partition_of(label, shard.id) for shard in tree.leaves]
        last = (*leaves, *before) or last
    return found


def _is_whole(label: str, tree: ShardTree, known: Bookmarks) -> bool:
    """Whether a shard that descends from nothing known begins where the stream was begun: else it
    may descend from a child of a known shard that ended, which came and went unread."""
    ended = {name for name, each in known.items() if each.ended and label_of(name) == label}
    followed = {
        partition_of(label, each.parent)
        for each in tree.shards.values()
        if each.parent is not None and partition_of(label, each.id) in known
    }
    return ended <= {start_of(label), *followed}


def _parents(
    label: str,
    shard: StreamShard,
    tree: ShardTree,
    last: tuple[PartitionId, ...],
    known: Bookmarks,
) -> tuple[PartitionId, ...]:
    start = start_of(label)
    if shard.parent is not None:
        parent = partition_of(label, shard.parent)
        is_there = shard.parent in tree.shards or parent in known
        return (parent,) if is_there or start not in known else (parent, start)
    return (start,) if start in known else last


def _first(label: str, parents: Sequence[PartitionId], known: Bookmarks) -> Bookmark | None:
    marks = {name: known[name].to_json() for name in parents if name in known}
    if not marks:
        return None
    before = {label_of(name) for name in marks} - {label}
    return Bookmark(mark={REPLACES: max(before)} if before else {"parents": marks})
