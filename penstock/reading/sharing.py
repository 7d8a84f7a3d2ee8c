"""The partitions of one feed that this host has the leases of, while hosts divide them.

The leases are renewed in the process that plans and saves, so that they live exactly as long as it
does: what is frozen or killed renews nothing. Two threads, from `start` on: one keeps the leases,
one looks for new partitions, because a source may take long to answer.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.config import Sharing
from penstock.errors import PenstockError, Unavailable
from penstock.feeds import Feed
from penstock.position import Bookmarks, PartitionId
from penstock.reading.discovery import Discovery
from penstock.reading.host_leases import HostLeases, Survey
from penstock.reading.roster import Openings
from penstock.reading.rounds import Rounds
from penstock.reading.shared import SharedPositions
from penstock.reading.taken import TakenPartitions
from penstock.sinks import Sink

log = logging.getLogger("penstock")


class SharedPartitions:
    """Which partitions are this host's, in the place of a roster. `clock` is monotonic seconds.

    A partition that was given up comes back only after `renew_epoch`: a task may still have some of
    it in its hands. `asked`: those of ours that other hosts ask for. `sink`: where the feed moves
    bookmarks, it is asked how far it has a partition that was taken.
    """

    def __init__(
        self,
        feed: Feed,
        positions: SharedPositions,
        sharing: Sharing,
        *,
        sink: Sink | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asked: frozenset[PartitionId] = frozenset()
        self._leases = HostLeases(positions, sharing, clock=clock)
        self._rounds = Rounds(sharing, clock, renew=self._renew, acquire=self._acquire)
        self._discovery = Discovery(
            feed,
            self._leases,
            None,
            sharing,
            clock=clock,
            on_found=lambda: self._rounds.look_by(clock()),
            on_fatal=lambda error: log.error("the partitions cannot be shared: %s", error),
        )
        self._last = Survey({}, {})  # all leases, at the last look
        self._taken = TakenPartitions(feed, sink)
        self._lock = threading.Lock()  # of the two that follow
        self._given_up: set[PartitionId] = set()
        self._threads: list[threading.Thread] = []
        self._failure: PenstockError | None = None
        self._over = threading.Event()
        # Of the thread that discovers: there is something to ask or to look for.
        self._wakes = threading.Event()

    def start(self) -> None:
        """Takes leases from now on; idempotent."""
        with self._lock:
            if self._threads or self._over.is_set():
                return
            for run in (self._keep, self._discover):
                thread = threading.Thread(target=self._run, args=(run,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self) -> None:
        """Renews no more, and takes no more: what is held expires."""
        self._over.set()
        self._wakes.set()

    def tick(self) -> float:
        """Renews and acquires what is due; seconds until the next call. One thread calls it."""
        self._rounds.tick(acquires=self._acquires)
        return self._rounds.wait(acquires=self._acquires)

    def discover(self) -> float:
        """Asks the sink about what was taken, and makes rows for partitions that have none; seconds
        until the next call."""
        self._wakes.clear()
        return min(self._taken.ask(), self._discovery.turn(0.0))

    def look_up(self, known: Bookmarks, opened: Collection[PartitionId]) -> Openings | None:
        """What was taken since the last call, and may be read. Raises what a thread ended with."""
        if self._failure is not None:
            raise self._failure
        ready = self._taken.ready()
        for name in self.doubtful(list(ready)):  # the sink may have answered late
            del ready[name]
            self.give_up(name)
        return Openings(ready, set(), []) if ready else None

    def doubtful(self, partitions: Collection[PartitionId]) -> list[PartitionId]:
        """Which of these another host may have by now: not renewed within their term, or lost."""
        return [name for name in partitions if not self._leases.holds(name)]

    def give_up(self, partition: PartitionId) -> None:
        """It is not ours any more; writes nothing."""
        with self._lock:
            self._given_up.add(partition)
        self._taken.discard(partition)
        self._leases.forget([partition])

    @property
    def has_given_up(self) -> bool:
        """Whether something was given up since the epoch was planned."""
        return bool(self._given_up)

    def renew_epoch(self) -> None:
        """No task has anything in its hands: what was given up may be taken again."""
        with self._lock:
            self._given_up.clear()

    def release(self, partitions: Collection[PartitionId]) -> None:
        """Gives leases back: what is saved of these partitions is all that is done here."""
        self.asked -= set(partitions)
        self._leases.release(partitions)

    def ended(self, partitions: Collection[PartitionId]) -> None:
        """These have ended, and that is saved: their children are looked for."""
        self.release(partitions)
        self._discovery.ended()
        self._wakes.set()

    def leave(self) -> None:
        """Gives all leases back, and takes no more. Call it when nothing is in flight."""
        self.stop()
        for thread in self._threads:
            thread.join(1.0)
        self._leases.release(self._leases.held)

    def require(self, partition: PartitionId) -> None:
        """Raises Unavailable unless the partition is certainly ours."""
        if not self._leases.holds(partition):
            raise Unavailable(f"the lease of {partition} may be another host's")

    def status(self) -> Mapping[str, Any]:
        """Plain JSON for the status page, beside that of the partitions that are ours."""
        error = self._rounds.error or self._taken.error or self._discovery.error
        return {
            "host": self._leases.host,
            "leases": len(self._last.rows),
            "unowned": len(self._last.vacant),
            **({"last_error": error} if error else {}),
        }

    @property
    def _acquires(self) -> bool:
        return self._discovery.begun and not self._over.is_set()

    def _renew(self) -> None:
        self._leases.renew()
        self.asked = frozenset(self._leases.asked)

    def _acquire(self) -> None:
        self._last = self._leases.survey()
        with self._lock:
            waiting = set(self._given_up)
        if taken := self._leases.take(self._last, waiting):
            self._taken.add(taken)
            self._wakes.set()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a defect: the query ends, and with it this process
            self._failure = PenstockError.of(error, "sharing the partitions")

    def _keep(self) -> None:
        while not self._over.is_set():
            self._over.wait(self.tick())

    def _discover(self) -> None:
        while not self._over.is_set():
            self._wakes.wait(self.discover())
