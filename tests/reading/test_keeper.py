"""What is saved is a place with its own mark, also while the source is away."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from penstock.feeds import Following, Gap
from penstock.leases import Lease
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.gaps import GapLog
from penstock.reading.keeper import Keeper
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir
from tests.feeds.staged import StagedFeed, StagedFollowing, StagedSettings, bookmark_at
from tests.reading.made import P0, FaultyStore, place, positions_of
from tests.waiting import Clock, until


class Knowing(StagedFollowing):
    """One that knows the marks of what it read, from where it began, and of nothing else; until it
    is closed, of no place before one that was asked for."""

    def __init__(self, feed: "AwayFeed", partition: PartitionId, after: Place | None) -> None:
        super().__init__(feed, partition, after)
        self._away = feed
        self._least = after
        self._begun = after

    def bookmark(self, place: Place | None) -> Bookmark | None:  # type: ignore[override]
        read_to = self._away.place_before(self.next)
        if place in self._away.unknown or _is_before(place, self._begun):
            return None
        if _is_before(read_to, place):
            return None
        if not self._connected:
            return super().bookmark(place)
        if _is_before(place, self._least):
            return None
        self._least = place
        return super().bookmark(place)


def _is_before(one: Place | None, other: Place | None) -> bool:
    return other is not None and (one is None or one < other)


class AwayFeed(StagedFeed):
    """Breaks off after 20 of 30 changes; `is_away` keeps it from being followed again."""

    def __init__(self) -> None:
        super().__init__(StagedSettings(changes=30, page=10, unit=1, tokens=True, fail_at=(20,)))
        self.is_away = False
        self.unknown: set[Place | None] = set()
        self.followed: list[Bookmark] = []

    def place_before(self, number: int) -> Place | None:
        return place(number - 1) if number else None

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Sequence[Gap] = ()
    ) -> Following:
        if self.followed and self.is_away:
            raise Unavailable("the source is away")
        self.followed.append(bookmark)
        return Knowing(self, partition, self._resumed(partition, bookmark))


def at(number: int) -> Bookmark:
    """The bookmark of a change, with its own token."""
    return bookmark_at(AwayFeed().settings, place(number))


# What is given as durable has an old mark: only its place is of now.
OLD = {"token": "another place's"}


@contextmanager
def read(feed: AwayFeed, events: int) -> Iterator[tuple[Reservoir, Keeper, MemoryStore]]:
    """Once so many changes were read, and the connection was lost."""
    store = MemoryStore()
    positions = positions_of(store)
    reservoir = Reservoir(feed, limit=10**6, gaps=GapLog(positions))
    reservoir.open(P0, START)
    try:
        until(lambda: reservoir.rows()[P0]["buffered_events"] == events)
        until(lambda: reservoir.rows()[P0]["reconnects"])
        yield reservoir, Keeper(positions, reservoir), store
    finally:
        reservoir.stop(5)


def saved(keeper: Keeper, store: MemoryStore, number: int) -> Bookmark | None:
    """What is stored when everything up to a change is durable."""
    keeper.save({P0: Bookmark(place(number), OLD)}, 0, force=True)
    return positions_of(store).load().get(P0)


def test_while_the_source_is_away_a_place_is_saved_with_its_own_mark() -> None:
    feed = AwayFeed()
    feed.is_away = True
    with read(feed, 20) as (_, keeper, store):
        for number in (4, 11, 19):
            assert saved(keeper, store, number) == at(number)


def test_what_was_read_before_a_reconnect_is_saved_with_its_own_mark() -> None:
    feed = AwayFeed()
    with read(feed, 30) as (_, keeper, store):
        assert feed.followed == [START, at(19)]
        for number in (4, 19, 24, 29):
            assert saved(keeper, store, number) == at(number)


def test_after_a_stop_a_place_is_saved_with_its_own_mark() -> None:
    with read(AwayFeed(), 30) as (reservoir, keeper, store):
        assert reservoir.stop(60)
        assert saved(keeper, store, 24) == at(24)


def test_a_place_whose_mark_is_not_known_is_not_saved() -> None:
    feed = AwayFeed()
    feed.unknown = {place(11)}
    with read(feed, 30) as (_, keeper, store):
        assert saved(keeper, store, 4) == at(4)
        assert saved(keeper, store, 11) == at(4)
        assert saved(keeper, store, 12) == at(12)


def test_where_nothing_is_durable_nothing_that_was_read_is_saved() -> None:
    """The bookmark before the first change is no later one, after a reconnect neither."""
    feed = AwayFeed()
    with read(feed, 30) as (_, keeper, store):
        keeper.save({P0: START}, 0, force=True)
        stored = positions_of(store).load().get(P0, START)
        assert stored.place is None


@pytest.mark.parametrize("number", [4, 19, 29])
def test_followings_that_are_not_needed_are_dropped(number: int) -> None:
    feed = AwayFeed()
    with read(feed, 30) as (reservoir, keeper, store):
        assert saved(keeper, store, number) == at(number)
        past = reservoir._parts[P0].reader._past
        assert len(past._closed) == (0 if number >= 19 else 1)


class Iterating:
    """A reader without threads, as an iterator is one: its marks are its places' numbers."""

    def __init__(self) -> None:
        self.asked: list[Place | None] = []
        self.acknowledged: dict[PartitionId, Bookmark] = {}

    @property
    def open_partitions(self) -> list[PartitionId]:
        return [P0]

    def bookmark(self, partition: PartitionId, place: Place | None) -> Bookmark:
        self.asked.append(place)
        return Bookmark(place, {"at": str(place)})

    def acknowledge(self, saved: Bookmarks) -> None:
        self.acknowledged |= saved


