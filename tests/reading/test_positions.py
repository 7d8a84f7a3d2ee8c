"""Saved positions: at intervals, never ahead of what is durable, never over somebody else's."""

import pytest

from penstock.errors import LeaseLost, Malformed
from penstock.feeds import Mark
from penstock.leases import Lease
from penstock.leases.memory import MemoryStore
from penstock.position import PartitionId, Place
from penstock.reading.positions import PAUSE, Positions

SLOT = PartitionId("slot")
FIRST, SECOND, THIRD = Place("0A", 0), Place("0A", 1), Place("0B", 0)


class Clock:
    """Time that a test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def positions(store: MemoryStore, clock: Clock, event_count: int = 10) -> Positions:
    return Positions(store, "shop/default", interval=5.0, event_count=event_count, clock=clock)


def test_nothing_stored_is_an_empty_position() -> None:
    assert positions(MemoryStore(), Clock()).load() == {}


def test_a_position_is_written_when_the_interval_has_passed() -> None:
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    assert kept.save({SLOT: FIRST}, 1) == {SLOT: FIRST}  # the first is due at once
    clock.now += 4.9
    assert kept.save({SLOT: SECOND}, 1) == {SLOT: FIRST}
    clock.now += 0.1
    assert kept.save({SLOT: SECOND}, 0) == {SLOT: SECOND}


def test_a_position_is_written_after_so_many_changes() -> None:
    kept = positions(MemoryStore(), Clock(), event_count=10)
    kept.save({SLOT: FIRST}, 1)
    assert kept.save({SLOT: SECOND}, 9) == {SLOT: FIRST}
    assert kept.save({SLOT: THIRD}, 1) == {SLOT: THIRD}


def test_a_forced_save_is_written_now() -> None:
    kept = positions(MemoryStore(), Clock())
    kept.save({SLOT: FIRST}, 0)
    assert kept.save({SLOT: SECOND}, 0, force=True) == {SLOT: SECOND}


def test_the_next_process_begins_where_the_last_one_saved() -> None:
    store = MemoryStore()
    positions(store, Clock()).save({SLOT: THIRD}, 1)
    assert positions(store, Clock()).load() == {SLOT: THIRD}


def test_an_unchanged_position_is_not_written_again() -> None:
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    kept.save({SLOT: FIRST}, 1)
    before = store.get("shop/default/slot")
    clock.now += 60
    kept.save({SLOT: FIRST}, 0)
    assert store.get("shop/default/slot") == before


def test_a_position_that_another_process_moved_is_not_overwritten() -> None:
    store, clock = MemoryStore(), Clock()
    ours, theirs = positions(store, clock), positions(store, clock)
    ours.save({SLOT: FIRST}, 1)
    theirs.load()
    theirs.save({SLOT: SECOND}, 1, force=True)
    with pytest.raises(LeaseLost):
        ours.save({SLOT: THIRD}, 1, force=True)
    assert positions(store, clock).load() == {SLOT: SECOND}


def test_a_stored_position_of_another_kind_is_malformed() -> None:
    store = MemoryStore()
    store.put(Lease(name="shop/default/slot", continuation="not ours"))
    with pytest.raises(Malformed, match="shop/default/slot"):
        positions(store, Clock()).load()


class Marking:
    """Marks that a test sets, and what the positions said of them."""

    def __init__(self, kept: Positions) -> None:
        self.marks: dict[PartitionId, Mark] = {}
        self.settled: list[tuple[PartitionId, Mark]] = []
        kept.marking(lambda _: self.marks, lambda *told: self.settled.append(told))


def test_a_mark_is_stored_beside_its_position_and_settled_then() -> None:
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    told = Marking(kept)
    told.marks = {SLOT: {"flushed": "1"}}
    kept.save({SLOT: FIRST}, 1)
    told.marks = {SLOT: {"flushed": "2"}}
    kept.save({SLOT: FIRST}, 1)
    assert told.settled == [(SLOT, {"flushed": "1"})], "what is not stored is not settled"
    kept.save({SLOT: FIRST}, 0, force=True)
    assert told.settled[1:] == [(SLOT, {"flushed": "2"})]
    again = positions(store, clock)
    assert again.load() == {SLOT: FIRST}
    assert again.mark(SLOT) == {"flushed": "2"}


def test_a_mark_without_a_place_is_known_and_no_position() -> None:
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    Marking(kept).marks = {SLOT: {"system": "7"}}
    assert kept.save({}, 0) == {}
    again = positions(store, clock)
    assert again.load() == {}
    assert again.is_known()
    assert again.mark(SLOT) == {"system": "7"}


def test_without_a_mark_the_stored_one_stays() -> None:
    """A source that is away, or behind a hole whose pages are not durable yet, has none."""
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    told = Marking(kept)
    told.marks = {SLOT: {"flushed": "1"}}
    kept.save({SLOT: FIRST}, 1)
    told.marks = {}
    kept.save({SLOT: SECOND}, 1, force=True)
    assert kept.mark(SLOT) == {"flushed": "1"}
    again = positions(store, clock)
    assert again.load() == {SLOT: SECOND}
    assert again.mark(SLOT) == {"flushed": "1"}


def test_a_position_of_an_older_penstock_has_no_mark() -> None:
    store = MemoryStore()
    store.put(Lease(name="shop/default/slot", continuation='{"place": "0A:1"}'))
    kept = positions(store, Clock())
    assert kept.load() == {SLOT: SECOND}
    assert kept.mark(SLOT) == {}


def owned(store: MemoryStore, clock: Clock, owner: str) -> Positions:
    return Positions(store, "shop/default", interval=5.0, event_count=10, clock=clock, owner=owner)


def test_what_another_instance_claimed_is_neither_read_nor_written() -> None:
    store, clock = MemoryStore(), Clock()
    ours, theirs = owned(store, clock, "a"), owned(store, clock, "b")
    ours.save({SLOT: FIRST}, 1)
    theirs.claim()
    with pytest.raises(LeaseLost):
        ours.save({SLOT: SECOND}, 1, force=True)
    with pytest.raises(LeaseLost, match="is b's now"):
        owned(store, clock, "a").load()
    assert theirs.load() == {SLOT: FIRST}


def test_a_process_that_was_frozen_looks_before_it_goes_on() -> None:
    store, clock = MemoryStore(), Clock()
    ours, theirs = owned(store, clock, "a"), owned(store, clock, "b")
    ours.save({SLOT: FIRST}, 1)
    clock.now += PAUSE - 0.1
    ours.save({SLOT: FIRST}, 0)
    theirs.claim()
    clock.now += 0.1
    ours.save({SLOT: FIRST}, 0)  # nothing to write, and no pause: nothing to notice
    clock.now += PAUSE
    with pytest.raises(LeaseLost):
        ours.save({SLOT: FIRST}, 0)
