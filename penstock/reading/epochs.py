"""Open micro-batches: long epochs, each of them one ticket a partition.

An epoch's end is known only when it is over, so Spark's offset is no position but a number. What is
durable comes from the tasks while they write: it is saved and then acknowledged to the source
during the epoch, by a thread that keeps no page waiting for a disk. A start resumes from the stored
position, and repeats what the sink's own record of places (delivery `exactly-once`) or the message
ids then drop.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.position import DRAINED, PartitionId, Place, Position
from penstock.reading.planner import Planner

__all__ = ["Epoch", "Epochs"]

# The first epochs are short: Spark's code for turning one over is loaded and partly compiled while
# nothing waits. (Measured: the turn behind 0, 3, 20 of them takes 0.4, 0.17, 0.13 s.)
WARM_UP = 3
SHORT = 0.2
# An epoch whose time is over goes on while there is more, for so many times its time: what comes
# while epochs are turned over waits.
LONGER = 2.0
# Seconds between two looks at whether it is time to save, when tasks say nothing new.
SETTLE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One ticket: a partition from behind `after`, for `seconds`; up to `most` while more waits."""

    partition: PartitionId
    after: Place | None
    seconds: float
    most: float


class Epochs:
    """Plans epochs over a planner's buffer. The outlet's threads call `stored`, and one of them
    `watch`; `slots` says how many tasks may run at a time now (None: enough); `clock` is monotonic
    seconds."""

    def __init__(
        self,
        planner: Planner,
        *,
        seconds: float,
        clock: Callable[[], float],
        slots: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._planner = planner
        self._seconds = seconds
        self._slots = slots
        self._clock = clock
        self._settled = clock()
        self._saving = threading.Lock()
        self._lock = threading.Lock()  # of what follows; never held for long
        self._durable: dict[PartitionId, Place] = {}
        self._fresh = False
        self._reading = 0
        self._roomy = False

    def begin(self, position: Position) -> None:
        """Everything up to `position` is durable: the stored position of a start."""
        self._durable = dict(position)

    @property
    def durable(self) -> Position:
        """Everything up to here is in the sink."""
        with self._lock:
            return dict(self._durable)

    def plan(self, number: int) -> list[Epoch]:
        """The tickets of epoch `number`, from 1; the epoch before it is over, and durable."""
        with self._lock:
            for partition in self._planner.ended(self._durable):
                self._durable[partition] = DRAINED
            reading = self._planner.open(self._durable)
            self._reading = len(reading)
            crowded = self._is_crowded()
            self._roomy = not crowded
            seconds = SHORT if number <= WARM_UP or crowded else self._seconds
            most = SHORT if crowded else LONGER * self._seconds
            return [
                Epoch(partition=name, after=self._durable.get(name), seconds=seconds, most=most)
                for name in reading
            ]

    def is_cut_short(self) -> bool:
        """Whether the open epoch was planned as a long one, and slots are gone since then: it must
        end, so that partitions and queries without a slot have their turn."""
        return self._roomy and self._is_crowded()

    def _is_crowded(self) -> bool:
        slots = self._slots()
        return slots is not None and slots < self._reading

    def stored(self, partition: PartitionId, place: Place) -> None:
        """A task says that everything up to `place` is durable: `watch` saves it."""
        with self._lock:
            known = self._durable.get(partition)
            if known is None or place > known:
                self._durable[partition] = place
                self._fresh = True

    def watch(self) -> None:
        """Now and then: saves what is durable, if it is time to, then acknowledges it.

        Raises LeaseLost if another process saved meanwhile.
        """
        if self._fresh or self._clock() - self._settled >= SETTLE:
            self.settle(force=False)

    def settle(self, *, force: bool = True) -> None:
        """Saves what is durable (now, unless `force` is false) and acknowledges it. Raises as
        `watch` does."""
        with self._saving:
            self._fresh, self._settled = False, self._clock()
            self._planner.settle(self.durable, force=force)
