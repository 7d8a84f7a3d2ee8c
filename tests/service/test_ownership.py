"""Who runs the pipeline: one at a time, and the next within seconds. What holds for any lease is in
tests/leases/test_holder.py.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.leases import Lease, replace
from penstock.leases.holder import RENEW, TERM, instance_name
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, Unavailable
from penstock.service.ownership import Owner, Ownership
from tests.waiting import Clock

NAME = "owner:shop"


class Instances:
    """Instances of one pipeline over one store and one clock."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = Clock()
        self.made: list[Ownership] = []

    def one(self, **readers: str) -> Ownership:
        self.made.append(
            Ownership(
                self.store,
                "shop",
                instance=instance_name(),
                clock=self.clock,
                readers=lambda: readers,
            )
        )
        return self.made[-1]

    def from_elsewhere(self, readers: dict[str, str] | None = None) -> Lease:
        """The lease as an instance on another machine has it."""
        found = {"machine": "another", "pid": 1, "readers": readers or {}}
        lease = self.store.get(NAME) or Lease(name=NAME)
        return self.store.put(replace(lease, owner="there:1:00", properties=found))


@pytest.fixture
def instances() -> Iterator[Instances]:
    made = Instances()
    yield made
    for each in made.made:
        each.release()


def test_the_first_takes_the_lease_and_the_second_is_told_whose_it_is(
    instances: Instances,
) -> None:
    first, second = instances.one(default="4711"), instances.one()
    assert first.attempt() is None
    first._holder.renew()
    rival = second.attempt()
    assert rival is not None
    assert rival.instance == first.instance
    assert "process 4711 of the server" in rival.text
    assert first.held
    assert not second.held


def test_what_was_given_back_is_free_at_once(instances: Instances) -> None:
    first, second = instances.one(), instances.one()
    first.attempt()
    assert second.attempt() is not None
    first.release()
    assert second.attempt() is None
    assert second.predecessor is None, "nobody is left to be ended"


def test_a_lease_that_nobody_renews_expires_after_its_term_on_our_clock(
    instances: Instances,
) -> None:
    second = instances.one()
    instances.from_elsewhere({"default": "4711"})
    for _ in range(int(TERM / RENEW)):
        assert second.attempt() is not None
        instances.clock.now += RENEW - 0.01
    assert second.attempt() is not None
    instances.clock.now += int(TERM / RENEW) * 0.011
    assert second.attempt() is None
    assert second.predecessor == Owner(instance="there:1:00", readers={"default": "4711"})


def test_the_term_begins_when_we_first_look(instances: Instances) -> None:
    instances.from_elsewhere()
    instances.clock.now += 1000
    assert instances.one().attempt() is not None


def test_a_pause_in_which_we_did_not_look_is_not_the_owner_s(instances: Instances) -> None:
    """The whole machine may have stood still: its owner renews in a moment."""
    second = instances.one()
    lease = instances.from_elsewhere()
    assert second.attempt() is not None
    instances.clock.now += 1000
    assert second.attempt() is not None
    instances.store.put(lease)
    for _ in range(int(TERM / RENEW)):
        assert second.attempt() is not None
        instances.clock.now += 2 * RENEW
    assert second.attempt() is None, "who looks seldom takes over later, and not never"


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_a_lease_of_a_process_of_this_machine_that_ended_is_free_at_once(
    instances: Instances, reaped: bool
) -> None:
    """Also while its parent has not looked."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        ended.wait()
    first, second = instances.one(), instances.one()
    first.attempt()
    lease = instances.store.get(NAME)
    assert lease is not None
    assert lease.properties["pid"] == os.getpid()
    ending = {**lease.properties, "pid": ended.pid, "readers": {"default": "4711"}}
    instances.store.put(replace(lease, properties=ending))
    assert second.attempt() is None
    assert second.predecessor is not None
    assert second.predecessor.readers == {"default": "4711"}
    ended.wait()


def test_an_owner_that_slept_too_long_learns_that_it_lost(instances: Instances) -> None:
    first = instances.one()
    first.attempt()
    instances.from_elsewhere()
    first._holder.renew()
    assert first.lost
    assert not first.held
    first.release()
    lease = instances.store.get(NAME)
    assert lease is not None
    assert lease.owner == "there:1:00", "what is another's is not given back"


def test_an_instance_that_lost_may_wait_and_own_again(instances: Instances) -> None:
    first = instances.one()
    first.attempt()
    lease = instances.from_elsewhere()
    first._holder.renew()
    assert first.attempt() is not None
    instances.store.put(replace(lease, owner="", properties={}))
    assert first.attempt() is None
    assert first.held


def test_a_race_has_one_winner(instances: Instances) -> None:
    class Racing(MemoryStore):
        def put(self, lease: Lease) -> Lease:
            raise LeaseLost("somebody was faster")

    second = Ownership(Racing(), "shop", instance="b", clock=instances.clock)
    assert second.attempt() is not None
    assert not second.held


def test_a_store_that_is_away_does_not_cost_the_lease(instances: Instances) -> None:
    class Away(MemoryStore):
        away = False

        def put(self, lease: Lease) -> Lease:
            if self.away:
                raise Unavailable("the store is away")
            return super().put(lease)

    store = Away()
    first = Ownership(store, "shop", instance="a", clock=instances.clock)
    first.attempt()
    store.away = True
    with pytest.raises(Unavailable):
        first._holder.renew()
    assert first.held
    store.away = False
    first._holder.renew()
    assert first.held
    first.release()
