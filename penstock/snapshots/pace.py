"""How fast chunks are stored: `snapshot.rate` bounds all snapshots of a pipeline together."""

import threading
import time
from collections.abc import Callable

_LOOK = 0.1  # seconds between two looks whether a wait is to end


class SnapshotPace:
    """`wait` before each chunk. Used by any number of threads. Without a rate nothing waits."""

    def __init__(
        self,
        rate: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._free_at = 0.0  # when what was let through so far is paid for
        self._lock = threading.Lock()

    def wait(self, size: int, is_over: Callable[[], bool]) -> None:
        """Returns when so many bytes may be sent, or when it `is_over`."""
        if self._rate is None:
            return
        with self._lock:
            at = max(self._clock(), self._free_at)
            self._free_at = at + size / self._rate
        while (left := at - self._clock()) > 0 and not is_over():
            self._sleep(min(left, _LOOK))
