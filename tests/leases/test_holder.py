"""Who holds a lease: one at a time, and the next after the term, over any number of leases."""

import json
from builtins import list as List  # `list` is a method here
from collections.abc import Callable, Sequence

import pytest

from penstock.leases import Lease, replace
from penstock.leases.holder import RENEW, TERM, LeaseHolder, instance_name
from penstock.leases.owned import OwnedRows
from penstock.model.errors import LeaseLost, Unavailable
from penstock.process.processes import Machine
from tests.reading.made import FaultyStore
from tests.waiting import Clock, until

NAMES = [f"shop/p{number:03}" for number in range(1000)]


class Store(FaultyStore):
    """Time may pass after a write."""

    slowly: Callable[[], None] = staticmethod(lambda: None)

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        answers = super().put_all(leases)
        self.slowly()
        return answers


class Here(Machine):
    """This machine, where every process runs until we say so."""

    alive = True

    def runs(self, pid: int) -> bool:
        return self.alive


class Hosts:
    """Holders over one store."""

    def __init__(self, leases: int = 1) -> None:
        self.store, self.clock = Store(), Clock()
        self.machine = Here()
        self.names = NAMES[:leases]
        self.store.put_all([Lease(name=name) for name in self.names])

    def one(self, owner: str = "", term: float = TERM) -> LeaseHolder:
        rows = OwnedRows(self.store, "shop/", owner or instance_name())
        return LeaseHolder(rows, clock=self.clock, term=term, machine=self.machine)

    def owners(self) -> set[str]:
        return {row.owner for row in self.store.list("")}

    def take(self, holder: LeaseHolder) -> list[str]:
        """Takes all that is free."""
        return holder.take(holder.free(self.store.list("shop/")))

    def wait(self, *watching: LeaseHolder, seconds: float = TERM) -> None:
        """Time passes, in which these look."""
        for _ in range(round(seconds / RENEW)):
            for holder in watching:
                holder.free(self.store.list("shop/"))
            self.clock.now += RENEW


def test_a_thousand_leases_are_one_write_to_take_to_renew_and_to_release() -> None:
    hosts = Hosts(1000)
    first, second = hosts.one(), hosts.one()
    rows = first.free(hosts.store.list("shop/"))
    for act in (lambda: first.take(rows), first.renew, first.release):
        before = hosts.store.calls
        act()
        assert hosts.store.calls == before + 1
    assert len(hosts.take(second)) == 1000


def test_nobody_renews_or_releases_what_nobody_holds() -> None:
    hosts = Hosts(3)
    holder, before = hosts.one(), hosts.store.calls
    holder.renew()
    holder.release()
    assert holder.take([]) == []
    holder.ask([])
    assert hosts.store.calls == before


def test_a_lease_is_free_after_its_owner_s_term_and_not_before() -> None:
    hosts = Hosts(3)
    owner, rival = hosts.one(term=2 * TERM), hosts.one()
    hosts.take(owner)
    hosts.wait(rival, seconds=2 * TERM - RENEW)
    assert all(map(owner.holds, hosts.names))
    assert hosts.take(rival) == []
    hosts.clock.now += RENEW
    assert not any(map(owner.holds, hosts.names))
    assert hosts.take(rival) == hosts.names
    owner.renew()
    assert owner.held == []
    assert owner.lost == set(hosts.names)


@pytest.mark.parametrize("owner", ["", "me"])
def test_a_process_of_this_machine_that_ended_holds_nothing(owner: str) -> None:
    hosts = Hosts(3)
    hosts.take(hosts.one(owner))
    assert hosts.take(hosts.one(owner)) == []
    hosts.machine.alive = False
    assert hosts.take(hosts.one(owner)) == hosts.names


def test_a_process_of_another_machine_is_judged_by_its_term_only() -> None:
    hosts = Hosts(1)
    hosts.machine.alive = False
    (row,) = hosts.store.list("")
    elsewhere = {"machine": "elsewhere", "pid": 1}
    hosts.store.put(replace(row, owner="there", properties=elsewhere))
    rival = hosts.one()
    hosts.wait(rival)
    assert hosts.take(rival) == hosts.names


