"""Steps of several shards at a time, for feeds whose partitions anyone may poll. Daemon threads, a
bounded number, started when they are needed; they end after some seconds without work. A step that
hangs keeps its thread, and neither the caller nor the end of the process.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Result = TypeVar("Result")

THREADS = 8
# Seconds: how long a thread waits for work; how often a caller looks whether it is to stop.
_IDLE, _LOOK = 5.0, 0.1


class SideBySide(Generic[Result]):
    """Used by one thread. `busy`: the jobs that run, or whose results were not taken."""

    def __init__(self, most: int = THREADS) -> None:
        self.busy: set[Hashable] = set()
        self._most = most
        self._jobs: SimpleQueue[tuple[Hashable, Callable[[], Result]]] = SimpleQueue()
        self._results: deque[tuple[Hashable, Result | BaseException]] = deque()
        self._arrived = threading.Event()
        self._lock = threading.Lock()
        self._threads = 0

    def run(
        self,
        jobs: Mapping[Hashable, Callable[[], Result]],
        take: Callable[[Hashable, Result], None],
        stopped: Callable[[], bool],
    ) -> None:
        """Does the jobs, but those that are busy still, and gives their results to `take`. Returns
        when none is busy, or when `stopped`: what is busy then is taken by the next run. So is what
        `take` was interrupted at, by Ctrl-C: it may be taken twice, and is never dropped."""
        for name, job in jobs.items():
            if name not in self.busy:
                self.busy.add(name)
                self._jobs.put((name, job))
        self._start(len(self.busy))
        while self.busy and not stopped():
            if not self._results:
                self._arrived.wait(_LOOK)
                self._arrived.clear()
                continue
            name, result = self._results[0]
            if not isinstance(result, BaseException):
                take(name, result)
            self._results.popleft()
            self.busy.discard(name)
            if isinstance(result, BaseException):
                raise result

    def _start(self, wanted: int) -> None:
        with self._lock:
            fresh = max(0, min(wanted, self._most) - self._threads)
            self._threads += fresh
        for _ in range(fresh):
            threading.Thread(target=self._work, name="penstock-stream", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                name, job = self._jobs.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._threads -= 1
                        return
                continue
            try:
                result: Result | BaseException = job()
            except BaseException as error:
                result = error
            self._results.append((name, result))
            self._arrived.set()
