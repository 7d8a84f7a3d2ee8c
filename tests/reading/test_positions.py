"""Saved positions: at intervals, never ahead of what is durable, never over somebody else's."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from penstock.leases import Lease, replace
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, Malformed, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.host_positions import HostPositions
from penstock.reading.positions import PAUSE, Positions
from tests.waiting import Clock

SLOT, OTHER = PartitionId("slot"), PartitionId("other")
FIRST, SECOND, THIRD = Place("0A", 0), Place("0A", 1), Place("0B", 0)


def positions(store: MemoryStore, clock: Clock, owner: str = "") -> Positions:
    return Positions(store, "shop/default", interval=5.0, event_count=10, clock=clock, owner=owner)


def at(place: Place | None, **mark: str) -> Bookmark:
    return Bookmark(place, mark)


def save(kept: Positions, place: Place | None, changes: int, *, force: bool = False) -> Bookmarks:
    """Saves a place of the one partition, if it is time to."""
    due = kept.is_due(changes)
    return kept.save({SLOT: at(place)}, force=force) if due or force else {}


def test_a_bookmark_is_written_when_the_interval_has_passed() -> None:
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    assert save(kept, FIRST, 1) == {SLOT: at(FIRST)}  # the first is due at once
    clock.now += 4.9
    assert save(kept, SECOND, 1) == {}
    clock.now += 0.1
    assert save(kept, SECOND, 0) == {SLOT: at(SECOND)}


def test_a_bookmark_is_written_after_so_many_changes() -> None:
    kept = positions(MemoryStore(), Clock())
    save(kept, FIRST, 1)
    assert save(kept, SECOND, 9) == {}
    assert save(kept, THIRD, 1) == {SLOT: at(THIRD)}


def test_the_next_process_begins_where_the_last_one_saved() -> None:
    store = MemoryStore()
    bookmark = Bookmark(THIRD, {"token": "x"}, ended=True)
    positions(store, Clock()).save({SLOT: bookmark})
    assert positions(store, Clock()).load() == {SLOT: bookmark}


def test_an_unchanged_bookmark_is_not_written_again() -> None:
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    save(kept, FIRST, 1)
    before = store.get("shop/default/slot")
    clock.now += 60
    assert save(kept, FIRST, 0) == {}
    assert store.get("shop/default/slot") == before


def test_what_was_loaded_is_not_written_again() -> None:
    store, clock = MemoryStore(), Clock()
    save(positions(store, clock), FIRST, 1)
    kept = positions(store, clock)
    kept.load()
    assert save(kept, FIRST, 1, force=True) == {}


def test_a_bookmark_that_another_process_moved_is_not_overwritten() -> None:
    store, clock = MemoryStore(), Clock()
    ours, theirs = positions(store, clock), positions(store, clock)
    save(ours, FIRST, 1)
    theirs.load()
    save(theirs, SECOND, 1, force=True)
    with pytest.raises(LeaseLost):
        save(ours, THIRD, 1, force=True)
    assert positions(store, clock).load() == {SLOT: at(SECOND)}


def test_a_stored_bookmark_of_another_kind_is_malformed() -> None:
    store = MemoryStore()
    store.put(Lease(name="shop/default/slot", continuation="not ours"))
    with pytest.raises(Malformed, match="shop/default/slot"):
        positions(store, Clock()).load()


def test_a_mark_moves_without_a_place() -> None:
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    assert kept.save({SLOT: at(None, system="7")}) == {SLOT: at(None, system="7")}
    again = positions(store, clock)
    assert again.load()
    assert again.load() == {SLOT: at(None, system="7")}


def test_without_a_mark_the_stored_one_stays() -> None:
    """A source that is away, or after a gap whose pages are not durable yet, has none."""
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    kept.save({SLOT: at(FIRST, flushed="1")})
    kept.save({SLOT: Bookmark(SECOND)}, force=True)
    assert positions(store, clock).load() == {SLOT: at(SECOND, flushed="1")}


def test_a_position_of_an_older_penstock_has_an_empty_mark() -> None:
    store = MemoryStore()
    store.put(Lease(name="shop/default/slot", continuation='{"place": "0A:1"}'))
    assert positions(store, Clock()).load() == {SLOT: at(SECOND)}


def test_a_first_start_is_stored_once() -> None:
    store, clock = MemoryStore(), Clock()
    positions(store, clock).begin({SLOT: at(None, token="now")})
    positions(store, clock).begin({SLOT: at(None, token="later"), OTHER: at(FIRST)})
    assert positions(store, clock).load() == {SLOT: at(None, token="now"), OTHER: at(FIRST)}


def test_a_thousand_partitions_are_one_write() -> None:
    class Counting(MemoryStore):
        writes = 0

        def put_all(self, leases: Sequence[Lease]) -> Sequence[Lease | LeaseLost]:
            self.writes += 1
            return super().put_all(leases)

    store, clock = Counting(), Clock()
    kept = positions(store, clock)
    many = {PartitionId(f"p{n}"): at(FIRST) for n in range(1_000)}
    assert kept.save(many) == many
    assert store.writes == 1
    fresh = many | {PartitionId("p7"): at(SECOND)}
    assert kept.save(fresh, force=True) == {PartitionId("p7"): at(SECOND)}


def test_a_partition_that_is_forgotten_has_no_row() -> None:
    store, clock = MemoryStore(), Clock()
    kept = positions(store, clock)
    kept.save({SLOT: at(FIRST), OTHER: at(FIRST)})
    kept.forget([OTHER])
    assert positions(store, clock).load() == {SLOT: at(FIRST)}


def test_what_another_instance_claimed_is_neither_read_nor_written() -> None:
    store, clock = MemoryStore(), Clock()
    ours, theirs = positions(store, clock, "a"), positions(store, clock, "b")
    save(ours, FIRST, 1)
    theirs.claim()
    with pytest.raises(LeaseLost):
        save(ours, SECOND, 1, force=True)
    with pytest.raises(LeaseLost, match="is b's now"):
        positions(store, clock, "a").load()
    assert theirs.load() == {SLOT: at(FIRST)}


def test_a_process_that_was_frozen_looks_before_it_goes_on() -> None:
    store, clock = MemoryStore(), Clock()
    ours, theirs = positions(store, clock, "a"), positions(store, clock, "b")
    save(ours, FIRST, 1)
    clock.now += PAUSE - 0.1
    save(ours, FIRST, 0)
    theirs.claim()
    clock.now += 0.1
    save(ours, FIRST, 0)  # nothing to write, and no pause: nothing to notice
    clock.now += PAUSE
    with pytest.raises(LeaseLost):
        save(ours, FIRST, 0)


class Away(MemoryStore):
    """A store whose server goes away: before a write (`away`) or after it (`late`)."""

    away = late = False

    def put_all(self, leases: Sequence[Lease]) -> list[Lease | LeaseLost]:
        if self.away:
            raise Unavailable("the store does not answer")
        written = super().put_all(leases)
        if self.late:
            raise Unavailable("the answer is lost")
        return written


def test_a_store_that_is_away_delays_what_is_saved_and_nothing_else() -> None:
    store, clock = Away(), Clock()
    kept = positions(store, clock)
    told: list[str] = []
    kept.on_write = lambda _, error, __: told.append(error)
    assert save(kept, FIRST, 1) == {SLOT: at(FIRST)}
    store.away = True
    clock.now += 5
    assert save(kept, SECOND, 1) == {}
    assert "does not answer" in kept.error
    assert save(kept, SECOND, 100) == {}  # not again and again
    with pytest.raises(Unavailable):
        save(kept, SECOND, 0, force=True)
    store.away = False
    clock.now += 5
    assert save(kept, THIRD, 1) == {SLOT: at(THIRD)}
    assert kept.error == ""
    assert [bool(error) for error in told] == [False, True, True, False]


def unanswered(owner: str = "") -> tuple[Away, Clock, Positions]:
    """Positions whose second write had no answer."""
    store, clock = Away(), Clock()
    kept = positions(store, clock, owner)
    kept.load()
    save(kept, FIRST, 1)
    store.late = True
    clock.now += 5
    assert save(kept, SECOND, 1) == {}
    store.late = False
    return store, clock, kept


def test_a_write_whose_answer_was_lost_is_ours() -> None:
    _, clock, kept = unanswered()
    kept.verify()
    clock.now += 5
    assert save(kept, SECOND, 1) == {SLOT: at(SECOND)}  # to be acknowledged, without a new change
    clock.now += 5
    assert save(kept, SECOND, 1) == {}
    assert save(kept, THIRD, 1, force=True) == {SLOT: at(THIRD)}


def test_a_partition_is_forgotten_after_a_write_whose_answer_was_lost() -> None:
    store, clock, kept = unanswered()
    kept.forget([SLOT])
    assert positions(store, clock).load() == {}


def test_a_write_of_another_instance_after_a_lost_one_is_not_ours() -> None:
    store, clock, kept = unanswered("me")
    positions(store, clock, "you").claim()
    clock.now += 5
    with pytest.raises(LeaseLost):
        save(kept, THIRD, 1)


def shared(store: MemoryStore, owner: str) -> HostPositions:
    return HostPositions(store, "shop/default", owner, clock=Clock())


def took(kept: HostPositions, *partitions: PartitionId) -> dict[PartitionId, Bookmark]:
    """The bookmarks of rows that the host has just taken."""
    rows = [row for row in kept.rows.list() if kept.partition(row.name) in partitions]
    kept.rows.adopt(kept.rows.store.put(replace(row, owner=kept.rows.owner)) for row in rows)
    return kept.record_taken(partitions)


def keep(kept: HostPositions, **bookmarks: Bookmark) -> Bookmarks:
    """Saves these bookmarks; those that are stored then."""
    found = {PartitionId(name): each for name, each in bookmarks.items()}
    kept.save(found)
    return {name: each for name, each in found.items() if kept.stored(name) == each}


class Counting(MemoryStore):
    """Counts rows that are read."""

    rows = 0

    def list(self, prefix: str) -> list[Lease]:
        found = super().list(prefix)
        self.rows += len(found)
        return found

    def get(self, name: str) -> Lease | None:
        self.rows += 1
        return super().get(name)


@pytest.mark.slow
def test_a_thousand_connections_read_a_thousand_rows() -> None:
    store = Counting()
    kept = positions(store, Clock())
    names = [PartitionId(f"p{number}") for number in range(1000)]
    kept.begin({name: at(None) for name in names})
    store.rows = 0
    for name in names:
        kept.verify(name)
    assert store.rows == len(names)


@pytest.mark.parametrize("partition", [SLOT, OTHER, PartitionId("not stored")])
def test_a_connection_of_any_partition_finds_another_instance(partition: PartitionId) -> None:
    store = MemoryStore()
    ours, theirs = (positions(store, Clock(), owner) for owner in ("a", "b"))
    ours.begin({SLOT: at(FIRST), OTHER: at(FIRST)})
    ours.verify(partition)
    theirs.claim()
    with pytest.raises(LeaseLost):
        ours.verify(partition)


def test_a_first_start_stores_nothing_over_the_row_of_another_instance() -> None:
    class Racing(MemoryStore):
        """Another instance begins after this one has seen that there is nothing."""

        other: Positions | None = None

        def put_all(self, leases: Sequence[Lease]) -> list[Lease | LeaseLost]:
            other, self.other = self.other, None
            if other is not None:
                other.begin({SLOT: at(None, token="theirs")})
            return super().put_all(leases)

    store, clock = Racing(), Clock()
    ours, theirs = positions(store, clock, "a"), positions(store, clock, "b")
    store.other = theirs
    with pytest.raises(LeaseLost):
        ours.begin({SLOT: at(None, token="ours")})
    assert theirs.load() == {SLOT: at(None, token="theirs")}


def test_the_first_bookmark_of_a_child_is_the_first_host_s() -> None:
    store = MemoryStore()
    ours, theirs = shared(store, "a"), shared(store, "b")
    theirs.plant({SLOT: at(FIRST)})
    ours.plant({SLOT: at(SECOND), OTHER: at(SECOND)})
    assert {row.owner for row in store.list("")} == {""}, "nobody has them yet"
    assert took(ours, SLOT, OTHER) == {SLOT: at(FIRST), OTHER: at(SECOND)}


def test_a_row_that_a_save_would_make_and_finds_there_is_lost() -> None:
    """Its partition was begun elsewhere, perhaps at another bookmark."""
    store = MemoryStore()
    ours = shared(store, "a")
    shared(store, "b").plant({SLOT: at(SECOND)})
    assert keep(ours, slot=at(FIRST)) == {}
    assert ours.rows.lost == {"shop/default/slot"}
    assert took(ours, SLOT) == {SLOT: at(SECOND)}
    assert not ours.rows.lost


def test_a_row_that_another_instance_changed_is_not_removed_by_a_former_owner() -> None:
    store, clock = MemoryStore(), Clock()
    ours, theirs = positions(store, clock, "a"), positions(store, clock, "b")
    save(ours, FIRST, 1)
    theirs.claim()
    with pytest.raises(LeaseLost):
        ours.forget([SLOT])
    assert theirs.load() == {SLOT: at(FIRST)}


def test_a_checkpoint_of_a_shared_row_keeps_its_properties_and_notes_the_time() -> None:
    store = MemoryStore()
    properties = {"term": 4.0, "since": "now", "team": "x"}
    text = '{"place": null, "mark": {}}'
    store.put(Lease(name="shop/default/slot", continuation=text, properties=properties))
    kept = shared(store, "a")
    took(kept, SLOT)
    kept.save({SLOT: at(SECOND)})
    found = store.get("shop/default/slot")
    assert found is not None
    saved = {"saved": found.properties["saved"]}
    assert found.properties == properties | saved | {"kind": "processor"}
    assert datetime.fromisoformat(saved["saved"]).tzinfo is UTC


def test_a_pipeline_goes_on_at_the_places_of_hosts_that_shared_it() -> None:
    """Whether they had given their leases back, or were killed: their terms are still there."""
    store, clock = MemoryStore(), Clock()
    terms = {"kind": "pipeline", "saved": "2026-01-01T00:00:00+00:00"}
    lived = {"nonce": "7", "since": "then", "machine": "m", "pid": 1, "term": 60.0, "asked_by": "b"}
    text = json.dumps(at(FIRST, token="7").to_json())
    store.put(Lease(name="shop/default/slot", owner="", continuation=text, properties=terms))
    killed = Lease(name="shop/default/other", owner="a:1:x", continuation=text)
    store.put(replace(killed, properties=terms | lived))
    store.put(Lease(name="start:shop/default"))
    kept = positions(store, clock, "one")
    kept.verify_name()
    kept.claim()
    assert kept.load() == {SLOT: at(FIRST, token="7"), OTHER: at(FIRST, token="7")}
    kept.save({SLOT: at(SECOND), OTHER: at(THIRD)}, force=True)
    assert positions(store, clock, "one").load() == {SLOT: at(SECOND), OTHER: at(THIRD)}
