"""One host: which partitions it holds, and when something is to be done. No thread and no clock of
its own: `tick` keeps the leases, and threads take `turns`.
"""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock

from penstock.config import Sharing
from penstock.feeds import At, KnowsReader
from penstock.model.errors import PenstockError, Unavailable
from penstock.model.position import PartitionId
from penstock.process.backoff import Clock
from penstock.processor.discovery import Discovery
from penstock.processor.observer import CloseReason
from penstock.processor.partition import Abandoned, OwnedPartition, PartitionWork, Taker
from penstock.reading.host_leases import Survey
from penstock.reading.turns import Turns

# Seconds that an observer is busy before its connection is kept by others.
_BUSY = 5.0

# Seconds between two looks at what is asked for or lost.
LOOK = 1.0
# Seconds after a call of the store that failed.
_RETRY = 2.0

log = logging.getLogger("penstock")


class LeaseSchedule:
    """When a host renews its leases, and when it looks at all of them."""

    def __init__(self, host: "Host", sharing: Sharing, clock: Clock) -> None:
        self.error = ""  # of the store, until the next round succeeds
        self._host, self._sharing, self._clock = host, sharing, clock
        self._renew_at = clock() + sharing.renew / 2
        self._acquire_at = clock()
        self._lock = Lock()  # of `_acquire_at`, which other threads bring forward

    def tick(self, *, acquires: bool) -> None:
        """Does what is due; with `acquires` false, leases are only renewed. One thread calls it."""
        now, sharing = self._clock(), self._sharing
        renews, looks = now >= self._renew_at, now >= self._acquire_at and acquires
        if not (renews or looks):
            return
        try:
            if renews:
                self._renew_at = now + sharing.renew
                self._host.renew()
            if looks:
                with self._lock:
                    self._acquire_at = now + sharing.acquire
                self._host.acquire()
            self.error = ""
        except PenstockError as error:
            self._renew_at = min(self._renew_at, now + _RETRY)
            if not self.error:
                log.warning("the leases cannot be kept; trying again: %s", error)
            self.error = str(error)

    def look_by(self, at: float) -> None:
        """Looks at all leases then at the latest; from any thread."""
        with self._lock:
            self._acquire_at = min(self._acquire_at, at)

    def wait(self, *, acquires: bool) -> float:
        """Seconds until the next `tick`, at most `LOOK`."""
        now = self._clock()
        due = min(self._renew_at, self._acquire_at if acquires else now + LOOK)
        return max(0.0, min(due - now, LOOK))


