"""One partition in a reservoir: its connection, and its pages that are not durable yet.

One reader thread at a time calls `turn`. The buffer's fields are guarded by the reservoir's lock.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from penstock.backoff import delays
from penstock.errors import PenstockError, PositionLost, Unavailable
from penstock.feeds import Feed, Following, Gap, HistoryLost, PacesRetries, SharedConnection
from penstock.page import Page
from penstock.position import Bookmark, PartitionId, Place
from penstock.reservoir.past import PastFollowings

__all__ = ["BLOCKED", "GapRecorder", "PartitionReader"]

# Seconds until a partition that lost its history is followed again: the operator may have acted.
BLOCKED = 30.0


class GapRecorder(Protocol):
    """Where a reservoir records gaps before their policy is obeyed."""

    def verify(self) -> None:
        """Called before a connection is made; raises LeaseLost if the stored bookmarks are another
        instance's by now."""
        ...

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        """Records a gap after `bookmark`; again with `to`, its end, when that is known. Raises
        LeaseLost."""
        ...


class PartitionReader:
    """A partition that is followed after `bookmark`."""

    def __init__(
        self,
        feed: Feed | SharedConnection,
        partition: PartitionId,
        bookmark: Bookmark,
        gaps: GapRecorder,
    ) -> None:
        self.partition = partition
        self.pages: deque[Page] = deque()
        self.size = 0
        self.events = 0
        self.read_to = bookmark.place
        self.goal: Place | None = None  # read up to here, whatever is buffered already
        self.drained = False
        self.failure: PenstockError | None = None
        self.turn_number = 0  # of the next turn: older entries of the schedule are void
        self.idle = 0.0  # seconds that the last turns found nothing, doubling
        self._feed = feed
        self._gaps = gaps
        self._resume = bookmark  # of all that was read
        self._saved = bookmark  # of what is stored
        self._following: Following | None = None
        self._past = PastFollowings()
        self._delays = feed.delays if isinstance(feed, PacesRetries) else delays
        self._waits = self._delays()
        self._reconnects = 0
        self._last_error = ""
        self._is_in_doubt = False  # the last following ended with a lost position

    # Reader threads.

    def turn(
        self, read: Callable[[Following], Sequence[Page]] | None
    ) -> tuple[Sequence[Page], float]:
        """Connects if need be, and reads once (None: not yet); the pages, and after a lost
        connection seconds until the next turn. Raises what cannot be retried."""
        try:
            following = self._following or self._connect()
            if read is None:
                return (), 0.0
            pages = self._read(following, read)
        except Unavailable as error:
            self._last_error = str(error)
            self._reconnects += 1
            self.disconnect()
            return (), next(self._waits)
        self._waits = self._delays()
        return pages, 0.0

    @property
    def following(self) -> Following | None:
        """The connection; None while there is none."""
        return self._following

    @property
    def ends_here(self) -> bool:
        """Whether the source has no more than what was read."""
        return self._following is not None and self._following.drained

    def _connect(self) -> Following:
        self._gaps.verify()
        following = self._follow()
        # What was read says where to go on; what is stored says how far to acknowledge.
        if self._resume is not self._saved:
            following.acknowledge(self._saved)
        self._following = following
        self._last_error = ""
        return following

    def _follow(self) -> Following:
        """Follows after what was read; a gap is recorded before its policy is obeyed."""
        resume = self._resume
        try:
            return self._feed.follow(self.partition, resume)
        except HistoryLost as lost:
            gap = lost.gap
            self._gaps.lost(self.partition, gap, resume)
            if gap.policy != "continue":
                raise PositionLost(lost.message, hint=lost.hint) from lost
        following = self._feed.follow(self.partition, resume, despite=gap)
        self._gaps.lost(self.partition, gap, resume, to=following.begins)
        return following

    def _read(
        self, following: Following, read: Callable[[Following], Sequence[Page]]
    ) -> Sequence[Page]:
        try:
            return read(following)
        except PositionLost as error:
            if self._is_in_doubt:
                raise
            # What is lost, and what to do about it, is found by following again.
            self._is_in_doubt = True
            raise Unavailable(error.message, hint=error.hint) from error

    def disconnect(self) -> None:
        """Closes the connection; the next turn makes another."""
        following, self._following = self._following, None
        if following is not None:
            # A closed following forgets nothing: earlier places become durable later.
            following.close()
            found = following.bookmark(self.read_to)
            mark = self._saved.mark if found is None else found.mark
            self._resume = Bookmark(self.read_to, mark)
            self._past.add(self.read_to, following)

    def fail(self, failure: PenstockError) -> None:
        """Notes why the partition is not read any more."""
        self.failure = failure
        self._last_error = str(failure)

    # With the reservoir's lock held.

    def put(self, pages: Sequence[Page], *, drained: bool) -> None:
        """Takes in what a turn brought."""
        self._is_in_doubt = self._is_in_doubt and not pages
        for page in pages:
            self.pages.append(page)
            self.size += page.size
            self.events += page.count
            self.read_to = page.last
        self.drained = self.drained or drained

    def beyond(self, after: Place | None) -> Iterator[Page]:
        """The buffered pages that reach beyond `after`.

        Looks from the end: what is held until it is durable is not walked through for each page.
        """
        pages, start = self.pages, len(self.pages)
        while start and (after is None or pages[start - 1].last > after):
            start -= 1
        return islice(pages, start, None)

    def reaches(self, end: Place) -> bool:
        """Whether everything up to `end` has been read."""
        return self.drained or (self.read_to is not None and self.read_to >= end)

    def release(self, place: Place) -> int:
        """Forgets the pages up to `place`, which is durable; returns their changes."""
        released = 0
        while self.pages and self.pages[0].last <= place:
            page = self.pages.popleft()
            self.size -= page.size
            self.events -= page.count
            released += page.count
        self._past.durable(place)
        return released

    # From any thread.

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """What to store when everything up to `place` is durable; None: what is stored stays."""
        following = self._following
        found = following.bookmark(place) if following is not None else None
        return self._past.bookmark(place) if found is None else found

    def acknowledge(self, bookmark: Bookmark) -> None:
        """The bookmark is stored."""
        self._saved = bookmark
        following = self._following
        if following is not None:
            following.acknowledge(bookmark)
            if bookmark.place is not None:
                self._past.saved(bookmark.place)

    def status(self) -> Mapping[str, Any]:
        """Plain JSON for the status page."""
        following = self._following
        return {
            "connected": False,
            **(following.status() if following is not None else {}),
            "buffered_events": self.events,
            "buffered_bytes": self.size,
            "reconnects": self._reconnects,
            "last_error": self._last_error,
        }
