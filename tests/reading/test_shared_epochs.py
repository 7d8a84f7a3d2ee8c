"""Hosts that divide a feed's partitions by leases, without Spark: which of them each reads, what is
handed over and when, and that nothing is saved after a loss."""

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.config import Sharing
from penstock.errors import Malformed, Unavailable
from penstock.leases import Lease, LeaseStore
from penstock.leases.memory import MemoryStore
from penstock.position import Bookmark, PartitionId
from penstock.reading.assignments import Assignments
from penstock.reading.epochs import Lengths
from penstock.reading.host_leases import HostLeases
from penstock.reading.positions import read_bookmark
from penstock.reading.shared import SharedPositions
from penstock.reading.shared_epochs import SharedEpochs
from penstock.reading.sharing import SharedPartitions
from tests.reading.made import P0, Clock, feed_of, place, until

SHARING = Sharing(renew=2.0, acquire=1.0, expire=10.0)
PREFIX = "shop/memory"


class Away(MemoryStore):
    """A store that can be away."""

    is_away = False

    def list(self, prefix: str) -> Any:
        self._require()
        return super().list(prefix)

    def get(self, name: str) -> Any:
        self._require()
        return super().get(name)

    def put_all(self, leases: Sequence[Lease]) -> Any:
        self._require()
        return super().put_all(leases)

    def _require(self) -> None:
        if self.is_away:
            raise Unavailable("the store is away")


class Member:
    """One host's reader process. `interval`: between two saves."""

    def __init__(
        self, name: str, store: LeaseStore, clock: Clock, interval: float = 1e9, **feed: Any
    ) -> None:
        self.clock = clock
        self.positions = SharedPositions(store, PREFIX, name, interval=interval, clock=clock)
        self.shared = SharedPartitions(
            feed_of(polled=True, **feed), self.positions, SHARING, clock=clock
        )
        self.assignments = Assignments(1 << 20)
        lengths = Lengths(30.0)
        self.epochs = SharedEpochs(self.assignments, self.shared, self.positions, lengths, clock)
        self.epochs.begin({})
        self.number = 0

    def step(self) -> None:
        """What its threads do in a while."""
        self.shared.discover()
        self.shared.tick()
        self.epochs.watch()

    def plan(self) -> None:
        """The epoch before is over, and all that it had is reported."""
        self.number += 1
        self.epochs.plan(self.number)

    @property
    def reads(self) -> set[PartitionId]:
        return set(self.assignments.open_partitions)


def pass_time(seconds: float, *members: Member, epochs: bool = True) -> None:
    """In half seconds; with `epochs`, one ends when it is cut short."""
    for _ in range(round(seconds * 2)):
        members[0].clock.now += 0.5
        for each in members:
            each.step()
            if epochs and each.epochs.is_cut_short():
                each.plan()


def row(store: MemoryStore, partition: str = "p0") -> Lease:
    found = store.get(f"{PREFIX}/{partition}")
    assert found is not None
    return found


def test_hosts_read_only_partitions_that_they_have_the_leases_of() -> None:
    store, clock = MemoryStore(), Clock()
    a = Member("a", store, clock, partitions=7)
    pass_time(3, a)
    assert len(a.reads) == 7, "alone, all of them"
    b, c = (Member(name, store, clock, partitions=7) for name in "bc")
    pass_time(60, a, b, c)
    assert sorted(len(each.reads) for each in (a, b, c)) == [2, 2, 3]
    assert set.union(a.reads, b.reads, c.reads) == {f"p{n}" for n in range(7)}


def test_what_is_asked_for_is_handed_over_between_epochs_and_saved_before() -> None:
    store, clock = MemoryStore(), Clock()
    a, b = (Member(name, store, clock, partitions=2) for name in "ab")
    pass_time(3, a)
    a.plan()
    pass_time(5, b, a, epochs=False)
    assert a.epochs.is_cut_short()
    assert len(a.reads) == 2, "a task may have any of it in its hands"
    assert not b.reads
    (asked,) = a.shared.asked
    done = Bookmark(place(9, asked), {})
    a.epochs.stored({asked: done})
    a.plan()
    assert asked not in a.reads
    assert row(store, asked).owner == ""
    pass_time(2, b, a)
    assert b.reads == {asked}
    assert b.epochs.durable == {asked: done}
    assert not a.epochs.is_cut_short()


def test_while_the_store_is_away_nothing_is_handed_over() -> None:
    store, clock = Away(), Clock()
    a, b = (Member(name, store, clock, partitions=2) for name in "ab")
    pass_time(3, a)
    pass_time(5, b, a, epochs=False)
    (asked,) = a.shared.asked
    a.epochs.stored({asked: Bookmark(place(9, asked), {})})
    store.is_away = True
    a.plan()
    assert asked in a.reads


def test_a_host_that_was_frozen_saves_nothing_of_what_it_lost() -> None:
    store, clock = MemoryStore(), Clock()
    a, b = (Member(name, store, clock, interval=0.0) for name in "ab")
    pass_time(3, a, b)
    assert (a.reads, b.reads) == ({P0}, set())
    pass_time(15, b)
    assert b.reads == {P0}
    b.epochs.stored({P0: Bookmark(place(19), {})})
    pass_time(1, b)
    saved = row(store)
    a.epochs.stored({P0: Bookmark(place(49), {})})  # its task was faster than its reader
    a.epochs.watch()
    a.epochs.save()
    assert (row(store), a.reads, a.epochs.durable) == (saved, set(), {})
    a.epochs.stored({P0: Bookmark(place(59), {})})
    a.epochs.save()
    a.epochs.finish()
    assert row(store) == saved
    assert b.reads == {P0}


