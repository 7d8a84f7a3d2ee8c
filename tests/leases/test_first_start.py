"""Several hosts start together: the source is asked once, and each partition begins once."""

from builtins import list as List  # `list` is a method here
from collections.abc import Callable, Sequence
from random import Random

import pytest

from penstock.leases import Lease
from penstock.leases.first_start import TERM, FirstStart
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, Malformed, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.host_positions import HostPositions
from tests.waiting import Clock


class Store(MemoryStore):
    """Of many rows, writes `rows` and fails, while that is set."""

    rows: int | None = None

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        if self.rows is None or len(leases) <= 1:
            return super().put_all(leases)
        super().put_all(leases[: self.rows])
        raise Unavailable("the store went away")


class Source:
    """What it is asked for: "now" is another place each time."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False
        self.meanwhile: Callable[[], object] = lambda: None

    def begin(self) -> Bookmarks:
        self.asked += 1
        asked = self.asked
        self.meanwhile()
        if self.fails:
            raise Unavailable("the source is away")
        return {PartitionId(f"p{n}"): Bookmark(Place(f"{asked:04}", 0), {}) for n in range(3)}


class Hosts:
    def __init__(self) -> None:
        self.store, self.clock, self.source = Store(), Clock(), Source()
        self.made = 0

    def one(self) -> FirstStart:
        self.made += 1
        host = f"host{self.made}"
        kept = HostPositions(self.store, "shop/b", host, clock=self.clock)
        begin, make = self.source.begin, kept.plant
        return FirstStart(self.store, "shop/b", host, begin=begin, make=make, clock=self.clock)

    def places(self) -> set[str]:
        found = HostPositions(self.store, "shop/b", "reader", clock=self.clock).survey()
        assert len(found) in (0, 3)
        return {str(each.place) for _, each in found.values()}


def test_the_first_begins_and_the_second_finds_the_rows() -> None:
    hosts = Hosts()
    assert hosts.one().attempt()
    assert hosts.one().attempt()
    assert hosts.source.asked == 1
    assert hosts.places() == {"0001:0"}
    assert {row.owner for row in hosts.store.list("")} == {""}


def test_a_start_that_fails_leaves_nothing_behind() -> None:
    hosts = Hosts()
    hosts.source.fails = True
    with pytest.raises(Unavailable):
        hosts.one().attempt()
    assert hosts.store.list("shop/") == []
    hosts.source.fails = False
    assert hosts.one().attempt(), "at once: nobody has the lease"
    assert hosts.places() == {"0002:0"}


@pytest.mark.parametrize("rows", [0, 2, 3])
def test_a_start_that_fails_between_its_rows_goes_on_where_it_began(rows: int) -> None:
    hosts = Hosts()
    hosts.store.rows = rows
    with pytest.raises(Unavailable):
        hosts.one().attempt()
    second = hosts.one()
    with pytest.raises(Unavailable):
        second.attempt()
    hosts.store.rows = None
    assert second.attempt()
    assert hosts.source.asked == 1
    assert hosts.places() == {"0001:0"}


def test_a_host_that_dies_is_replaced_after_the_term() -> None:
    hosts = Hosts()
    second = hosts.one()
    row = Lease(name="start:shop/b", owner="gone", properties={"machine": "elsewhere"})
    hosts.store.put(row)
    for _ in range(4):
        assert not second.attempt()
        hosts.clock.now += TERM / 4
    assert second.attempt()


def test_a_host_that_was_frozen_while_it_asked_does_not_count() -> None:
    hosts = Hosts()
    first, second = hosts.one(), hosts.one()

    def freeze() -> None:
        hosts.source.meanwhile = lambda: None
        for _ in range(4):
            assert not second.attempt()
            hosts.clock.now += TERM / 4
        assert second.attempt()

    hosts.source.meanwhile = freeze
    assert not first.attempt()
    assert first.attempt()
    assert hosts.places() == {"0002:0"}, "the first answer that was stored"


def test_rows_that_are_there_are_a_start_and_after_they_were_removed_there_is_another() -> None:
    hosts = Hosts()
    kept = HostPositions(hosts.store, "shop/b", "before", clock=hosts.clock)
    kept.plant({PartitionId(f"p{n}"): Bookmark(Place("0000", 7), {}) for n in range(3)})
    assert hosts.one().attempt()
    assert hosts.source.asked == 0
    for row in hosts.store.list("shop/"):
        hosts.store.delete(row)
    assert hosts.one().attempt()
    assert hosts.places() == {"0001:0"}


@pytest.mark.parametrize("text", ["?", "[1]", '{"p0": 1}'])
def test_what_something_else_wrote_is_malformed_and_names_the_row(text: str) -> None:
    hosts = Hosts()
    row = hosts.store.put(Lease(name="start:shop/b", continuation=text))
    with pytest.raises(Malformed, match="start:shop/b"):
        hosts.one().attempt()
    left = hosts.store.get(row.name)
    assert left is not None
    assert (left.owner, left.continuation) == ("", text)


@pytest.mark.parametrize("seed", range(50))
def test_hosts_that_freeze_and_fail_agree_on_one_beginning(seed: int) -> None:
    hosts, random = Hosts(), Random(seed)
    starts = [hosts.one() for _ in range(5)]
    done: set[int] = set()

    def others() -> None:
        for _ in range(random.randrange(6)):
            hosts.clock.now += random.choice([0.0, TERM / 8, TERM / 4])
            attempt(random.randrange(5))

    running: set[int] = set()

    def attempt(number: int) -> None:
        if number in running or len(running) > 3:
            return
        running.add(number)
        hosts.source.fails = random.random() < 0.2
        hosts.store.rows = random.choice([None, None, 0, 1])
        try:
            if starts[number].attempt():
                done.add(number)
                first.setdefault("place", hosts.places())
        except Unavailable:
            pass
        running.remove(number)

    first: dict[str, set[str]] = {}
    hosts.source.meanwhile = others
    while len(done) < 5:
        hosts.clock.now += TERM / 8
        attempt(random.randrange(5))
    assert hosts.places() == first["place"]
    assert len(first["place"]) == 1


def test_the_first_rows_of_a_start_in_between_are_not_all_rows() -> None:
    hosts = Hosts()
    second = hosts.one()
    first = hosts.one()
    get, hosts.store.rows = hosts.store.get, 1

    def read(name: str) -> Lease | None:
        found = get(name)
        hosts.store.get = get  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            first.attempt()
        return found

    hosts.store.get = read  # type: ignore[method-assign]
    assert not second.attempt()
    hosts.store.rows = None
    assert second.attempt() and len(hosts.store.list("shop/b/")) == 3
