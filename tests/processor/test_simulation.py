"""Hosts that share partitions, in a simulation: what is promised holds whatever happens to them."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.processor.simulation import Simulation

Simulate = Callable[..., Simulation]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulate]:
    """Makes simulations; jitter of retries comes from the seed, too."""
    made: list[Simulation] = []

    def simulated(seed: int, **keywords: Any) -> Simulation:
        monkeypatch.setattr("penstock.backoff.Random", lambda: Random(seed))
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


def test_without_faults_nothing_comes_twice(simulate: Simulate) -> None:
    world = simulate(1, partitions=60, hosts=7)
    growing(world, 200)
    world.run(400)
    settled(world)
    assert sum(world.processed.values()) == world.settings.partitions * world.settings.changes
    assert world.closed["LEASE_LOST"] > 0


@pytest.mark.parametrize(
    "seed", [2, 3, 4, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(5, 25))]
)
def test_with_kills_freezes_cuts_and_lost_answers_every_change_is_processed_in_order(
    simulate: Simulate, seed: int
) -> None:
    world = simulate(seed, partitions=60, hosts=7, lost_answers=0.02, durations=(0.01, 0.3, 2.0))
    world.faults(60, 600, each=15)
    growing(world, 600)
    world.run(700)
    world.lost_answers = 0
    world.run(1100)
    settled(world)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 12))]
)
def test_children_are_processed_after_their_parents_whatever_happens(
    simulate: Simulate, seed: int
) -> None:
    settings: dict[str, Any] = {"generations": 2, "changes": 60}
    world = simulate(seed, partitions=12, hosts=5, settings=settings, durations=(0.1, 1.0, 5.0))
    world.faults(30, 300, each=15)
    world.run(900)
    assert world.wrong == []
    assert len(world.done) == 12 * 4
    assert set(world.done.values()) == {60}


def test_a_thousand_partitions_and_fifty_hosts(simulate: Simulate) -> None:
    world = simulate(7, partitions=1000, hosts=50)
    world.faults(60, 240, each=10)
    growing(world, 200)
    world.run(420)
    before = world.calls
    world.run(437)  # one interval of renewals, while no change comes
    assert world.calls - before <= 5 * 50 < 1000
    settled(world)