def test_a_save_that_comes_before_the_loss_is_noticed_is_refused() -> None:
    store, clock = MemoryStore(), Clock()
    a = Member("a", store, clock, interval=0.0)
    pass_time(3, a)
    taken = store.put(Lease(**{**_fields(row(store)), "owner": "b"}))
    a.epochs.stored({P0: Bookmark(place(49), {})})
    a.epochs.save()
    assert row(store) == taken
    assert (a.reads, a.epochs.durable) == (set(), {})


def _fields(lease: Lease) -> dict[str, Any]:
    return {name: getattr(lease, name) for name in Lease.__dataclass_fields__}


def test_what_was_given_up_comes_back_only_in_another_epoch() -> None:
    """A task may still have some of it: the same partition twice in one task would be out of
    order."""
    store, clock = Away(), Clock()
    a = Member("a", store, clock, interval=0.0)
    pass_time(3, a)
    done = Bookmark(place(9), {})
    a.epochs.stored({P0: done})
    pass_time(1, a)
    store.is_away = True
    pass_time(7, a, epochs=False)
    assert a.reads == {P0}, "its lease has not expired"
    pass_time(4, a, epochs=False)
    assert a.reads == set(), "another host may have it"
    assert a.epochs.is_cut_short()
    store.is_away = False
    pass_time(5, a, epochs=False)
    assert a.reads == set()
    a.plan()
    pass_time(2, a)
    assert a.reads == {P0}
    assert a.epochs.durable == {P0: done}


def test_the_end_of_a_partition_is_saved_before_its_children_are_read() -> None:
    store, clock = MemoryStore(), Clock()
    a, b = (Member(name, store, clock, generations=1) for name in "ab")
    pass_time(3, a, b)
    assert a.reads == {P0}
    a.epochs.stored({P0: Bookmark(place(99), {}, ended=True)})
    a.epochs.watch()
    assert row(store).owner == ""
    assert read_bookmark(row(store)).ended
    pass_time(20, a, b)
    assert {len(a.reads), len(b.reads)} == {1}
    assert a.reads | b.reads == {"p0.0", "p0.1"}


def test_a_stop_saves_and_gives_all_leases_back() -> None:
    store, clock = MemoryStore(), Clock()
    a, b = (Member(name, store, clock, partitions=2) for name in "ab")
    pass_time(3, a)
    done = Bookmark(place(9), {})
    a.epochs.stored({P0: done})
    a.epochs.finish()
    assert {row(store, name).owner for name in ("p0", "p1")} == {""}
    pass_time(3, a, b)
    assert (a.reads, b.reads) == (set(), {"p0", "p1"})
    assert b.epochs.durable[P0] == done


def test_a_host_whose_tasks_do_not_run_takes_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []
    monkeypatch.setattr(SharedPartitions, "start", lambda _: started.append(True))
    a = Member("a", MemoryStore(), Clock())
    a.plan()
    a.epochs.watch()
    assert not started
    a.epochs.draw(0, 1)
    assert started


def test_a_gap_of_a_partition_that_may_be_anothers_is_not_recorded() -> None:
    store, clock = MemoryStore(), Clock()
    a = Member("a", store, clock)
    pass_time(3, a)
    a.shared.require(P0)
    clock.now += 11
    with pytest.raises(Unavailable, match="another host"):
        a.shared.require(P0)


def test_the_status_says_how_many_leases_there_are_and_that_the_store_is_away() -> None:
    store, clock = Away(), Clock()
    a = Member("a", store, clock, partitions=3)
    pass_time(3, a)
    found = a.shared.status()
    assert found == {"host": "a", "leases": 3, "unowned": 0}
    store.is_away = True
    pass_time(3, a)
    assert a.shared.status()["last_error"] == "the store is away"


class Threads:
    """The partitions of one host, with short intervals and the machine's clock."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        sharing = Sharing(renew=0.05, acquire=0.05, expire=60.0)
        positions = SharedPositions(self.store, PREFIX, "a")
        self.shared = SharedPartitions(feed_of(polled=True, partitions=3), positions, sharing)
        self.ready: dict[PartitionId, Bookmark] = {}
        self.shared.start()

    def take(self) -> int:
        """What is ready by now; how many."""
        found = self.shared.look_up({}, ())
        self.ready |= found.ready if found else {}
        return len(self.ready)

    @property
    def owners(self) -> set[str]:
        return {each.owner for each in self.store.list(f"{PREFIX}/")}


def test_threads_keep_the_leases_until_they_are_given_back() -> None:
    threads = Threads()
    try:
        until(lambda: threads.take() == 3)
    finally:
        threads.shared.leave()
    assert threads.owners == {""}


def test_after_a_stop_that_was_not_in_order_leases_expire() -> None:
    """Tasks may still have changes of these partitions in their hands."""
    threads = Threads()
    try:
        until(lambda: threads.take() == 3)
    finally:
        threads.shared.stop()
    assert threads.owners == {"a"}


def test_a_defect_in_a_thread_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: HostLeases) -> None:
        raise ValueError("of all things")

    monkeypatch.setattr(HostLeases, "survey", broken)
    threads = Threads()

    def raises() -> bool:
        try:
            threads.take()
        except Malformed as error:
            return "sharing the partitions failed: ValueError: of all things" in str(error)
        return False

    try:
        until(raises)
    finally:
        threads.shared.stop()
