"""How fast snapshots may be read, all of them together, so that the source and its changes come
first."""

import os
import sys
import threading
import time
from collections.abc import Callable

from penstock.config import SnapshotSettings

_LOOK = 0.1  # seconds between two looks whether a wait is to end
_NICE = 19  # of the threads that read: running pipelines come first


class SnapshotPace:
    """`wait` before rows are sent. Used by any number of threads. Without a rate nothing waits."""

    def __init__(
        self,
        settings: SnapshotSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rates = settings.row_rate, settings.rate
        self._clock, self._sleep = clock, sleep
        self._free_at = 0.0  # when what was let through so far is paid for
        self._lock = threading.Lock()

    def wait(self, rows: int, size: int, is_over: Callable[[], bool]) -> None:
        """Returns when so many rows and bytes may be sent, or when it `is_over`."""
        amounts = zip((rows, size), self._rates, strict=True)
        cost = max((amount / rate for amount, rate in amounts if rate is not None), default=0.0)
        with self._lock:
            at = max(self._clock(), self._free_at)
            self._free_at = at + cost
        while (left := at - self._clock()) > 0 and not is_over():
            self._sleep(min(left, _LOOK))


def be_nice() -> None:
    """The calling thread comes after all others."""
    if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
