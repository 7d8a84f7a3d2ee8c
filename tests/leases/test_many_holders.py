"""Many holders of many leases, simulated: one clock, seeded interleavings and faults, no thread."""

from builtins import list as List  # `list` is a method here
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random

import pytest

from penstock.leases import Lease
from penstock.leases.holder import RENEW, TERM, LeaseHolder
from penstock.leases.memory import MemoryStore
from penstock.leases.owned import OwnedRows
from penstock.model.errors import LeaseLost, PenstockError, Unavailable
from penstock.process.processes import Machine


class Place(Machine):
    """A machine of the simulation: its processes are the hosts."""

    def __init__(self, world: "World", name: object) -> None:
        super().__init__(f"machine {name}")
        self.world = world

    def runs(self, pid: int) -> bool:
        return pid in self.world.hosts


class Host:
    """One of the simulation: its clock, its way to the store, and what befalls it."""

    def __init__(self, world: "World", number: int) -> None:
        self.name, self.pid = f"host {number}", number
        self.ahead = world.random.uniform(-50, 50)
        self.is_cut_off = False
        self.wakes = self.renews = self.asks = world.now
        rows = OwnedRows(Route(world, self), "shop/", self.name)
        self.holder = LeaseHolder(
            rows,
            clock=lambda: world.now + self.ahead,
            machine=Place(world, world.random.choice((number, "shared"))),
        )
        # The process that the lease names is this host's, and not the test's.
        self.holder._properties = lambda: {"pid": self.pid}


class Route(MemoryStore):
    """A host's way to the one store: others act before each call; calls and answers get lost."""

    def __init__(self, world: "World", host: Host) -> None:
        super().__init__()
        self.world, self.host = world, host

    def get(self, name: str) -> Lease | None:
        with self.world.call(self.host):
            return self.world.store.get(name)

    def list(self, prefix: str) -> List[Lease]:
        with self.world.call(self.host):
            return self.world.store.list(prefix)

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        with self.world.call(self.host):
            before = {row.name: row.owner for row in self.world.store.list("")}
            answers = self.world.store.put_all(leases)
            for answer in answers:
                if isinstance(answer, Lease):
                    self.world.written(before[answer.name], answer, self.host)
            return answers


class World:
    """Hosts that come, crash, freeze and are cut off, one seed after the other."""

    def __init__(self, seed: int, leases: int, hosts: int) -> None:
        self.random, self.now = Random(seed), 1000.0
        self.store = MemoryStore()
        self.store.put_all([Lease(name=name) for name in map("shop/p{}".format, range(leases))])
        self.numbers = count(1)
        self.hosts: dict[int, Host] = {}
        self.acting: set[int] = set()
        self.faults, self.takeovers, self.handovers = True, 0, 0
        for _ in range(hosts):
            self.join()

    def join(self) -> None:
        number = next(self.numbers)
        self.hosts[number] = Host(self, number)

    def crash(self, host: Host) -> None:
        """And another comes."""
        del self.hosts[host.pid]
        self.join()

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.act(self.random.choice(list(self.hosts.values())))

    @contextmanager
    def call(self, host: Host) -> Iterator[None]:
        """A call of the store: before it time passes, and others act; it or its answer is lost."""
        self.now += self.random.uniform(0.0, 0.05)
        self.let_others_act()
        faults = {"": 950, "not sent": 20, "no answer": 25, "crash": 5}
        fault = self.random.choices(list(faults), list(faults.values()))[0] if self.faults else ""
        if host.is_cut_off or fault == "not sent":
            raise Unavailable("not sent")
        yield
        # The answer takes its time, while others act.
        is_slow = self.faults and self.random.random() < 0.2
        self.now += RENEW if is_slow else self.random.uniform(0.0, 0.05)
        self.let_others_act()
        if fault == "crash":
            self.crash(host)
        if fault:
            raise Unavailable(fault)

    def let_others_act(self) -> None:
        while self.random.random() < 0.3 and len(self.acting) < len(self.hosts):
            self.act(self.random.choice(list(self.hosts.values())))

    def act(self, host: Host) -> None:
        self.now += 0.01
        if host.pid in self.acting or host.wakes > self.now:
            return
        self.acting.add(host.pid)
        try:
            self.befall(host)
            if host.pid in self.hosts and host.wakes <= self.now:
                self.work(host)
        except PenstockError:
            pass  # it tries again
        finally:
            self.acting.discard(host.pid)

    def befall(self, host: Host) -> None:
        if not self.faults:
            host.is_cut_off = False
            return
        chance = self.random.random()
        if chance < 0.004:
            self.crash(host)
        elif chance < 0.008:
            host.wakes = self.now + self.random.uniform(0, 3 * TERM)
        elif chance < 0.02:
            host.is_cut_off = not host.is_cut_off

    def work(self, host: Host) -> None:
        holder = host.holder
        if host.renews <= self.now:
            host.renews = self.now + RENEW
            holder.renew()
            self.alone(host)
            asked = list(holder.asked)
            self.handovers += len(asked)
            holder.release(asked)
        else:
            rows = holder.free(holder._rows.list())
            holder.take(self.random.sample(rows, min(len(rows), 1 + len(rows) // 3)))
            self.alone(host)
            if host.asks <= self.now:
                host.asks = self.now + 5 * RENEW
                holder.ask(self.random.sample(holder._rows.list(), 2))

    def alone(self, host: Host) -> None:
        """What it holds now is held by no other that lives, asleep or awake."""
        ours = set(filter(host.holder.holds, host.holder.held))
        for other in self.hosts.values():
            if other is not host:
                assert ours.isdisjoint(filter(other.holder.holds, other.holder.held))

    def written(self, before: str, row: Lease, by: Host) -> None:
        """A row was written: by its owner, or by who may take it, ask for it, or give it back."""
        owner = next((host for host in self.hosts.values() if host.name == before), None)
        if row.owner != before:
            assert row.owner in ("", by.name)
            assert row.owner or before == by.name, "it gave back what was another's"
            if owner is not None and owner is not by:
                assert not owner.holder.holds(row.name), "it took what was held"
                self.takeovers += 1
        elif before != by.name:
            assert row.properties["asked_by"] == by.name, "a former owner wrote"

    def settle(self) -> None:
        """No more faults, and none asks for more: soon all leases are held, each by one."""
        self.faults = False
        for host in self.hosts.values():
            host.asks = self.now + 1000 * TERM
        until = self.now + 20 * TERM
        while self.held() != [row.name for row in self.store.list("")]:
            assert self.now < until
            self.run(TERM)

    def held(self) -> List[str]:
        return sorted(name for host in self.hosts.values() for name in host.holder.held)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_lease_has_two_holders_at_one_time(seed: int) -> None:
    world = World(seed, leases=10, hosts=4)
    world.run(300.0)
    assert world.takeovers > 0, "the plan has no takeover from a host that lives"
    assert world.handovers > 0
    world.settle()


@pytest.mark.slow
def test_a_thousand_leases_are_divided_among_hosts_that_come_and_go() -> None:
    world = World(7, leases=1000, hosts=5)
    world.run(20.0)
    world.settle()
