"""A partition that this host holds: its reader, its observer, and how far they are.

`turn` is one step of it: open, read, one batch, or the end. One thread at a time takes turns; no
turn waits longer than it is told to, apart from the observer.
"""

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import NamedTuple, Protocol

from penstock.feeds import Feed, Gap, HistoryLost, KnowsReader, RecordReader
from penstock.model.errors import LeaseLost, PositionLost, SettingsError, Unavailable
from penstock.model.page import Decoder, Page
from penstock.model.position import Bookmark, PartitionId
from penstock.process.backoff import Clock
from penstock.processor.faults import Retries
from penstock.processor.observer import (
    Changes,
    CloseReason,
    Observer,
    ObserverCalls,
    PartitionContext,
)
from penstock.processor.progress import AGAIN, LeasedPosition, PartitionProgress
from penstock.processor.settings import Processing
from penstock.reading.gaps import GapLog
from penstock.reading.host_leases import HostLeases
from penstock.reading.passed_gaps import GapRecorder
from penstock.reading.reader import PartitionReader, Step
from penstock.reading.reservoir import FIRST_IDLE, LONGEST_IDLE
from penstock.stream.records import record_reader


class LeasedGaps(GapRecorder):
    """Only the owner of a lease connects, and records."""

    def __init__(self, feed: Feed, leases: HostLeases) -> None:
        self.log = GapLog(leases.positions)
        self._feed, self._leases = feed, leases

    def verify(self, partition: PartitionId) -> None:
        """Called before a connection is made. Ends the connection of an owner that lost the lease
        and does not let go, where the source has one reader."""
        if not self._leases.holds(partition):  # else no other has it: the store need not be asked
            self.log.verify(partition)
        self._check(partition)
        reader = self._leases.predecessors.get(partition)
        if reader and isinstance(self._feed, KnowsReader):
            with suppress(Unavailable):
                for holder in self._feed.holders():
                    if (holder.partition, holder.reader) == (partition, reader):
                        self._feed.evict(holder)
                self._leases.predecessors.pop(partition, None)

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        self.log.verify(partition)
        self._check(partition)
        self.log.lost(partition, gap, bookmark, to=to)
        self._check(partition)

    def _check(self, partition: PartitionId) -> None:
        if not self._leases.is_ours(partition):
            raise LeaseLost(f"the lease of {partition} was taken by another host", "processor")


class Taker(Protocol):
    """Something of a host that takes turns: a partition, or what looks for partitions."""

    def turn(self, timeout: float) -> float | None:
        """One step, which waits `timeout` seconds at most; seconds until the next; None: none."""


class PartitionWork(NamedTuple):
    """What all partitions of a host share."""

    feed: Feed
    leases: HostLeases
    gaps: LeasedGaps
    processing: Processing
    observer: Callable[[], Observer]
    decoder: Decoder
    read: RecordReader
    faults: Retries
    clock: Clock

    def letters(self, page: Page) -> Changes:
        """Changes that can always be decoded, to set them aside."""
        decoder = self.feed.decoder("json", "dead-letter")
        return Changes(page, decoder, record_reader(self.feed, "dead-letter"))


