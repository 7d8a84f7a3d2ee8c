"""Whose turn it is: jobs of one host, each with the time of its next turn. Any number of threads
take turns; a job has one at a time.
"""

import heapq
from collections.abc import Callable
from itertools import count
from threading import Condition
from typing import Protocol


class Taker(Protocol):
    """Something that takes turns."""

    def turn(self, timeout: float) -> float | None:
        """One step, which waits at most `timeout` seconds for others; seconds until the next one;
        None: there is none any more."""
        ...


class Turns:
    """`clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = Condition()
        # A heap: when, a number that keeps the order, the job. An entry that is not the job's own
        # in `_planned` is void.
        self._heap: list[tuple[float, int, Taker]] = []
        self._planned: dict[Taker, int] = {}
        self._numbers = count()
        # Jobs that have a turn now; True: the next follows at once.
        self._running: dict[Taker, bool] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._planned) + len(self._running)

    def add(self, job: Taker, wait: float = 0.0) -> None:
        """Plans the first turn of a job."""
        with self._changed:
            self._plan(job, wait)

    def hurry(self, job: Taker) -> None:
        """The job's next turn is to come at once."""
        with self._changed:
            if job in self._running:
                self._running[job] = True
            elif job in self._planned:
                self._plan(job, 0.0)

    def next(self, *, waits: bool = False) -> Taker | None:
        """The job whose turn it is; None if there is none now (`waits`: when closed). Call `done`
        after its turn."""
        with self._changed:
            while not self._is_closed:
                left = self._left()
                if left is not None and left <= 0:
                    job = heapq.heappop(self._heap)[2]
                    del self._planned[job]
                    self._running[job] = False
                    return job
                if not waits:
                    return None
                self._changed.wait(left)
            return None

    def done(self, job: Taker, wait: float | None) -> None:
        """The job had its turn; the next is in `wait` seconds, None: never."""
        with self._changed:
            hurries = self._running.pop(job)
            if wait is not None:
                self._plan(job, 0.0 if hurries else wait)

    def left(self) -> float | None:
        """Seconds until the next turn; None if none is planned."""
        with self._changed:
            return self._left()

    def close(self) -> None:
        """No more turns."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _left(self) -> float | None:
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] - self._clock() if self._heap else None

    def _plan(self, job: Taker, wait: float) -> None:
        number = next(self._numbers)
        self._planned[job] = number
        heapq.heappush(self._heap, (self._clock() + wait, number, job))
        self._changed.notify()
