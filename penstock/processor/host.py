"""One host: which partitions it holds, and when something is to be done. No thread and no clock of
its own: `tick` keeps the leases, and threads take `turns`.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Event

from penstock.errors import PenstockError, Unavailable
from penstock.feeds import At, KnowsReader
from penstock.position import Bookmark, PartitionId
from penstock.processor.discovery import Discovery
from penstock.processor.leases import Survey
from penstock.processor.observer import CloseReason
from penstock.processor.partition import OwnedPartition, Work
from penstock.processor.turns import Taker, Turns

# Seconds between two looks at what is asked for or lost; keep-alives of partitions whose observer
# is busy come as often.
LOOK = 1.0
# Seconds after a call of the store that failed.
RETRY = 2.0
# Seconds that an observer is busy before its connection is kept by others.
_BUSY = 5.0

log = logging.getLogger("penstock")


class Host:
    """`on_fatal` is called with what ends the processor. `not_before`: partitions that must wait
    here, and until when."""

    def __init__(self, work: Work, at: At, on_fatal: Callable[[Exception], None]) -> None:
        self.owned: dict[PartitionId, OwnedPartition] = {}
        self.turns = Turns(work.clock)
        self.not_before: dict[PartitionId, float] = {}
        self.error = ""  # of the store
        # Partitions that nobody holds who lives, by the last look.
        self.vacant: frozenset[PartitionId] = frozenset()
        self.known = 0  # partitions that have not ended
        self.is_leaving = False
        self.left = Event()  # set when a partition is not held any more
        self._work = work
        self.discovery = Discovery(
            work.feed,
            work.leases,
            at,
            clock=work.clock,
            on_found=self.look_soon,
            on_fatal=on_fatal,
        )
        self.turns.add(self.discovery)
        now = work.clock()
        self._renew_at = now + work.processing.renew / 2
        self._acquire_at = now

    def tick(self) -> float:
        """Renews, acquires, and lets go, what is due; seconds until the next call. One thread calls
        it. Raises nothing that passes."""
        now, processing = self._work.clock(), self._work.processing
        try:
            if now >= self._renew_at:
                self._renew_at = now + processing.renew
                self._renew(now)
            if now >= self._acquire_at and self.discovery.begun and not self.is_leaving:
                self._acquire_at = now + processing.acquire
                self._acquire()
            self.error = ""
        except PenstockError as error:
            self._renew_at = min(self._renew_at, now + RETRY)
            if not self.error:
                log.warning("the leases cannot be kept; trying again: %s", error)
            self.error = str(error)
        self._let_go()
        self._keep_alive(now)
        due = min(self._renew_at, self._acquire_at if self.discovery.begun else now + LOOK)
        return max(0.0, min(due - self._work.clock(), LOOK))

    def look_soon(self) -> None:
        """There are leases that may be ours: the next tick looks at all."""
        self._acquire_at = self._work.clock()

    def take_turn(self, job: Taker, timeout: float) -> None:
        """Of a job that `turns` gave."""
        wait = job.turn(timeout)
        self.turns.done(job, wait)
        if wait is None and isinstance(job, OwnedPartition):
            self._over(job)

    def leave(self) -> None:
        """Ends every partition after its present batch, and takes no more."""
        self.is_leaving = True
        for part in list(self.owned.values()):
            self._end(part, CloseReason.SHUTDOWN)

    def _over(self, part: OwnedPartition) -> None:
        name = part.partition
        self.left.set()
        if self.owned.get(name) is part:
            del self.owned[name]
        if (wait := self._work.faults.waits.pop(name, None)) is not None:
            self.not_before[name] = self._work.clock() + wait
            self._acquire_at = min(self._acquire_at, self.not_before[name])
        if part.reason is CloseReason.SPLIT:
            self.discovery.ended()
            self.turns.hurry(self.discovery)

    def _renew(self, now: float) -> None:
        limit = self._work.processing.read_timeout
        hung = [
            part
            for part in self.owned.values()
            if part.reading_since is not None and now - part.reading_since >= limit
        ]
        for part in hung:
            log.error("the read of %s hangs: its lease is given up", part.partition)
            part.abandon()
            self.not_before[part.partition] = now + self._work.processing.expire
            self.owned.pop(part.partition, None)
        leases = self._work.leases
        if isinstance(self._work.feed, KnowsReader):
            names = {
                part.partition: part.reader.status().get("reader") for part in self.owned.values()
            }
            leases.readers = {name: str(reader) for name, reader in names.items() if reader}
        leases.renew()

    def _acquire(self) -> None:
        leases, now = self._work.leases, self._work.clock()
        self.not_before = {name: at for name, at in self.not_before.items() if at > now}
        survey = leases.survey()
        self._note(survey)
        try:
            taken = leases.take(survey, [*self.not_before, *self.owned])
        finally:
            if self.not_before:  # one whose turn comes sooner than the next look
                self._acquire_at = min(self._acquire_at, *self.not_before.values())
        self._open(taken.items())

    def _note(self, survey: Survey) -> None:
        self.known = len(survey.rows)
        self.vacant = frozenset(survey.vacant)

    def _open(self, taken: Iterable[tuple[PartitionId, Bookmark]]) -> None:
        for name, bookmark in taken:
            part = self.owned[name] = OwnedPartition(name, bookmark, self._work)
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

    def _keep_alive(self, now: float) -> None:
        for part in list(self.owned.values()):
            since = part.busy_since
            if since is not None and now - since >= _BUSY:
                with suppress(Unavailable):
                    part.keep_alive()