class OwnedPartition(GapRecorder):
    """A partition that this host holds, for one thread at a time."""

    def __init__(self, partition: PartitionId, bookmark: Bookmark, work: PartitionWork) -> None:
        self.partition = partition
        self.reason: CloseReason | None = None  # why it ends, once that is known
        self.error = ""  # why nothing comes; "" while it does
        # When the present read of the source began, if there is one.
        self.reading_since: float | None = None
        self.is_over = False  # the lease is not ours any more, and no turn does anything
        self.is_abandoned = False  # because a read hung
        self.reader = PartitionReader(work.feed, partition, bookmark, self, clock=work.clock)
        position = LeasedPosition(bookmark, work.leases, work.processing, work.clock)
        self.progress = PartitionProgress(self.reader, position)
        context = PartitionContext(
            partition, work.feed.backend, work.leases.host, self.progress.checkpoint
        )
        self.calls = ObserverCalls(work.observer, context, work.clock)
        self._work = work
        self._pages: deque[Page] = deque()  # that the observer has not done
        self._reading = Lock()  # the reader is one thread's at a time
        # Whether the thread that reads goes on, or what it has is abandoned: not both.
        self._claim = Lock()
        self._idle = 0.0  # seconds between two reads that found nothing, doubling

    @property
    def counts(self) -> Counter[str]:
        found = Counter(events=self.progress.events, pages=self.progress.pages)
        return found + Counter(reconnects=self.reader.reconnects)

    @property
    def idle_seconds(self) -> float:
        """Since a batch was processed, or since the start."""
        return round(self._work.clock() - self.progress.moved_at, 1)

    def leave(self, reason: CloseReason) -> None:
        """Ends after the present batch; any thread may call it."""
        self.reason = self.reason or reason
        self.calls.context.revoked = True

    def turn(self, timeout: float) -> float | None:
        """See `Taker`; waits for the source only."""
        wait = self._turn(timeout)
        return None if self.is_over and not self.is_abandoned else wait

    def _turn(self, timeout: float) -> float | None:
        leases = self._work.leases
        if self.is_over:
            with self._reading:
                self.reader.disconnect()
            return None
        if not leases.is_ours(self.partition):
            self._close(CloseReason.LEASE_LOST)
            self._let_go(leases.forget)
        elif self.reason is not None:
            return self._end(self.reason)
        elif not leases.holds(self.partition):
            return AGAIN  # another host may have it: renewing decides
        else:
            return self._step(timeout)
        return 0.0

    def _step(self, timeout: float) -> float:
        if not self.calls.is_open and (self._pages or not self.error) and not self._open():
            self._let_go(self._work.leases.leave)
        elif self._pages:
            if not self._deliver(self._pages[0]):
                self._let_go(self._work.leases.leave)
        else:
            step = self._read(timeout)
            if not (self._pages or self.is_over):
                return self._nothing(step, timeout)
        return 0.0

    # The source.

    def _read(self, timeout: float) -> Step:
        self.reading_since = self._work.clock()
        with self._reading:
            step = self.reader.step(timeout)
        with self._claim:
            self.reading_since = None
            if self.is_over:  # the read had hung, and was given up: the next turn disconnects
                return Step()
        self._pages.extend(step.pages)
        error, before = step.error, self.error
        self.error = "" if error is None else str(error)
        if error is not None and self.error != before:
            if isinstance(error, PositionLost):
                # The lease stays: each other host would find the same.
                self._close(CloseReason.GONE)
            if not isinstance(error, LeaseLost | Unavailable):
                self._report(error)
        return step

    def _nothing(self, step: Step, timeout: float) -> float:
        if self.reader.drained:
            self.reason = CloseReason.SPLIT
            return 0.0
        self.progress.idle()
        if (wait := self.reader.next_in) is not None:
            return wait
        if step.wait or self._work.feed.polled:
            return step.wait or self._work.processing.poll
        doubled = min(max(FIRST_IDLE, 2 * self._idle), LONGEST_IDLE)
        self._idle = 0.0 if timeout else doubled
        return self._idle

    def keep_alive(self) -> None:
        """Keeps the connection while the observer is busy; any thread may call it."""
        if self._reading.acquire(blocking=False):
            try:
                if self.reader.is_connected and not self.is_over:
                    self._pages.extend(self.reader.step(0.0, keep_alive=True).pages)
            finally:
                self._reading.release()

    def verify(self, partition: PartitionId) -> None:
        self._work.gaps.verify(partition)

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        self._work.gaps.lost(partition, gap, bookmark, to=to)
        if gap.policy == "continue" and not to:  # any other policy raises it
            self._report(HistoryLost(gap))

    # The observer.

    def _open(self) -> bool:
        try:
            self.calls.open()
        except Exception as error:
            self._failed(error, None)
            return False
        self._work.faults.opened(self.partition)
        return True

    def _deliver(self, page: Page) -> bool:
        """Gives the observer a page; whether to go on after it."""
        changes = Changes(page, self._work.decoder, self._work.read)
        self.progress.reach = page.last
        try:
            self.calls.process(changes)
        except Exception as error:
            self.progress.reach = self.progress.processed
            if not self._failed(error, self._work.letters(page)):
                return False
        self._idle = 0.0
        self._pages.popleft()
        self.progress.done(page.last, page.count)
        return True

    def _failed(self, error: Exception, changes: Changes | None) -> bool:
        """A call of the observer raised: it is closed. Whether to go on after the changes: not if
        closing it fails, too, because then nothing is saved that was not saved before."""
        if self._is_lost(error):
            self._close(CloseReason.LEASE_LOST)
            return False
        self._report(error)
        went_well = self._close(CloseReason.OBSERVER_ERROR)
        if error is self.progress.refused:  # it says nothing of the changes
            self._work.faults.waits[self.partition] = AGAIN
        elif self._work.faults.set_aside(error, self.calls.context, changes):
            if went_well:
                return True
            self._work.faults.waits[self.partition] = AGAIN
        if went_well and self.progress.position.is_automatic:
            self.progress.save()
        return False

    def _close(self, reason: CloseReason) -> bool:
        """Closes the observer, if it is open; whether that went well."""
        try:
            self.calls.close(reason)
        except Exception as error:
            if not self._is_lost(error):
                self._report(error)
            return False
        return True

    def _report(self, error: Exception) -> None:
        self._work.faults.report_error(error, self.calls.context)

    def _is_lost(self, error: Exception) -> bool:
        """Whether a call of the observer raised because another host has the lease."""
        return isinstance(error, LeaseLost) and not self._work.leases.is_ours(self.partition)

    # The end.

    def _end(self, reason: CloseReason) -> float:
        """Closes the observer, saves, and gives the lease back: in this order, so that what follows
        (another host, the children) begins after the last call."""
        if self.calls.ended_well is None:  # it may take several turns to save
            self.calls.ended_well = self._close(reason)
        went_well = self.calls.ended_well
        if reason is CloseReason.SPLIT:
            if went_well and (self.progress.position.is_automatic or self.progress.is_saved):
                if not self.progress.save(has_ended=True):
                    return AGAIN
            elif went_well:
                self._report(
                    SettingsError(
                        f"the partition {self.partition} has ended, and its last changes are not"
                        " checkpointed: they come again, and its children wait",
                        "processor",
                        hint="with explicit checkpoints, call context.checkpoint() in close for the"
                        " reason SPLIT",
                    )
                )
        elif went_well and self.progress.position.is_automatic:
            is_saved = self.progress.save()
            if not is_saved and self._work.leases.is_ours(self.partition):
                return AGAIN
        self._let_go(self._work.leases.leave)
        return 0.0

    def abandon(self) -> bool:
        """Ends it in place of a thread that hangs in a read; False if the read has returned."""
        with self._claim:
            if self.reading_since is None:
                return False
            self.is_over = self.is_abandoned = True
        return True

    def give_up(self) -> None:
        self._close(CloseReason.UNKNOWN)
        self._work.leases.leave([self.partition])

    def _let_go(self, give: Callable[[list[PartitionId]], None]) -> None:
        with self._reading:  # afterwards nothing connects again
            self.is_over = True
            self._pages.clear()
            self.reader.disconnect()
        give([self.partition])


class Abandoned(Taker):
    """For a partition whose thread hangs in a read: no lease waits for its observer's close."""

    def __init__(self, part: OwnedPartition) -> None:
        self._part = part

    def turn(self, timeout: float) -> float | None:
        self._part.give_up()
        return None