def test_marks_are_asked_for_only_when_it_is_time_to_save() -> None:
    reader, clock = Iterating(), Clock()
    positions = Positions(MemoryStore(), "shop/default", interval=1.0, event_count=10, clock=clock)
    keeper = Keeper(positions, reader)
    for number in (1, 2, 3):
        keeper.save({P0: Bookmark(place(number))}, 3)
    assert reader.asked == [place(1)]
    assert reader.acknowledged == {P0: Bookmark(place(1), {"at": str(place(1))})}
    keeper.save({P0: Bookmark(place(4))}, 4)  # ten changes
    clock.now += 1.0
    keeper.save({P0: Bookmark(place(5))}, 0)
    keeper.save({P0: Bookmark(place(6))}, 0, force=True)
    assert reader.asked == [place(number) for number in (1, 4, 5, 6)]
    assert reader.acknowledged == positions.load()


def test_what_could_not_be_saved_is_not_acknowledged() -> None:
    reader, store = Iterating(), FaultyStore()
    store.away = True
    keeper = Keeper(positions_of(store), reader)
    keeper.save({P0: Bookmark(place(1))}, 1)
    assert reader.acknowledged == {}
    with pytest.raises(Unavailable, match="does not answer"):
        keeper.save({P0: Bookmark(place(1))}, 0, force=True)
    assert reader.acknowledged == {}


def test_without_a_store_what_is_durable_is_acknowledged_as_it_is() -> None:
    """Spark's checkpoint has it already: an offset with its own mark."""
    reader = Iterating()
    Keeper(None, reader).save({P0: Bookmark(place(1), {"own": True})}, 1)
    assert reader.acknowledged == {P0: Bookmark(place(1), {"own": True})}
    assert reader.asked == []


def test_where_tasks_read_their_bookmarks_are_saved_as_they_are() -> None:
    positions = positions_of()
    Keeper(positions).save({P0: Bookmark(place(1), {"own": True})}, 0)
    assert positions.load() == {P0: Bookmark(place(1), {"own": True})}


def test_children_are_stored_before_the_row_of_their_parent_is_removed() -> None:
    """Or else a crash in between would leave partitions that descend from nothing known."""

    class Watched(MemoryStore):
        is_away = False

        def put_all(self, leases: Sequence[Lease]) -> list[Lease | LeaseLost]:
            if self.is_away:
                raise Unavailable("the store is away")
            return super().put_all(leases)

        def delete(self, lease: Lease) -> None:
            assert self.get("shop/default/child") is not None
            super().delete(lease)

    store = Watched()
    parent, child = PartitionId("parent"), PartitionId("child")
    done = {parent: Bookmark(place(9, "parent"), {}, ended=True)}
    positions_of(store).begin(done)
    positions = positions_of(store)
    positions.load()
    keeper = Keeper(positions)
    durable = {**done, child: Bookmark(mark={})}
    store.is_away = True
    assert not keeper.forget([parent], durable)
    assert store.get("shop/default/parent") is not None
    store.is_away = False
    assert keeper.forget([parent], durable)
    assert set(positions_of(store).load()) == {child}
