"""The one reader of a partition: it resumes, retries, records gaps, and knows when all is done.

An owner calls `step`: a thread of the reader process, a task, the iterator. Nothing here waits,
apart from the source's own `read`, and no thread runs: with a clock and a feed it is tested alone.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.feeds import Feed, Following, HearsStored, HistoryLost, PacesReads
from penstock.feeds.shared import is_behind_hole
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import START, Bookmark, PartitionId, Place
from penstock.process.backoff import Clock
from penstock.reading.passed_gaps import (
    BLOCKED,
    CONFIRMED,
    Doubts,
    GapRecorder,
    InDoubt,
    PassedGaps,
)


class Step(NamedTuple):
    """What one step brought. `error`: why it brought nothing; its class is the retry decision.
    `wait`: seconds until the next step is worth it; 0 for at once."""

    pages: Sequence[Page] = ()
    wait: float = 0.0
    error: PenstockError | None = None


class PartitionReader:
    """A partition that is read after `bookmark`, by one thread at a time. `is_stored`: the bookmark
    is stored, so that the source may be acknowledged up to it. `bookmark`, `acknowledge`, `durable`
    and `status` may be called from any thread."""

    def __init__(
        self,
        feed: Feed,
        partition: PartitionId,
        bookmark: Bookmark,
        gaps: GapRecorder,
        *,
        is_stored: bool = True,
        clock: Clock = time.monotonic,
        doubts: Doubts | None = None,
    ) -> None:
        self.partition = partition
        self.read_to = bookmark.place
        self.drained = False  # the partition has ended, and all of it was read
        self.reconnects = 0
        self.error: PenstockError | None = None  # of the last step
        self.emptied_at = -math.inf  # when the last read began that found that there was no more
        self._feed, self._clock = feed, clock
        self._resume = bookmark  # after all that was read
        self._saved = bookmark if is_stored else None  # what is stored
        self._following: Following | None = None  # the connection
        self._past = _PastFollowings()
        self._waits: Iterator[float] | None = None  # since the connection was lost
        self._gaps = PassedGaps(feed, partition, gaps, {} if doubts is None else doubts, clock)
        self._blocked_until = 0.0  # no step reads before

    # The owner.

    def step(self, timeout: float, *, keep_alive: bool = False) -> Step:
        """Connects if need be, and reads once, waiting at most `timeout` seconds for the source; or
        only keeps the connection alive. Raises no PenstockError: the step has it.

        A lost connection is made again by the next step. A lost history is asked for again after
        `CONFIRMED` seconds, without an error, and counts when the source reports it then, too; from
        then on it is asked for every `BLOCKED` seconds. After any other error the owner decides.
        """
        if self.drained:
            return Step()
        if self._blocked_until:
            left = self._blocked_until - self._clock()
            if left > 0:
                return Step((), left, self.error)
            self._blocked_until = 0.0
        try:
            return self._step(timeout, keep_alive=keep_alive)
        except Exception as error:  # a defect of the feed
            self.error = PenstockError.of(error, f"reading {self.partition}")
            return Step((), BLOCKED, self.error)

    def _step(self, timeout: float, *, keep_alive: bool) -> Step:
        began = self._clock()
        try:
            pages = self._read(timeout, keep_alive=keep_alive)
        except InDoubt:
            self._blocked_until = self._clock() + CONFIRMED
            self.error = None
            return Step((), CONFIRMED)
        except Unavailable as error:
            self.reconnects += 1
            self._waits = self._waits or self._feed.delays()
            return self._failed(error, next(self._waits))
        except PositionLost as error:
            self._gaps.despite.clear()
            self._blocked_until = self._clock() + BLOCKED
            return self._failed(error, BLOCKED)
        except BaseException:  # Ctrl-C as well: pages that the source gave are read again
            self.disconnect()
            raise
        self._gaps.read(has_pages=bool(pages))
        if pages:
            self.read_to = pages[-1].last
        self._waits = self.error = None
        self.drained = self._following is not None and self._following.drained
        if not (pages or keep_alive or self.next_in is not None):
            self.emptied_at = began
        return Step(pages)

    @property
    def next_in(self) -> float | None:
        """See `PacesReads`; None also of a following that does not know."""
        following = self._following
        return following.next_in if isinstance(following, PacesReads) else None

    @property
    def is_connected(self) -> bool:
        return self._following is not None

    def disconnect(self, *, is_lost: bool = False) -> None:
        """Closes the connection at once; the next step makes another. `is_lost`: the position is,
        so that a connection that read nothing knows nothing about it."""
        following, self._following = self._following, None
        if following is not None and is_lost and self.read_to == self._resume.place:
            following.close()
        elif following is not None:
            # A closed following keeps its bookmarks: earlier places become durable later.
            following.close()
            found = following.bookmark(self.read_to)
            self._resume = found or Bookmark(self.read_to, self._resume.mark)
            self._gaps.despite.clear()
            self._past.add(self.read_to, following)

    def is_done(self, durable: Place | None) -> bool:
        """Whether there is nothing left to read, and everything up to what was read is durable."""
        if not self.drained:
            return False
        return self.read_to is None or (durable is not None and durable >= self.read_to)

    def last_bookmark(self, durable: Place | None) -> Bookmark:
        """What to store when `is_done`: that the partition has ended, if it has."""
        found = self.bookmark(durable) or Bookmark(durable, self._resume.mark)
        return found._replace(ended=self.drained)

    # Any thread.

    def bookmark(self, place: Place | None) -> Bookmark | None:
        following = self._following
        found = following.bookmark(place) if following is not None else None
        return self._past.bookmark(place) if found is None else found

    def durable(self, place: Place) -> None:
        self._past.durable(place)
        following = self._following
        if isinstance(following, HearsStored):
            following.stored(place)

    def acknowledge(self, bookmark: Bookmark) -> None:
        self._saved = bookmark
        if (following := self._following) is not None:
            following.acknowledge(bookmark)
            if bookmark.place is not None:
                self._past.saved(bookmark.place)

    def status(self) -> Mapping[str, Any]:
        """Plain JSON for the status page; see `Following.status`."""
        following = self._following
        return {
            "connected": False,
            **(following.status() if following is not None else {}),
            "reconnects": self.reconnects,
            "last_error": "" if self.error is None else str(self.error),
        }

    # Within a step.

    def _failed(self, error: PenstockError, wait: float) -> Step:
        self.disconnect()
        self.error = error
        return Step((), wait, error)

    def _read(self, timeout: float, *, keep_alive: bool) -> Sequence[Page]:
        if self._following is None:
            self._gaps.pass_hole(self._resume)
        while True:
            try:
                following = self._following or self._connect()
                pages = following.keep_alive() if keep_alive else following.read(timeout)
            except PositionLost as error:
                self.disconnect(is_lost=isinstance(error, HistoryLost))
                self._gaps.pass_gap(error, self._resume)
            else:
                if self._gaps.unended and (pages or following.begins):
                    self._gaps.end(following.begins or str(pages[0].first))
                return pages

    def _connect(self) -> Following:
        """Follows after what was read, despite the gaps that were passed."""
        self._gaps.verify()
        resume = self._resume
        start = START if is_behind_hole(resume) else resume
        following = self._feed.follow(self.partition, start, despite=tuple(self._gaps.despite))
        self._gaps.followed(resume, following.begins)
        if self._saved is not None and resume is not self._saved:
            following.acknowledge(self._saved)
        self._following = following
        return following


class _PastFollowings:
    """Closed followings in their order, each with the last place that it read; thread-safe. A
    change may become durable without a connection, or after a new one has begun beyond it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed: deque[tuple[Place | None, Following]] = deque()

    def add(self, read_to: Place | None, following: Following) -> None:
        """One was closed after it had read to `read_to`; not kept if it read nothing new."""
        with self._lock:
            if not self._closed or self._closed[-1][0] != read_to:
                self._closed.append((read_to, following))

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """See `Following.bookmark`; the newest that knows the place."""
        with self._lock:
            for _, following in reversed(self._closed):
                if (found := following.bookmark(place)) is not None:
                    return found
        return None

    def durable(self, place: Place) -> None:
        """Drops what read no more than `place`, but for the last, which has its bookmark."""
        if not self._closed:
            return
        with self._lock:
            while len(self._closed) > 1 and _reaches(place, self._closed[0][0]):
                self._closed.popleft()

    def saved(self, place: Place) -> None:
        """`place` is saved, and there is a connection: drops those that read no more."""
        with self._lock:
            while self._closed and _reaches(place, self._closed[0][0]):
                self._closed.popleft()


def _reaches(place: Place, read_to: Place | None) -> bool:
    return read_to is None or place >= read_to
