"""Hosts that share partitions, in a simulation: what is promised holds whatever happens to them."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from penstock.model.errors import SettingsError
from penstock.model.position import START, PartitionId
from penstock.reading.positions import Positions
from tests.processor.simulation import Simulation

Simulate = Callable[..., Simulation]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulate]:
    """Makes simulations; jitter of retries comes from the seed, too."""
    made: list[Simulation] = []

    def simulated(seed: int, **keywords: Any) -> Simulation:
        monkeypatch.setattr("penstock.process.backoff.Random", lambda: Random(seed))
        made.append(Simulation(seed, **keywords))
        return made[-1]

    yield simulated
    for each in made:
        each.close()


def growing(world: Simulation, until: float) -> None:
    def grow() -> None:
        world.grow(10)
        if world.now < until:
            world.at(world.now + 15, grow)

    world.at(30, grow)


def settled(world: Simulation) -> None:
    """All hosts have about as many, and all was processed."""
    assert world.wrong == []
    counts = world.owned()
    assert sum(counts) == world.settings.partitions
    assert counts[-1] - counts[0] <= 1, counts
    assert {world.done[name] for name in world.done} == {world.settings.changes}
    assert len(world.done) == world.settings.partitions


@pytest.mark.slow
def test_without_faults_nothing_comes_twice(simulate: Simulate) -> None:
    world = simulate(1, partitions=60, hosts=7)
    growing(world, 100)
    world.run(300)
    settled(world)
    assert sum(world.processed.values()) == world.settings.partitions * world.settings.changes
    assert world.closed["LEASE_LOST"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(3, 25))]
)
def test_with_kills_freezes_cuts_and_lost_answers_every_change_is_processed_in_order(
    simulate: Simulate, seed: int
) -> None:
    world = simulate(seed, partitions=40, hosts=6, lost_answers=0.02, durations=(0.01, 0.3, 2.0))
    world.faults(60, 300, each=10)
    growing(world, 300)
    world.run(420)
    world.lost_answers = 0
    world.run(700)
    settled(world)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 12))]
)
def test_children_are_processed_after_their_parents_whatever_happens(
    simulate: Simulate, seed: int
) -> None:
    settings: dict[str, Any] = {"generations": 2, "changes": 60}
    world = simulate(seed, partitions=12, hosts=5, settings=settings, durations=(0.1, 1.0, 5.0))
    world.faults(30, 300, each=15)
    world.run(700)
    assert world.wrong == []
    assert len(world.done) == 12 * 4
    assert set(world.done.values()) == {60}


@pytest.mark.slow
def test_a_host_that_is_cut_off_from_the_store_stops_before_another_begins(
    simulate: Simulate,
) -> None:
    world = simulate(3, partitions=20, hosts=3)
    growing(world, 300)
    world.at(90, lambda: setattr(world.hosts[0], "cut_off_until", 250.0))
    world.run(240)
    assert world.wrong == []
    assert not world.hosts[0].processor.node._work.leases.holds("p0")  # type: ignore[arg-type]
    assert {row.owner for row in world.rows.values() if "p" in row.name} <= {"host1", "host2", ""}
    world.run(500)
    settled(world)


def processed_once(world: Simulation) -> None:
    assert world.wrong == []
    changes = world.settings.changes
    assert world.processed == {f"p{n}": changes for n in range(world.settings.partitions)}


@pytest.mark.slow
def test_of_two_hosts_with_one_name_none_processes_what_the_other_holds(
    simulate: Simulate,
) -> None:
    world = simulate(6, partitions=20, hosts=6, twins=2)
    growing(world, 100)
    world.run(300)
    processed_once(world)
    assert sum(world.owned()) == 20
    assert world.closed["LEASE_LOST"] > 0, "leases move between names"


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        1,
        pytest.param(2, marks=pytest.mark.slow),
        *(pytest.param(n, marks=pytest.mark.thorough) for n in range(3, 12)),
    ],
)
def test_two_hosts_with_one_name_and_faults_keep_every_change_in_order(
    simulate: Simulate, seed: int
) -> None:
    world = simulate(seed, partitions=20, hosts=6, twins=3, lost_answers=0.02)
    world.faults(60, 300, each=10)
    growing(world, 300)
    world.run(420)
    world.lost_answers = 0
    world.run(700)
    assert world.wrong == []
    assert {world.done[f"p{n}"] for n in range(20)} == {world.settings.changes}


def as_a_pipeline(world: Simulation) -> Positions:
    """One of the same name and store, as it begins."""
    found = Positions(
        world.store, "sim/memory", interval=1, event_count=1, clock=lambda: world.now, owner="it"
    )
    found.verify_name()
    found.claim()
    found.begin({PartitionId(f"p{n}"): START for n in range(20)})
    return found


@pytest.mark.slow
def test_a_pipeline_beside_processors_of_its_name_is_refused_and_changes_nothing(
    simulate: Simulate,
) -> None:
    world, refused = simulate(4, partitions=20, hosts=3), 0

    def begin() -> None:
        nonlocal refused
        with pytest.raises(SettingsError, match="position of a processor"):
            as_a_pipeline(world)
        refused += 1

    growing(world, 100)
    for when in range(25, 300, 10):
        world.at(when, begin)
    world.run(300)
    assert refused == 28
    processed_once(world)


@pytest.mark.parametrize(
    ("partitions", "hosts"),
    [
        pytest.param(300, 25, marks=pytest.mark.slow),
        pytest.param(1000, 50, marks=pytest.mark.thorough),
    ],
)
def test_many_partitions_and_hosts(simulate: Simulate, partitions: int, hosts: int) -> None:
    world = simulate(7, partitions=partitions, hosts=hosts, poll=30, durations=(0.01, 0.05))
    world.faults(40, 130, each=5)
    world.at(60, lambda: world.grow(10))
    world.at(110, lambda: world.grow(10))
    world.run(370)
    before = world.calls
    world.run(387)  # one interval of renewals, while no change comes
    assert world.calls - before <= 5 * hosts < partitions
    settled(world)
