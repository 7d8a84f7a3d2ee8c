"""Many hosts on one virtual clock, and the same for the same seed.

Each thread of a host is a thread here, and one runs at a time: in a call of the store or of an
observer it waits on the virtual clock, and the scheduler picks the next. So all interleavings come
from the seed, and what runs is the product's code. Hosts are killed, frozen, cut off from the
store; answers of writes are lost; their clocks run at different rates.
"""

import heapq
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from penstock.leases import Lease
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, Unavailable
from penstock.processor.observer import Changes, CloseReason, Observer, PartitionContext
from penstock.processor.processor import Processor
from tests.feeds.staged import StagedFeed, StagedSettings

WORKERS = 2
EXPIRE = 60.0
# Clocks run between 1 - SKEW and 1 + SKEW seconds a second.
SKEW = 0.02


class Killed(BaseException):
    """What a host that is killed does next."""


class SimulatedHost:
    """One process. Until `frozen_until` nothing of it runs. `writing`: the thread of it that is in
    the store; the others would wait for its lock. `given`: its name in leases, which may be that of
    another process, too."""

    def __init__(self, world: "Simulation", name: str, given: str) -> None:
        self.name, self.given = name, given
        self.is_dead = False
        self.frozen_until = self.cut_off_until = 0.0
        self.writing: threading.Thread | None = None
        self.offset, self.rate = world.random.uniform(0, 1e6), 1 + world.random.uniform(-SKEW, SKEW)
        self.processor = Processor(
            StagedFeed(world.settings),
            leases=Facade(world, self),
            name="sim",
            observer=lambda: Watched(world, self),
            host=given,
            clock=lambda: self.offset + world.now * self.rate,
            threads=WORKERS,
            retries=None,
            **world.keywords,
        )


class Facade:
    """The store as one host reaches it: slow, away at times, and watched."""

    def __init__(self, world: "Simulation", host: SimulatedHost) -> None:
        self._world, self._host = world, host

    def get(self, name: str) -> Lease | None:
        return self._call(lambda store: store.get(name))  # type: ignore[no-any-return]

    def list(self, prefix: str) -> Any:
        return self._call(lambda store: store.list(prefix))

    def put(self, lease: Lease) -> Any:
        return self._call(lambda store: self._world.put(self._host, [lease])[0])

    def put_all(self, leases: Sequence[Lease]) -> Any:
        return self._call(lambda store: self._world.put(self._host, leases))

    def delete(self, lease: Lease) -> None:
        self._call(lambda store: store.delete(lease))

    def close(self) -> None:
        pass

    def _call(self, do: Callable[[MemoryStore], Any]) -> Any:
        world, host = self._world, self._host
        world.calls += 1
        world.expect(host.writing is None, "two calls of one connection")
        host.writing = threading.current_thread()
        try:
            world.block(host, world.latency())
            if world.now < host.cut_off_until:
                raise Unavailable("cut off")
            answer = do(world.store)
            world.block(host, world.latency())
            if world.random.random() < world.lost_answers:
                raise Unavailable("the answer was lost")
            return answer
        finally:
            host.writing = None


class Watched(Observer):
    """Holds what is promised to observers against what happens."""

    def __init__(self, world: "Simulation", host: SimulatedHost) -> None:
        self._world, self._host = world, host
        self._state = "new"
        self._next: int | None = None

    def open(self, context: PartitionContext) -> None:
        self._world.expect(self._state == "new", "opened twice")
        self._state = "open"

    def process(self, changes: Changes, context: PartitionContext) -> None:
        world, name = self._world, str(context.partition)
        world.expect(self._state == "open", "a call during a call, or after close")
        self._state = "busy"
        is_ours = world.holders[name] == self._host.name or world.was_frozen(self._host)
        world.expect(is_ours, f"{name} was given to {self._host.name} without a lease")
        numbers = [_number(each["meta"]["sequence_number"]) for each in changes]
        world.expect(self._next in (None, numbers[0]), f"{name} is out of order")
        world.expect(numbers[0] <= world.done[name], f"{name} has a hole")
        world.active[name].add(self._host.name)
        try:
            world.block(self._host, world.random.choice(world.durations))
        finally:
            world.active[name].discard(self._host.name)
        self._next = numbers[-1] + 1
        world.processed[name] += len(numbers)
        world.done[name] = max(world.done[name], self._next)
        self._state = "open"

    def close(self, context: PartitionContext, reason: CloseReason) -> None:
        world, name = self._world, str(context.partition)
        world.expect(self._state == "open", "closed twice, or during a call")
        self._state = "closed"
        world.closed[str(reason)] += 1
        world.active[name].add(self._host.name)
        try:
            world.block(self._host, world.random.choice(world.durations))
        finally:
            world.active[name].discard(self._host.name)


