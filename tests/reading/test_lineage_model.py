"""Random lineages with splits and merges, listings that are late, incomplete or stale, lost history
and restarts at any step, against a plain oracle: nothing is lost unless that is on record, nothing
is doubled that was stored, parents come first. The real roster and readers, a clock of the test's,
no thread."""

from collections.abc import Sequence
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from penstock.feeds import Gap, GapPolicy, HistoryLost, Lineage, Listing
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.reader import PartitionReader
from penstock.reading.roster import Roster
from tests.feeds.staged import StagedFeed, StagedFollowing, StagedSettings
from tests.waiting import Clock
from tests.wire.cells import examples

_EACH = 6  # changes of a partition


class Source(StagedFeed):
    """A source whose tree, listings and losses a script of chance changes. It is `born`: partitions
    in the order in which they came to be, each with its parents; `hidden`: not listed now; `gone`:
    deleted, and never listed again; `horizon`: the first change that each still has."""

    def __init__(self, chance: Random, on_gap: GapPolicy) -> None:
        found = chance.choice(["follow", "read"])
        super().__init__(StagedSettings(changes=_EACH, page=2, unit=1, on_gap=on_gap, found=found))
        self.chance = chance
        self.born: dict[PartitionId, tuple[PartitionId, ...]] = {
            PartitionId("r0"): (),
            PartitionId("r1"): (),
        }
        self.closed: set[PartitionId] = set()
        self.hidden: set[PartitionId] = set()
        self.gone: set[PartitionId] = set()
        self.horizon: dict[PartitionId, int] = {}
        self.is_complete = True
        self.lineage_of_source: list[str] = []

    @property
    def lineage(self) -> Any:  # what the memory feed makes up is not used
        return {name: Lineage(partition=name, parents=of) for name, of in self.born.items()}

    def ends(self, partition: PartitionId) -> bool:
        return partition in self.closed

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        names = [name for name in self.born if name not in self.hidden | self.gone]
        self.chance.shuffle(names)
        lineages = [
            Lineage(partition=name, parents=self.born[name], first=Bookmark(mark={"child": True}))
            if any(parent in known for parent in self.born[name])
            else Lineage(partition=name, parents=self.born[name])
            for name in names
        ]
        return Listing(lineages=lineages, complete=self.is_complete)

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[Gap] = (),
    ) -> StagedFollowing:
        following = StagedFollowing(self, partition, bookmark.place)
        cause, first = "", following.next
        if partition in self.gone and (first < _EACH or not self.ends(partition)):
            cause, first = "partition_gone", _EACH
        elif first < self.horizon.get(partition, 0):
            cause, first = "trimmed", self.horizon[partition]
        if cause and cause not in {each.cause for each in despite}:
            gap = Gap(
                cause=cause, after=str(bookmark.place or ""), detail=cause, policy=self.on_gap
            )
            lost = HistoryLost(gap)
            if self.settings.found == "follow":
                raise lost
            return StagedFollowing(self, partition, bookmark.place, loss=lost)
        if cause == "partition_gone":
            self.closed.add(partition)  # it ends here
        following.next, following.begins = first, str(first) if despite else ""
        return following

    # What happens at the source.

    def happen(self) -> None:
        kinds = ["split", "merge", "hide", "hide", "show", "show", "trim", "delete", "incomplete"]
        open_ones = [name for name in self.born if name not in self.closed | self.gone]
        match self.chance.choice(kinds):
            case "split" if open_ones and len(self.born) < 14:
                parent = self.chance.choice(open_ones)
                self.closed.add(parent)
                for _ in range(self.chance.randint(1, 2)):
                    self.give_birth((parent,))
            case "merge" if len(open_ones) > 1 and len(self.born) < 14:
                parents = tuple(self.chance.sample(open_ones, 2))
                self.closed |= set(parents)
                self.give_birth(parents)
            case "hide":
                self.hidden.add(self.chance.choice(list(self.born)))
            case "show":
                self.hidden.clear()
                self.is_complete = True
            case "trim":
                name = self.chance.choice(list(self.born))
                known = self.horizon.get(name, 0)
                self.horizon[name] = self.chance.randint(known, _EACH)
            case "delete" if self.chance.random() < 0.3:
                # A source deletes what is oldest: with a partition go its ancestors.
                waiting = [self.chance.choice(list(self.born))]
                while waiting:
                    name = waiting.pop()
                    self.gone.add(name)
                    waiting += self.born[name]
            case "incomplete":
                self.is_complete = False
                self.hidden = set(self.chance.sample(list(self.born), len(self.born) // 2))

    def give_birth(self, parents: tuple[PartitionId, ...]) -> None:
        name = PartitionId(f"n{len(self.born)}")
        self.born[name] = parents
        if self.chance.random() < 0.5:
            self.hidden.add(name)  # it is listed late


class Owner:
    """Owns the readers of a source, stores what they give in a plain list, and is restarted: a
    `GapRecorder`. `told`: partitions with a gap on record."""

    def __init__(self, source: Source, clock: Clock) -> None:
        self.source, self.clock = source, clock
        self.saved: dict[PartitionId, Bookmark] = {
            PartitionId(name): Bookmark(mark={}) for name in ("r0", "r1")
        }
        self.stored: list[tuple[PartitionId, int]] = []
        self.told: set[PartitionId] = set()
        self.forgotten: set[PartitionId] = set()
        self.start()

    def start(self) -> None:
        """As a process that died and begins anew from what was saved."""
        self.roster = Roster(self.source, clock=self.clock)
        self.durable = dict(self.saved)
        self.readers: dict[PartitionId, PartitionReader] = {}

    def verify(self, partition: PartitionId) -> None:
        pass

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        self.told.add(partition)

    def turn(self) -> None:
        """Looks up, and reads each partition once; everything that is read is stored."""
        found = self.roster.look_up(self.durable, self.readers)
        if found is not None:
            self.durable |= {n: b for n, b in found.ready.items() if n not in self.durable}
            for name, bookmark in found.ready.items():
                self.readers[name] = PartitionReader(
                    self.source, name, bookmark, self, clock=self.clock
                )
            self.saved = dict(self.durable)  # before anything is forgotten
            for name in found.forgotten:
                del self.durable[name]
                self.forgotten.add(name)
        for name, reader in list(self.readers.items()):
            step = reader.step(0.0)
            for page in step.pages:
                self.store(name, page.first, page.last)
            if reader.is_done(self.durable[name].place):
                self.durable[name] = reader.last_bookmark(self.durable[name].place)
                del self.readers[name]
                reader.disconnect()

    def store(self, name: PartitionId, first: Place, last: Place) -> None:
        numbers = [int(each.cursor.rpartition("-")[2]) for each in (first, last)]
        for number in range(numbers[0], numbers[1] + 1):
            self.stored.append((name, number))
            self.check(name, number)
        found = self.readers[name].bookmark(last)
        assert found is not None
        self.durable[name] = found

    def check(self, name: PartitionId, number: int) -> None:
        """The oracle, change by change."""
        mine = [each for partition, each in self.stored if partition == name]
        last = mine[-2] if len(mine) > 1 else -1
        if name not in self.told:  # what comes after a gap begins where the source says
            assert mine == sorted(set(mine)), "in order, and each once: what is stored is durable"
        if number != last + 1:
            assert name in self.told, f"{name} jumps from {last} to {number} without a word"
        if self.source.on_gap == "fail":
            assert name not in self.told, f"{name} goes on, and its policy is to stop"
        if len(mine) == 1:
            self.check_parents(name)

    def check_parents(self, name: PartitionId) -> None:
        for parent in self.source.born[name]:
            whole = {each for partition, each in self.stored if partition == parent}
            siblings = {each for each, of in self.source.born.items() if parent in of}
            if len(whole) == _EACH or {parent, *siblings} & self.told:
                continue
            ancestors, waiting = set[PartitionId](), [parent]
            while waiting:
                each = waiting.pop()
                ancestors.add(each)
                waiting += self.source.born[each]
            assert ancestors & self.told, f"{name} before its parent {parent}, without a word"

    def save(self) -> None:
        self.saved = dict(self.durable)


def settle(owner: Owner, turns: int = 40) -> None:
    """Everything is listed, and time passes."""
    owner.source.hidden.clear()
    owner.source.is_complete = True
    for _ in range(turns):
        owner.turn()
        owner.clock.now += 1.0


@pytest.mark.parametrize("on_gap", ["fail", "continue"])
@pytest.mark.parametrize("seed", range(examples(150)))
def test_nothing_is_lost_unless_told_nothing_doubled_and_parents_come_first(
    seed: int, on_gap: GapPolicy
) -> None:
    chance, clock = Random(seed), Clock()
    owner = Owner(Source(chance, on_gap), clock)
    for _ in range(chance.randint(5, 60)):
        match chance.choice(["happen", "turn", "turn", "turn", "wait", "restart"]):
            case "happen":
                owner.source.happen()
            case "turn":
                owner.turn()
            case "wait":
                clock.now += chance.choice([0.1, 1.0, 3.0, 40.0])
            case "restart":
                # What was stored after the last save comes again, and the sink drops it.
                if chance.random() < 0.5:
                    owner.save()
                kept = {name: b.place for name, b in owner.saved.items()}
                owner.stored = [
                    (name, number)
                    for name, number in owner.stored
                    if name in owner.forgotten
                    or ((at := kept.get(name)) is not None and place_number(at) >= number)
                ]
                owner.start()
    settle(owner, 120)
    whole = {name for name in owner.source.born if lacks(owner, name) == 0}
    for name in owner.source.born:
        if name in whole or name in owner.told:
            continue
        if name not in owner.durable and not lives_on(owner.source, name):
            whole.add(name)  # it came and went between two look-ups, and nothing descends from it
            continue
        # Not read, and nothing is on record of it: something before it is, or (which stops what
        # comes after it) something known is missing.
        assert owner.told, f"{name} lacks {lacks(owner, name)} changes, without a word"
    if not owner.told:
        assert whole == set(owner.source.born)


def lives_on(source: Source, name: PartitionId) -> bool:
    """Whether the source has it, or a descendant."""
    if name not in source.gone:
        return True
    return any(lives_on(source, child) for child, of in source.born.items() if name in of)


def place_number(place: Place) -> int:
    return int(place.cursor.rpartition("-")[2])


def lacks(owner: Owner, name: PartitionId) -> int:
    return _EACH - len({number for partition, number in owner.stored if partition == name})
