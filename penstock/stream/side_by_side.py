"""Steps of several shards at a time, for feeds whose partitions anyone may poll. Daemon threads, a
bounded number, started when they are needed; they end after some seconds without work. A step that
hangs keeps its thread, and neither the caller nor the end of the process.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Generic, TypeVar

from penstock.reading.turns import Turns

Result = TypeVar("Result")

THREADS = 8
# Seconds: how long a thread waits for work; how often a caller looks whether it is to stop.
_IDLE, _LOOK = 5.0, 0.1
# Of what goes on to its end.
NEVER = threading.Event()


class SideBySide(Generic[Result]):
    """Used by one thread."""

    def __init__(self, most: int = THREADS) -> None:
        self._most = most
        # Jobs that wait or run, or whose results were not taken.
        self._jobs: dict[Hashable, Callable[[], Result]] = {}
        self._turns: Turns[Hashable] = Turns()
        self._results: deque[tuple[Hashable, Result | BaseException]] = deque()
        self._arrived = threading.Event()
        self._lock = threading.Lock()  # of `_threads`
        self._threads = 0  # that wait for a job, or do one

    @property
    def busy(self) -> Collection[Hashable]:
        """The jobs that wait or run, or whose results were not taken."""
        return self._jobs.keys()

    def run(
        self,
        jobs: Mapping[Hashable, Callable[[], Result]],
        take: Callable[[Hashable, Result], None],
        stopped: threading.Event = NEVER,
    ) -> None:
        """Does the jobs, but those that are busy still, and gives their results to `take`. Returns
        when none is busy, or when `stopped`: what is busy then is taken by the next run. So is what
        `take` was interrupted at, by Ctrl-C: it may be taken twice, and is never dropped."""
        for name, job in jobs.items():
            if name not in self._jobs:
                self._jobs[name] = job
                self._turns.add(name)
        self._start(len(self._jobs))
        while self._jobs and not stopped.is_set():
            if not self._results:
                self._arrived.wait(_LOOK)
                self._arrived.clear()
                continue
            name, result = self._results[0]
            if not isinstance(result, BaseException):
                take(name, result)
            self._results.popleft()
            self._jobs.pop(name, None)
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
            if (name := self._turns.next(_IDLE)) is None:
                with self._lock:
                    if self._turns.left() is None:
                        self._threads -= 1
                        return
                continue
            try:
                result: Result | BaseException = self._jobs[name]()
            except BaseException as error:
                result = error
            self._turns.done(name, None)
            self._results.append((name, result))
            self._arrived.set()
