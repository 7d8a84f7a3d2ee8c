"""Time in tests: waits for what another thread, process or server does, and a clock."""

import time
from collections.abc import Callable
from typing import TypeVar

from penstock.testing.claims import Clock
from tests.servers.postgres import keeping

__all__ = ["Clock", "until"]

Found = TypeVar("Found")


def until(
    true: Callable[[], Found],
    seconds: float = 240.0,
    *,
    problem: Callable[[], object] = lambda: "it did not come true",
) -> Found:
    """What `true` gives, once that is true; fails with `problem` after so many seconds."""
    with keeping():
        begun = time.monotonic()
        while not (found := true()):
            waited = time.monotonic() - begun
            assert waited < seconds, problem()
            time.sleep(min(0.01 + waited / 20, 0.05))  # what asks takes the time of what is awaited
    return found
