"""Several owners of one feed's partitions, simulated: splits and merges, interleaved at each call
of the store. No partition is read twice, and none begins anywhere but where its parents ended."""

import json
from builtins import list as List  # `list` is a method here
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from penstock.errors import LeaseLost
from penstock.feeds import Lineage
from penstock.leases import Lease
from penstock.leases.memory import MemoryStore
from penstock.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.positions import Positions
from penstock.reading.roster import openings
from tests.reading.made import Clock, place

PREFIX = "shop/default/"


class Store(MemoryStore):
    """Which partitions had rows, with their first and their last bookmarks."""

    def __init__(self, source: "Source") -> None:
        super().__init__()
        self.source = source
        self.first: dict[str, Bookmark] = {}
        self.last: dict[str, Bookmark] = {}

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        answers = super().put_all(leases)
        for asked, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Lease):
                name = answer.name.removeprefix(PREFIX)
                self.last[name] = bookmark_of(answer)
                if not asked.revision:
                    assert name not in self.first, "it is read twice"
                    self.first[name] = bookmark_of(answer)
        return answers

    def delete(self, lease: Lease) -> None:
        super().delete(lease)
        name = lease.name.removeprefix(PREFIX)
        assert self.last[name].ended
        assert self.source.children(name) <= self.first.keys(), "nobody knows where they begin"

    def known(self) -> dict[PartitionId, Bookmark]:
        rows = self.list(PREFIX)
        return {PartitionId(row.name.removeprefix(PREFIX)): bookmark_of(row) for row in rows}


def bookmark_of(row: Lease) -> Bookmark:
    return Bookmark.from_json(json.loads(row.continuation))


class Source:
    """Partitions that split and merge, and are trimmed some time after they were read."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.listed = [Lineage(partition=PartitionId(f"p{n}"), parents=()) for n in range(3)]
        self.trimmed: set[str] = set()

    def partitions(self, known: Bookmarks) -> List[Lineage]:
        left = [each for each in self.listed if each.partition not in self.trimmed]
        return [replace(each, first=self.first(each, known)) for each in left]

    def first(self, lineage: Lineage, known: Bookmarks) -> Bookmark:
        parents = [name for name in lineage.parents if name in known]
        return Bookmark(mark={"parents": {name: known[name].to_json() for name in parents}})

    def children(self, name: str) -> set[str]:
        return {each.partition for each in self.listed if name in each.parents}

    def grow(self) -> None:
        leaves = [each.partition for each in self.listed if not self.children(each.partition)]
        chosen = tuple(self.random.sample(leaves, min(len(leaves), self.random.choice([1, 1, 2]))))
        for _ in range(1 if len(chosen) > 1 else 2):
            name = PartitionId(f"p{len(self.listed)}")
            self.listed.append(Lineage(partition=name, parents=chosen))

    def trim(self, store: Store, share: float) -> None:
        """The oldest first, as long as its child is listed: else nobody knows its descendants."""
        rows = store.known()
        for each in self.listed:
            bookmark = rows.get(each.partition)
            is_over = bookmark is not None and bookmark.ended
            if is_over and rows.keys().isdisjoint(each.parents) and self.random.random() < share:
                self.trimmed.add(each.partition)


def host(name: str, store: Store, source: Source, random: Random) -> Iterator[None]:
    """One owner: makes rows and removes them as a listing says, and reads what nobody else has. A
    listing is asked for after the rows were read: children that have rows are in it."""
    kept = Positions(
        store, "shop/default", interval=0, event_count=1, clock=Clock(), owner=name, shared=True
    )
    while True:
        known = store.known()
        yield
        found = openings(source.partitions(known), known, known)
        yield
        kept.make(found.ready)
        yield
        kept.forget(found.forgotten)
        yield
        reading = {each: mark for each, mark in kept.load().items() if not mark.ended}
        for partition in random.sample(sorted(reading), min(len(reading), 2)):
            yield
            before = reading[partition].place
            number = int(before.cursor.rpartition("-")[2]) + 1 if before else 0
            is_over = number >= 2 and bool(source.children(partition))
            now = Bookmark(place(number, partition), {}, ended=is_over)
            keep(kept, partition, now)


def keep(kept: Positions, partition: PartitionId, bookmark: Bookmark) -> None:
    kept.save({partition: bookmark}, force=True)


@pytest.mark.parametrize("seed", range(10))
def test_partitions_that_hosts_divide_are_read_once_and_children_after_their_parents(
    seed: int,
) -> None:
    random = Random(seed)
    source = Source(random)
    store = Store(source)
    hosts = [host(name, store, source, random) for name in "abc"]
    for step in range(4000):
        if step < 1500 and random.random() < 0.01:
            source.grow()
        if step % 100 == 0:
            source.trim(store, 0.2 if step < 3000 else 1.0)
        next(random.choice(hosts))
    assert len(source.listed) > 10
    assert store.first.keys() == {each.partition for each in source.listed}
    for each in source.listed:
        if each.parents:
            parents = {parent: store.last[parent].to_json() for parent in each.parents}
            assert store.first[each.partition].mark == {"parents": parents}
    leaves = {each.partition for each in source.listed if not source.children(each.partition)}
    assert store.known().keys() == leaves, "what is done and trimmed, keeps no row"