@pytest.mark.parametrize("text", ["", "?", "[]", '{"since": 1, "pid": "x", "term": null}'])
@pytest.mark.parametrize("properties", [{}, {"pid": "x", "term": None}])
def test_a_lease_that_something_else_wrote_expires_too(
    text: str, properties: dict[str, object]
) -> None:
    hosts = Hosts(1)
    (row,) = hosts.store.list("")
    hosts.store.put(replace(row, owner="there", continuation=text, properties=properties))
    rival = hosts.one()
    assert hosts.take(rival) == []
    hosts.wait(rival)
    assert hosts.take(rival) == hosts.names


def test_a_lease_is_taken_kept_and_released_beside_its_place_and_the_user_s_properties() -> None:
    hosts = Hosts(1)
    (row,) = hosts.store.list("")
    row = hosts.store.put(replace(row, continuation='{"place": "1:0"}', properties={"team": "x"}))
    owner = hosts.one("me")
    hosts.take(owner)
    owner.renew()
    (held,) = hosts.store.list("")
    assert held.continuation == row.continuation
    assert held.properties["team"] == "x"
    assert held.properties["term"] == TERM
    assert {"since", "machine", "pid"} < {*held.properties}
    owner.release()
    (free,) = hosts.store.list("")
    assert (free.owner, free.continuation, free.properties) == (
        "", row.continuation, {"team": "x"},
    )  # fmt: skip


def test_who_takes_a_lease_is_not_asked_for_what_its_former_owner_was() -> None:
    hosts = Hosts(1)
    hosts.take(hosts.one())
    thief, rival = hosts.one("thief"), hosts.one("rival")
    thief.ask(hosts.store.list("shop/"))
    hosts.wait(rival)
    assert hosts.take(rival) == hosts.names
    assert rival.asked == {}


def test_an_owner_of_an_earlier_version_is_judged_by_what_it_wrote() -> None:
    """It wrote its terms in place of a continuation, and left properties that it does not know."""
    hosts = Hosts(1)
    hosts.take(hosts.one())
    (row,) = hosts.store.list("")
    earlier = {"since": "2026-11-01", "machine": "elsewhere", "pid": 1, "term": 2 * TERM}
    hosts.store.put(replace(row, owner="earlier", continuation=json.dumps(earlier)))
    hosts.machine.alive = False  # this machine's process, whose properties are still there
    rival = hosts.one("rival")
    hosts.wait(rival, seconds=2 * TERM - RENEW)
    assert hosts.take(rival) == []
    hosts.clock.now += RENEW
    assert hosts.take(rival) == hosts.names
    (taken,) = hosts.store.list("")
    assert (taken.continuation, taken.properties["term"]) == ("", TERM)


def test_what_a_holder_took_and_does_not_hold_it_takes_at_once() -> None:
    hosts = Hosts(3)
    holder = hosts.one("me")
    hosts.take(holder)
    holder.forget(hosts.names)
    assert hosts.take(hosts.one("you")) == []
    assert hosts.take(holder) == hosts.names


def test_of_two_processes_with_one_name_one_holds_a_lease() -> None:
    hosts = Hosts(3)
    first, second = hosts.one("me"), hosts.one("me")
    hosts.take(first)
    assert hosts.take(second) == []
    hosts.wait(second)
    assert hosts.take(second) == hosts.names, "the first has not renewed them for its term"
    assert not any(map(first.holds, hosts.names))
    first.renew()
    assert (first.held, first.lost) == ([], set(hosts.names))
    assert hosts.take(first) == []
    first.release()
    second.renew()
    assert second.held == hosts.names


def test_a_renewal_whose_answer_was_lost_costs_no_lease_and_two_calls() -> None:
    hosts = Hosts(1000)
    owner = hosts.one()
    hosts.take(owner)
    hosts.store.late = True
    with pytest.raises(Unavailable):
        owner.renew()
    hosts.store.late = False
    before = hosts.store.calls
    owner.renew()
    assert hosts.store.calls == before + 2
    assert owner.held == hosts.names


