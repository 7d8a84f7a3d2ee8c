"""Waits for what another thread, process or server does."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(true: Callable[[], Found], seconds: float = 60.0) -> Found:
    """What `true` gives, once that is true; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
    return found
