"""A bounded buffer of pages, filled by one I/O thread from one partition.

The buffer is only a cache: after a crash it is filled again from the position. When it is full the
thread stops reading and the source keeps its log: that is the back-pressure. An unavailable source
is tried again for ever, with back-off; any other error is kept and raised to the planner.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from penstock.backoff import delays
from penstock.errors import PenstockError, PositionLost, Unavailable
from penstock.feeds import Feed, Following, HistoryLost, Mark
from penstock.page import Page
from penstock.position import PartitionId, Place
from penstock.reading.gap_log import GapLog

__all__ = ["Reservoir"]

# Seconds. How long one read may wait: an acknowledgement is sent after this time at the latest.
READ_TIMEOUT = 0.25
# Seconds between two signs of life to the source while the buffer is full.
KEEP_ALIVE = 1.0


class Reservoir:
    """Pages of one partition behind `after`, in order; thread-safe.

    `limit` is in bytes and counts pages until they are durable, so that a micro-batch can be
    planned again. `wake` is the planner's condition: it guards the buffer and is notified of
    pages and failures. `watch` is called by the I/O thread after every round.
    """

    def __init__(
        self,
        feed: Feed,
        partition: PartitionId,
        after: Place | None,
        *,
        limit: int,
        wake: threading.Condition,
        watch: Callable[[], None],
        ledger: GapLog | None = None,
    ) -> None:
        self.partition = partition
        self._feed = feed
        self._limit = limit
        self._wake = wake
        self._watch = watch
        self._ledger = ledger or GapLog()
        self._mark: Mark | None = None  # of all that was read, once something was
        self._pages: deque[Page] = deque()
        self._size = 0
        self._events = 0
        self._read_to = after
        self._acknowledged: Place | None = None
        self._following: Following | None = None
        self._failure: PenstockError | None = None
        self._reconnects = 0
        self._last_error = ""
        self._is_in_doubt = False  # the last following ended with a lost position
        self._drained = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"follow-{partition}", daemon=True)

    def start(self) -> None:
        """Starts reading."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Stops reading, after telling the source the last acknowledgement if it can be reached.

        Waits at most `timeout` seconds; returns whether the thread has ended.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # The planner's side; call these with the condition held.

    def beyond(self, after: Place | None) -> Iterator[Page]:
        """The buffered pages that reach beyond `after`; raises what made the thread give up.

        Looks from the end: what is held until it is durable is not walked through for each page.
        """
        pages, start = self._pages, len(self._pages)
        while start and (after is None or pages[start - 1].last > after):
            start -= 1
        if start == len(pages) and self._failure is not None:
            raise self._failure
        return islice(pages, start, None)

    @property
    def drained(self) -> bool:
        """Whether the partition has ended, and all of it is here or was released."""
        return self._drained

    def reaches(self, end: Place) -> bool:
        """Whether everything up to `end` has been read; raises what made the thread give up."""
        if self._drained or (self._read_to is not None and self._read_to >= end):
            return True
        if self._failure is not None:
            raise self._failure
        return False

    def release(self, place: Place) -> int:
        """Forgets the pages up to `place`, which is durable in the sink; returns their changes."""
        released = 0
        while self._pages and self._pages[0].last <= place:
            page = self._pages.popleft()
            self._size -= page.size
            self._events -= page.count
            released += page.count
        if released:
            self._wake.notify_all()
        return released

    # From any thread.

    def acknowledge(self, place: Place) -> None:
        """`place` is durable and its position saved: the source may forget it."""
        self._acknowledged = place
        following = self._following
        if following is not None:
            following.acknowledge(place)

    def mark(self, place: Place | None) -> Mark | None:
        """What to store beside `place`, which is durable; None: what is there already."""
        following = self._following
        return following.mark(place) if following is not None else None

    def settle(self, mark: Mark) -> None:
        """`mark` is stored."""
        following = self._following
        if following is not None:
            following.settle(mark)

    def status(self) -> Mapping[str, Any]:
        """Plain JSON for the status page."""
        following = self._following
        return {
            "connected": False,
            **(following.status() if following is not None else {}),
            "buffered_events": self._events,
            "buffered_bytes": self._size,
            "buffer_percent": round(100 * self._size / self._limit, 1),
            "reconnects": self._reconnects,
            "last_error": self._last_error,
        }

    # The I/O thread.

    def _run(self) -> None:
        waits = delays()
        while not self._stopping and not self._drained:
            try:
                following = self._connect()
                self._last_error = ""
                while not self._stopping and not self._drained:
                    self._round(following)
                    waits = delays()
            except Unavailable as error:
                self._last_error = str(error)
                self._reconnects += 1
                self._disconnect()
                self._watch()
                with self._wake:
                    self._wake.wait_for(lambda: self._stopping, next(waits))
            except Exception as error:
                self._fail(error)
                break
        self._disconnect()
        self._watch()

    def _connect(self) -> Following:
        stored = self._ledger.mark(self.partition)
        following = self._follow(stored if self._mark is None else self._mark)
        # What was read says where to go on; what is stored says how far the source may be told.
        if stored is None or self._mark is not None:
            following.settle(stored)
        self._following = following  # first, or what is acknowledged in this moment would be lost
        if self._acknowledged is not None:
            following.acknowledge(self._acknowledged)
        return following

    def _follow(self, mark: Mark | None) -> Following:
        """Follows behind what was read; a gap is recorded before its policy is obeyed."""
        try:
            return self._feed.follow(self.partition, self._read_to, mark)
        except HistoryLost as lost:
            gap = lost.gap
            self._ledger.lost(self.partition, gap, mark)
            if not gap.continues:
                raise PositionLost(lost.message, hint=lost.hint) from lost
        following = self._feed.follow(self.partition, self._read_to, mark, despite=gap)
        self._ledger.lost(self.partition, gap, mark, to=following.begins)
        return following

    def _round(self, following: Following) -> None:
        with self._wake:
            full = self._size >= self._limit
            if full:
                self._wake.wait_for(lambda: self._stopping or self._size < self._limit, KEEP_ALIVE)
        if full:
            following.keep_alive()
        else:
            self._take(self._read(following), drained=following.drained)
        self._watch()

    def _read(self, following: Following) -> Sequence[Page]:
        try:
            return following.read(READ_TIMEOUT)
        except PositionLost as error:
            if self._is_in_doubt:
                raise
            # What is lost, and what to do about it, is told by following again.
            self._is_in_doubt = True
            raise Unavailable(error.message, hint=error.hint) from error

    def _take(self, pages: Sequence[Page], *, drained: bool) -> None:
        if not pages and not drained:
            return
        with self._wake:
            self._is_in_doubt = self._is_in_doubt and not pages
            for page in pages:
                self._pages.append(page)
                self._size += page.size
                self._events += page.count
                self._read_to = page.last
            self._drained = drained
            self._wake.notify_all()

    def _disconnect(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            self._mark = following.mark(self._read_to)
            following.close()

    def _fail(self, error: Exception) -> None:
        failure = PenstockError.of(error, f"reading {self.partition}")
        with self._wake:
            self._failure = failure
            self._last_error = str(failure)
            self._wake.notify_all()
