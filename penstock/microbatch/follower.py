"""A task that reads the source by itself: partitions that the reader process assigns, while they
come and go, and reports of what is stored, with the bookmarks to save.
"""

import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from penstock.feeds import Gap
from penstock.microbatch.draw import OpenDraw
from penstock.microbatch.page_client import PageClient, connected, expect_end, reaching
from penstock.microbatch.ticket import (
    FoundGap,
    Join,
    Leave,
    ReportedBookmarks,
    Rows,
    Signal,
    Ticket,
)
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.process.connections import hang_up
from penstock.reading.passed_gaps import Doubts
from penstock.reading.reservoir import Reservoir

# Seconds between looks at whether the epoch is over, while no page comes.
POLL = 0.1
# Seconds between reports of status, and of bookmarks whose marks moved without a change.
IDLE = 2.0
# Of all tasks of this process: one may be over before a loss is confirmed.
_DOUBTS: Doubts = {}


class Follower(PageClient):
    """The pages of a ticket with a feed, which are read here."""

    def __init__(self, ticket: Ticket) -> None:
        super().__init__(ticket)
        feed = pickle.loads(ticket.feed)  # noqa: S301 - made by the reader process
        self._reservoir = Reservoir(feed, limit=ticket.buffer, gaps=self, doubts=_DOUBTS)
        # Of each partition of this task: where it began, and the bookmark that was reported last.
        self._places: dict[PartitionId, Place | None] = {}
        self._draw = OpenDraw(self._reservoir, self._places.get)  # pages that were not handed on
        self._reported: dict[PartitionId, Bookmark] = {}
        self._over = threading.Event()  # the ticket has ended, or `_failure` is why it failed
        self._recorded = threading.Semaphore(0)  # a gap that was sent is on record
        self._failure: PenstockError | None = None
        # What goes to the sink, since the last report: what is read and not taken in time, the next
        # task reads again.
        self._counts: Counter[str] = Counter()
        self._looked_at = time.monotonic()  # when status was reported last

    def pages(self) -> Iterator[Page]:
        """Of each partition in order, until the ticket ends. Raises Unavailable when the reader
        process is gone, and what reading the source failed with."""
        connection = self._connection = connected(self._ticket)
        threading.Thread(target=self._listen, args=(connection,), daemon=True).start()
        self._send(self._ticket.request)
        while not self._over.is_set():
            yield from self._arrived()
            self._end()
            if time.monotonic() - self._looked_at >= IDLE:
                self._report_idle()
        if self._failure is not None:
            raise self._failure

    def _arrived(self) -> Sequence[Page]:
        try:
            pages, _ = self._draw.next(POLL)
        except PositionLost:
            # It is recorded, and followed again now and then; partitions of other tasks go on.
            if self._ticket.request.groups == 1:
                raise
            with self._reservoir.wake:
                self._reservoir.wake.wait(POLL)
            return ()
        self._counts["events"] += sum(page.count for page in pages)
        self._counts["pages"] += len(pages)
        return pages

    def _listen(self, connection: Connection) -> None:
        try:
            while True:
                with reaching():
                    message = connection.recv()
                match message:
                    case Join(bookmarks):
                        for name, bookmark in bookmarks.items():
                            self._places[name] = bookmark.place
                            self._reported[name] = bookmark
                            self._reservoir.open(name, bookmark)
                    case Leave(partitions):
                        for name in partitions:
                            self._close(name)
                    case Signal.RECORDED:
                        self._recorded.release()
                    case _:
                        expect_end(message)
                        break
        except PenstockError as error:
            self._failure = error
        self._over.set()
        self._recorded.release()

    def _close(self, partition: PartitionId) -> None:
        self._reservoir.close(partition)
        self._handed.forget(partition)
        self._places.pop(partition, None)
        self._reported.pop(partition, None)

    def finish(self) -> None:
        self._handed.expect_none()
        self._end()
        self._report_rows()
        super().finish()

    def close(self) -> None:
        self._reservoir.stop(0.0)
        if self._connection is not None:
            hang_up(self._connection)
            self._over.wait()
        super().close()

    def _report(self, done: Position) -> None:
        found: dict[PartitionId, Bookmark] = {}
        with self._reservoir.wake:
            self._reservoir.stored(done)
        for name, place in done.items():
            if name in self._places:  # it has not left meanwhile
                self._places[name] = place
                bookmark = self._reservoir.bookmark(name, place)
                if bookmark is not None:  # or else it is reported later
                    found[name] = bookmark
        self._report_bookmarks(found)
        self._end()

    def _report_bookmarks(self, found: Bookmarks) -> None:
        if found:
            self._reported |= found
            self._send(ReportedBookmarks(found))

    def _end(self) -> None:
        """Reports partitions that have ended and are wholly stored."""
        found = {}
        with self._reservoir.wake:
            ended = [
                name
                for name in self._reservoir.ended
                if self._reservoir.is_done(name, self._places.get(name))
            ]
            for name in ended:
                found[name] = self._reservoir.last_bookmark(name, self._places.get(name))
                self._close(name)
        if found:
            self._send(ReportedBookmarks(found))

    def _report_idle(self) -> None:
        """An idle partition advances, too, and all have a status."""
        self._looked_at = time.monotonic()
        found: dict[PartitionId, Bookmark] = {}
        for name, place in dict(self._places).items():
            bookmark = self._reservoir.bookmark(name, place)
            if bookmark is not None and bookmark != self._reported.get(name):
                found[name] = bookmark
        self._report_bookmarks(found)
        self._report_rows()

    def _report_rows(self) -> None:
        reconnects = self._reservoir.counts["reconnects"]
        counts = self._counts + Counter(reconnects=reconnects)
        self._send(Rows(self._reservoir.rows(), counts))
        self._counts = Counter(reconnects=-reconnects)

    # What the reservoir calls: see `GapRecorder`.

    def verify(self, partition: PartitionId) -> None:
        """The reader process knows whose the bookmarks are, and ends the epoch if need be."""

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        """Has the reader process record the gap; returns when it has. Raises Unavailable when the
        epoch ends meanwhile: the next one finds the gap again."""
        self._send(FoundGap(partition, gap, bookmark, to))
        self._recorded.acquire()
        if self._over.is_set():
            self._recorded.release()  # for the others that wait
            raise self._failure or Unavailable("the micro-batch is over", "microbatch")
