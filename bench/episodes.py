"""The episodes in which changes were slow in a run of `latency`, and how much of it passed before
penstock had them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .stream import Times

SLOW = 25.0  # milliseconds from the commit to the store
_APART = 1.0  # seconds between two episodes, at least


@dataclass(frozen=True, slots=True)
class Episode:
    """`at` and `until` are times of commit, in seconds from the run's start; `stored` and
    `captured` the worst milliseconds until JetStream stored a change, and until penstock had
    one."""

    at: float
    until: float
    changes: int
    stored: float
    captured: float


def episodes(found: Iterable[Times]) -> Sequence[Episode]:
    """The episodes in which changes took `SLOW` or longer, in the order of their commits."""
    made: list[Episode] = []
    for one in sorted((times for times in found if times.stored >= SLOW), key=lambda t: t.at):
        if made and one.at - made[-1].until < _APART:
            last = made.pop()
            made.append(
                Episode(
                    last.at,
                    one.at,
                    last.changes + 1,
                    max(last.stored, one.stored),
                    max(last.captured, one.captured),
                )
            )
        else:
            made.append(Episode(one.at, one.at, 1, one.stored, one.captured))
    return made