def test_a_renewal_without_an_answer_is_none() -> None:
    """It may not have been carried out: another may take the leases one term after the last."""
    hosts = Hosts(1)
    owner = hosts.one()
    hosts.take(owner)
    hosts.clock.now += TERM - RENEW
    hosts.store.late = True
    with pytest.raises(Unavailable):
        owner.renew()
    hosts.clock.now += RENEW
    assert not owner.holds(NAMES[0])
    assert owner.held == hosts.names, "it is not lost either"
    hosts.store.late = False
    owner.renew()
    assert owner.holds(NAMES[0])


def test_a_renewal_counts_from_its_beginning() -> None:
    """Its answer may come late, and others have seen the row since it was written."""
    hosts = Hosts(1)
    owner = hosts.one()
    hosts.take(owner)

    def slowly() -> None:
        hosts.clock.now += TERM - RENEW

    hosts.store.slowly = slowly
    owner.renew()
    assert owner.holds(NAMES[0])
    hosts.clock.now += RENEW
    assert not owner.holds(NAMES[0])


def test_leases_whose_taking_had_no_answer_are_taken_again() -> None:
    hosts = Hosts(3)
    owner = hosts.one()
    hosts.store.late = True
    with pytest.raises(Unavailable):
        hosts.take(owner)
    assert owner.held == []
    hosts.store.late = False
    assert hosts.take(owner) == hosts.names


def test_what_is_asked_for_is_held_until_it_is_released() -> None:
    hosts = Hosts(3)
    owner, thief = hosts.one("owner"), hosts.one("thief")
    hosts.take(owner)
    thief.ask(hosts.store.list("shop/")[:2])
    assert hosts.take(thief) == []
    assert owner.asked == {}
    before = hosts.store.calls
    owner.renew()
    assert hosts.store.calls == before + 3, "refused, read, written"
    assert owner.asked == dict.fromkeys(NAMES[:2], "thief")
    owner.renew()
    assert owner.asked == dict.fromkeys(NAMES[:2], "thief"), "a renewal keeps the request"
    owner.release(NAMES[:1])
    assert hosts.take(thief) == NAMES[:1]
    assert owner.held == NAMES[1:3]
    assert thief.asked == {}
    assert owner.lost == set(), "what was handed over is not lost"


def test_what_was_asked_for_is_released_before_its_owner_knows() -> None:
    hosts = Hosts(3)
    owner, thief = hosts.one(), hosts.one()
    hosts.take(owner)
    thief.ask(hosts.store.list("shop/"))
    owner.release()
    assert hosts.take(thief) == hosts.names


def test_asking_again_and_again_does_not_keep_a_dead_owner_s_lease() -> None:
    hosts = Hosts(1)
    hosts.take(hosts.one())
    thieves = [hosts.one(), hosts.one()]
    for _ in range(round(TERM / RENEW) + 1):
        for thief in thieves:
            rows = hosts.store.list("shop/")
            thief.free(rows)
            thief.ask(rows)
        hosts.clock.now += RENEW
    assert hosts.take(thieves[0]) == hosts.names


def test_a_release_while_the_store_is_away_is_no_error_and_the_lease_expires() -> None:
    hosts = Hosts(1)
    owner, rival = hosts.one(), hosts.one()
    hosts.take(owner)
    hosts.store.away = True
    owner.release()
    assert owner.held == []
    hosts.store.away = False
    assert hosts.take(rival) == []
    hosts.wait(rival)
    assert hosts.take(rival) == hosts.names


def test_a_thread_renews_until_it_is_stopped() -> None:
    hosts = Hosts(2)
    holder = hosts.one()
    holder._every = 0.01
    hosts.take(holder)
    for _ in range(2):
        before = {row.revision for row in hosts.store.list("")}
        holder.start()
        holder.start()
        until(lambda old=before: old.isdisjoint(r.revision for r in hosts.store.list("")))
        holder.stop()
        holder.stop()


def test_names_of_instances_differ() -> None:
    assert len({instance_name() for _ in range(100)}) == 100
