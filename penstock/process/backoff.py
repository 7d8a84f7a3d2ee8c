"""How long to wait before the next try. The caller owns the clock."""

from collections.abc import Callable, Iterator
from random import Random

# Monotonic seconds.
Clock = Callable[[], float]


def delays(*, first: float = 0.1, limit: float = 10.0, factor: float = 2.0) -> Iterator[float]:
    """Seconds to wait before each further try, for ever: exponential, capped, with jitter of half a
    step, so that many clients that lost one server do not come back in the same instant."""
    jitter = Random()  # noqa: S311 - spreads reconnects, guards nothing
    step = first
    while True:
        yield step * (0.5 + jitter.random() / 2)
        step = min(step * factor, limit)
