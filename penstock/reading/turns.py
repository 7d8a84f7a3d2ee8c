"""Whose turn it is: jobs, each with the time of its next turn. Any number of threads take turns; a
job has one at a time.

It makes no threads: its owners do (a reservoir, a processor, an iterator).
"""

import heapq
import time
from itertools import count
from threading import Condition, RLock
from typing import Generic, TypeVar

from penstock.process.backoff import Clock

Job = TypeVar("Job")


class Turns(Generic[Job]):
    """`lock`: the owner's own, where it decides about jobs while it holds that."""

    def __init__(self, clock: Clock = time.monotonic, *, lock: "RLock | None" = None) -> None:
        self.is_closed = False  # no job has a turn any more
        self._clock = clock
        self._lock = lock or RLock()
        self._changed = Condition(self._lock)
        # A heap: when, a number that keeps the order, the job. An entry that is not the job's own
        # in `_planned` is void.
        self._heap: list[tuple[float, int, Job]] = []
        self._planned: dict[Job, int] = {}
        self._numbers = count()
        # Jobs that have a turn now; True: the next follows at once.
        self._running: dict[Job, bool] = {}

    def __len__(self) -> int:
        return len(self._planned) + len(self._running)

    def add(self, job: Job, wait: float = 0.0) -> None:
        with self._lock:
            self._plan(job, wait)

    def hurry(self, job: Job) -> None:
        """The job's next turn is to come at once."""
        with self._lock:
            if job in self._running:
                self._running[job] = True
            elif job in self._planned:
                self._plan(job, 0.0)

    def next(self, timeout: float | None = 0.0) -> Job | None:
        """The job whose turn it is, within `timeout` seconds (None: until `close`), or None."""
        with self._lock:
            until = None if timeout is None else self._clock() + timeout
            while not self.is_closed:
                if (left := self._left()) is not None and left <= 0:
                    job = heapq.heappop(self._heap)[2]
                    del self._planned[job]
                    self._running[job] = False
                    return job
                if until is not None:
                    patience = until - self._clock()
                    if patience <= 0:
                        return None
                    left = patience if left is None else min(left, patience)
                self._changed.wait(left)
            return None

    def claim(self, job: Job) -> bool:
        """Takes the job's next turn (then call `done`). False while another has one of it."""
        with self._lock:
            if job in self._running:
                return False
            self._planned.pop(job, None)
            self._running[job] = False
            return True

    def done(self, job: Job, wait: float | None) -> None:
        """The job had its turn; the next is in `wait` seconds, None: never."""
        with self._lock:
            hurries = self._running.pop(job)
            if wait is not None:
                self._plan(job, 0.0 if hurries else wait)

    def left(self) -> float | None:
        """Seconds until the next turn; None if none is planned."""
        with self._lock:
            return self._left()

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            self._changed.notify_all()

    def _left(self) -> float | None:
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] - self._clock() if self._heap else None

    def _plan(self, job: Job, wait: float) -> None:
        number = next(self._numbers)
        self._planned[job] = number
        heapq.heappush(self._heap, (self._clock() + wait, number, job))
        self._changed.notify()
