"""What goes wrong, and when: a pure function of the seed."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

STEPS_A_ROUND = 3  # then everything is compared
CONSOLIDATE = "consolidate"  # the pipeline into tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault: what it strikes, for how many seconds, and what mending it takes."""

    target: str
    hold: tuple[float, float] = (0.0, 0.0)
    cost: float = 3.0  # seconds until changes flow again, about


# Longer than every timeout of the pipeline (see world.py): 1 to 3 seconds.
_LONG = (4.0, 7.0)
_START = 12.0  # of Spark

KINDS: Mapping[str, Kind] = {
    "pipeline-kill": Kind(target="pipeline", cost=_START),
    "pipeline-freeze": Kind(target="pipeline", hold=_LONG),
    "pipeline-second": Kind(target="pipeline", hold=(8.0, 14.0), cost=_START),
    "jvm-kill": Kind(target="jvm", cost=_START),
    "jvm-freeze": Kind(target="jvm", hold=_LONG),
    "worker-kill": Kind(target="worker"),
    "worker-freeze": Kind(target="worker", hold=_LONG),
    "nats-kill": Kind(target="nats", hold=(0.0, 4.0)),
    "nats-stop": Kind(target="nats", hold=(0.0, 4.0)),
    "nats-freeze": Kind(target="nats", hold=_LONG),
    "nats-full": Kind(target="nats", hold=(1.0, 5.0)),
    "postgres-stop": Kind(target="postgres", hold=(0.0, 4.0)),
    "postgres-freeze": Kind(target="postgres", hold=_LONG),
    **{
        f"{link}-{what}": Kind(target=link, hold=hold)
        for link in ("nats", "postgres")
        for what, hold in {
            "reset": (0.0, 3.0),  # all connections, and new ones meanwhile
            "cut": (0.5, 2.0),  # in the middle of a frame
            "lost": _LONG,  # a black hole that nobody is told of
            "deaf": _LONG,  # only answers are lost
            "stall": _LONG,  # nothing is lost, all of it is late
            "slow": (2.0, 5.0),
            "narrow": (2.0, 5.0),
        }.items()
    },
    "target-stop": Kind(target="target", hold=(0.0, 4.0)),
    "target-freeze": Kind(target="target", hold=_LONG),
    "target-terminate": Kind(target="target"),
    "target-unanswered": Kind(target="target", hold=(1.0, 4.0)),  # commits are, and nothing else
    "target-reset": Kind(target="target", hold=(0.0, 3.0)),
    "target-cut": Kind(target="target", hold=(0.5, 2.0)),
    "target-slow": Kind(target="target", hold=(2.0, 5.0)),
}


def kinds(pipeline: str) -> tuple[str, ...]:
    """What can happen to a pipeline: into a stream, or into tables."""
    other = "nats" if pipeline == CONSOLIDATE else "target"
    return tuple(sorted(name for name, kind in KINDS.items() if kind.target != other))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Faults that begin together and are mended together, and the calm that follows."""

    faults: tuple[str, ...]
    hold: float
    calm: float
    chance: int  # seeds what a fault decides for itself, such as which worker dies

    def __str__(self) -> str:
        return f"{' + '.join(self.faults)} for {self.hold:.1f} s"

    @property
    def cost(self) -> float:
        """Seconds that it takes, about."""
        return self.hold + self.calm + max(KINDS[name].cost for name in self.faults)


def steps(seed: int, only: tuple[str, ...]) -> Iterator[Step]:
    """Without end: every kind of these in some order, and every one in another order, and so on;
    one in five steps has two faults of different targets."""
    chance = random.Random(seed)
    deck: list[str] = []
    while True:
        faults = (_draw(chance, deck, only),)
        if chance.random() < 0.2:
            second = _draw(chance, deck, only)
            if KINDS[second].target != KINDS[faults[0]].target:
                faults = (*faults, second)
            else:
                deck.append(second)
        hold = max(chance.uniform(*KINDS[name].hold) for name in faults)
        # Most faults strike while changes flow, some while the last one is not yet mended.
        calm = chance.uniform(0.5, 3.0) if chance.random() < 0.8 else 0.0
        yield Step(faults=faults, hold=hold, calm=calm, chance=chance.getrandbits(32))


def _draw(chance: random.Random, deck: list[str], only: tuple[str, ...]) -> str:
    if not deck:
        deck += only
        chance.shuffle(deck)
    return deck.pop()


def plan(seed: int, seconds: float, only: tuple[str, ...]) -> Iterator[tuple[Step, ...]]:
    """Rounds of a few steps, for about `seconds`."""
    left, going = seconds, steps(seed, only)
    while left > 0:
        found: list[Step] = []
        while len(found) < STEPS_A_ROUND and left > 0:
            found.append(next(going))
            left -= found[-1].cost
        yield tuple(found)
