"""Saved positions: at intervals, never ahead of what is durable, never over somebody else's."""

import pytest

from penstock.errors import LeaseLost, Malformed
from penstock.leases import Lease
from penstock.leases.memory import MemoryStore
from penstock.position import PartitionId, Place
from penstock.spark.positions import Positions

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