class Host:
    """`on_hung` is called when a thread hangs in a read."""

    def __init__(self, work: PartitionWork, at: At, on_hung: Callable[[], None]) -> None:
        self.owned: dict[PartitionId, OwnedPartition] = {}  # what this host holds
        self.turns: Turns[Taker] = Turns(work.clock)  # of partitions, and of `discovery`
        # Partitions that must wait here, and until when.
        self.not_before: dict[PartitionId, float] = {}
        self.last = Survey({}, {})  # all leases, at the last look
        self.is_leaving = False  # it ends, and takes no partition any more
        # Of partitions that are not held any more: changes, batches, lost connections.
        self._past: Counter[str] = Counter()
        # Of what both the thread that ticks and those that take turns change.
        self._lock = Lock()
        self.left = Event()  # set when a partition is not held any more
        self._work, self._on_hung = work, on_hung
        self.discovery = Discovery(work, at, self.look_soon)
        self.turns.add(self.discovery)
        self.schedule = LeaseSchedule(self, work.processing, work.clock)

    def tick(self) -> float:
        """Does what is due; seconds until the next call. One thread calls it. Raises nothing that
        passes."""
        acquires = self.discovery.begun and not self.is_leaving
        self.schedule.tick(acquires=acquires)
        self._let_go()
        if self._work.leases.left:
            self._work.leases.give_back()
        return self.schedule.wait(acquires=acquires)

    def look_soon(self) -> None:
        """There are leases that may be ours: the next tick looks at all."""
        self.schedule.look_by(self._work.clock())

    @property
    def counts(self) -> Counter[str]:
        """Of all partitions ever held: `events` and `pages` that were processed, `reconnects`."""
        with self._lock:
            return sum((part.counts for part in list(self.owned.values())), Counter(self._past))

    def take_turn(self, job: Taker, timeout: float) -> bool:
        """Of a job that `turns` gave. False: a thread is to end, because one that hung is back."""
        wait = job.turn(timeout)
        self.turns.done(job, wait)
        ended = job if wait is None and isinstance(job, OwnedPartition) else None
        if ended is not None:
            self._over(ended)
        # While others are due: they may give leases back, too.
        if self._work.leases.left and (self.turns.left() or 1.0) > 0:
            self._work.leases.give_back()
        return ended is None or not ended.is_abandoned

    def drop(self, job: Taker) -> None:
        """A job whose turn ended with a defect: it has no other. Its lease expires."""
        self.turns.done(job, None)
        if isinstance(job, OwnedPartition):
            self._over(job)

    def leave(self) -> None:
        """Ends every partition after its present batch, and takes no more."""
        self.is_leaving = True
        for part in list(self.owned.values()):
            self._end(part, CloseReason.SHUTDOWN)

    def _over(self, part: OwnedPartition) -> None:
        name = part.partition
        wait = self._work.faults.waits.pop(name, None)
        with self._lock:
            self._past += part.counts
            if wait is not None:  # first: a partition that is in neither is taken at once
                self.not_before[name] = self._work.clock() + wait
                self.schedule.look_by(self.not_before[name])
            if self.owned.get(name) is part:
                del self.owned[name]
        self.left.set()
        if part.reason is CloseReason.SPLIT:
            self.discovery.ended()
            self.turns.hurry(self.discovery)

    def renew(self) -> None:
        """Renews all leases, but for those whose partitions hang in a read."""
        now = self._work.clock()
        limit, leases = self._work.processing.read_timeout, self._work.leases
        for name, part in list(self.owned.items()):
            if (since := part.reading_since) is not None and now - since >= limit:
                if not part.abandon():
                    continue
                log.error("the read of %s hangs: its lease is given up", name)
                with self._lock:
                    self.not_before[name] = now + self._work.processing.expire
                    self.owned.pop(name, None)
                self.turns.add(Abandoned(part))
                self._on_hung()
        if isinstance(self._work.feed, KnowsReader):
            parts = list(self.owned.values())
            names = {part.partition: part.reader.status().get("reader") for part in parts}
            leases.readers = {name: str(reader) for name, reader in names.items() if reader}
        leases.renew()

    def acquire(self) -> None:
        """Looks at all leases, and takes what is ours to take."""
        leases, now = self._work.leases, self._work.clock()
        with self._lock:
            for name in [name for name, at in self.not_before.items() if at <= now]:
                del self.not_before[name]
            waiting = [*self.not_before, *self.owned]
            for at in self.not_before.values():  # its turn may come before the next look
                self.schedule.look_by(at)
        self.last = leases.survey()
        for name, bookmark in leases.take(self.last, waiting).items():
            part = OwnedPartition(name, bookmark, self._work)
            with self._lock:
                self.owned[name] = part
            self.turns.add(part)

    def _let_go(self) -> None:
        """Ends what another host asks for, and what was lost."""
        asked = self._work.leases.asked
        for name, part in list(self.owned.items()):
            if (host := asked.get(name)) and part.reason is None:
                log.info("%s is handed over to %s", name, host)
                self._end(part, CloseReason.LEASE_LOST)
            elif not self._work.leases.is_ours(name):
                self._end(part, CloseReason.LEASE_LOST)

    def _end(self, part: OwnedPartition, reason: CloseReason) -> None:
        part.leave(reason)
        self.turns.hurry(part)

    def keep_alive(self) -> None:
        """For observers that are busy long. In a thread of its own: a source may hang."""
        now = self._work.clock()
        for part in list(self.owned.values()):
            since = part.calls.busy_since
            if since is not None and now - since >= _BUSY:
                with suppress(Unavailable):
                    part.keep_alive()