class Simulation:
    """`partitions` and `hosts` of it; `faults` a minute over all hosts. So many processes have
    each name (`twins`)."""

    def __init__(
        self,
        seed: int,
        *,
        partitions: int,
        hosts: int,
        settings: dict[str, Any] | None = None,
        durations: Sequence[float] = (0.01, 0.05, 0.3),
        lost_answers: float = 0.0,
        twins: int = 1,
        **keywords: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.settings = StagedSettings(
            **{
                "partitions": partitions,
                "changes": 30,
                "page": 10,
                "polled": True,
                **(settings or {}),
            }
        )
        self.keywords = {"expire": EXPIRE, **keywords}
        self.durations, self.lost_answers = durations, lost_answers
        self.store = MemoryStore()
        self.twins = twins
        self.rows: dict[str, Lease] = {}
        self.holders: dict[str, str] = defaultdict(str)  # partition -> the process that took it
        self.changed_at: dict[str, float] = {}
        self.calls = 0
        self.wrong: list[str] = []  # what must not happen, and did
        self.done: dict[str, int] = defaultdict(int)  # all before this number was processed
        self.processed: Counter[str] = Counter()
        self.active: dict[str, set[str]] = defaultdict(set)
        self.closed: Counter[str] = Counter()
        self.hosts: list[SimulatedHost] = []
        self._thawed: dict[str, float] = {}
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        # Of the scheduler, and of each thread of a host.
        self._turn = threading.Semaphore(0)
        self._batons: dict[threading.Thread, threading.Semaphore] = {}
        for _ in range(hosts):
            self.at(self.random.uniform(0, 20), self.join)

    def expect(self, is_true: bool, what: str) -> None:
        """The product may catch what is raised here."""
        if not is_true:
            self.wrong.append(f"at {self.now:.1f}: {what}")

    # Time.

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), do))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = until

    def close(self) -> None:
        """Ends all threads."""
        for host in self.hosts:
            host.is_dead = True
        for thread, baton in list(self._batons.items()):
            baton.release()
            thread.join(10)

    def block(self, host: SimulatedHost, seconds: float) -> None:
        """A call of this host's thread takes so long; others run meanwhile."""
        thread, until = threading.current_thread(), self.now + seconds
        while not host.is_dead:
            self.at(until, lambda: self._resume(thread))
            self._turn.release()
            self._batons[thread].acquire()
            if self.now < host.frozen_until:
                until = host.frozen_until
            elif host.writing not in (None, thread):
                until = self.now + 0.003
            elif self.now >= until:
                break
        if host.is_dead:
            raise Killed

    def _resume(self, thread: threading.Thread) -> None:
        if thread in self._batons:
            self._batons[thread].release()
            self._turn.acquire()

    def latency(self) -> float:
        return (
            self.random.choice((0.001, 0.002, 0.005, 0.02)) if self.random.random() < 0.998 else 3
        )

    # Hosts.

    def join(self) -> None:
        number = len(self.hosts)
        host = SimulatedHost(self, f"host{number}", f"host{number // self.twins}")
        host.processor.feed.settings = self.settings  # type: ignore[attr-defined]
        self.hosts.append(host)
        self._actor(host, self._tick)
        for _ in range(WORKERS):
            self._actor(host, self._work)

    def _actor(self, host: SimulatedHost, step: Callable[[SimulatedHost], float]) -> None:
        def run() -> None:
            try:
                self._batons[thread].acquire()
                wait = 0.0
                while True:
                    self.block(host, wait)
                    wait = step(host)
            except Killed:
                pass
            except BaseException as error:
                self.wrong.append(f"{host.name}: {error!r}")
            finally:
                del self._batons[thread]
                self._turn.release()

        thread = threading.Thread(target=run, daemon=True)
        self._batons[thread] = threading.Semaphore(0)
        thread.start()
        self.at(self.now, lambda: self._resume(thread))

    def _tick(self, host: SimulatedHost) -> float:
        return max(0.5, host.processor.node.tick())

    def _work(self, host: SimulatedHost) -> float:
        node = host.processor.node
        while (job := node.turns.next()) is not None:
            node.take_turn(job, 0.0)
        return min(max(0.05, node.turns.left() or 1.0), 2.0)

    def kill(self, host: SimulatedHost) -> None:
        host.is_dead = True

    def freeze(self, host: SimulatedHost, seconds: float) -> None:
        host.frozen_until = self.now + seconds
        self._thawed[host.name] = host.frozen_until

    def was_frozen(self, host: SimulatedHost) -> bool:
        """Lately: what it does next it decided before."""
        return self._thawed.get(host.name, -1e9) >= self.now - 10

    @property
    def live(self) -> list[SimulatedHost]:
        return [host for host in self.hosts if not host.is_dead]

    def faults(self, begin: float, end: float, each: float) -> None:
        """A fault about every so many seconds, in this time."""
        when = begin
        while (when := when + self.random.expovariate(1 / each)) < end:
            self.at(when, self._fault)

    def _fault(self) -> None:
        host = self.random.choice(self.live)
        kind = self.random.choice(("kill", "freeze", "freeze", "cut", "leave"))
        if kind == "kill":
            self.kill(host)
            self.at(self.now + self.random.uniform(1, 30), self.join)
        elif kind == "freeze":
            self.freeze(host, self.random.choice((5.0, 40.0, 70.0, 150.0)))
        elif kind == "cut":
            host.cut_off_until = self.now + self.random.choice((10.0, 50.0, 120.0))
        elif len(self.live) > 1:
            host.processor.node.leave()
            self.at(self.now + 40, lambda: self.kill(host))
            self.at(self.now + 41, self.join)

    # What the store may be asked to do.

    def put(self, host: SimulatedHost, leases: Sequence[Lease]) -> list[Lease | LeaseLost]:
        answers = self.store.put_all(leases)
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Lease):
                before = self.rows.get(lease.name, Lease(name=lease.name))
                name = lease.name.removeprefix("sim/memory/")
                self._check(host, name, before, answer)
                if not answer.owner or _session(before) != _session(answer):
                    self.holders[name] = host.name if answer.owner else ""
                self.rows[lease.name] = answer
                self.changed_at[lease.name] = self.now
        return answers

    def _check(self, host: SimulatedHost, name: str, before: Lease, after: Lease) -> None:
        if not before.revision or not after.name.startswith("sim/"):
            return
        expect, mine = self.expect, host.name
        if after.continuation != before.continuation:
            expect(self.holders[name] == mine, f"{mine} is no owner of {name}, and saved it")
        if before.owner and not after.owner:
            expect(self.holders[name] == mine, f"{mine} gave {name} back, which is another's")
            expect(mine not in self.active[name], f"{name} was given back while it is processed")
        elif not before.owner and after.owner:
            others = self.active[name] - {mine}
            frozen = {each.name for each in self.hosts if each.is_dead or self.was_frozen(each)}
            expect(others <= frozen, f"{name} was taken while {others} process it")
        elif _session(after) != _session(before) and self.holders[name] != mine:
            unchanged = self.now - self.changed_at[after.name]
            over = EXPIRE * (1 - 2 * SKEW) - 1
            expect(unchanged >= over, f"{name} was taken after {unchanged:.0f} s")
            expect(after.owner == host.given, f"{mine} gave {name} to {after.owner}")

    def grow(self, changes: int) -> None:
        """So many more changes in each partition."""
        more = {"changes": self.settings.changes + changes}
        self.settings = self.settings.model_copy(update=more)
        for host in self.hosts:
            host.processor.feed.settings = self.settings  # type: ignore[attr-defined]

    def owned(self) -> list[int]:
        """How many partitions each live host has, by the store."""
        counts = Counter({host.name: 0 for host in self.live})
        counts.update(holder for holder in self.holders.values() if holder in counts)
        return sorted(counts.values())


def _session(row: Lease) -> tuple[str, Any]:
    """The owner, and what it drew when it took the row."""
    return row.owner, row.properties.get("nonce")


def _number(place: str) -> int:
    cursor, _, ordinal = place.partition(":")
    return int(cursor.rpartition("-")[2]) * 10 + int(ordinal)
