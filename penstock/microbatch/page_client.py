"""A task's end of the page server: pages for a ticket, and reports of what is stored.

Connections are kept by the worker process and used again by its next task; one that was left in
the middle of a conversation is not.
"""

import os
import pickle
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import AuthenticationError
from typing import Any

from penstock.microbatch.ticket import PAGE, ReportedPlaces, Signal, Ticket, page_of
from penstock.model.change import Passed
from penstock.model.errors import Malformed, PenstockError, Unavailable
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place, Position
from penstock.native.batch import Batch, NativeBatch, last_place
from penstock.process.connections import connect

# By process: a forked child must not share its parent's sockets.
_idle: dict[tuple[int, str, bytes], Connection] = {}


@contextmanager
def reaching() -> Iterator[None]:
    """Raises Unavailable when the reader process is gone."""
    try:
        yield
    except (OSError, EOFError) as error:
        raise Unavailable(
            "the reader process is gone",
            "microbatch",
            hint="the query starts again from the stored position",
        ) from error


class Handed:
    """A task's pages on their way through its sink. One thread notes them, one at a time asks."""

    def __init__(self) -> None:
        # The last change of each page, and the last one that the tables' filter left of it (None:
        # there was none).
        self._pages: dict[PartitionId, deque[tuple[Place, Place | None]]] = {}

    def note(self, page: Page, batches: Sequence[Batch]) -> None:
        rows = sum(batch.num_rows for batch in batches)
        is_told = rows == page.count or any(
            Passed.of(each) for each in batches if not isinstance(each, NativeBatch)
        )
        last = page.last if is_told else _last_of(batches)
        self._pages.setdefault(page.partition, deque()).append((page.last, last))

    def done(self, position: Position) -> dict[PartitionId, Place]:
        """The ends of the pages that are stored when everything up to `position` is."""
        done: dict[PartitionId, Place] = {}
        for name in set(position) | self._without_changes:
            place, pages = position.get(name), self._pages.get(name)
            while pages:
                end, last = pages[0]
                if last is not None and (place is None or last > place):
                    break
                done[name] = end
                pages.popleft()
        return done

    @property
    def _without_changes(self) -> set[PartitionId]:
        """The partitions whose next page has no change for the sink, which never reports it."""
        pages = dict(self._pages)  # one step, whatever the other thread does meanwhile
        return {name for name, each in pages.items() if each and each[0][1] is None}

    def expect_none(self) -> None:
        """Raises Malformed if anything is left: the sink returned without a place for it."""
        for name, pages in self._pages.items():
            if pages:
                raise Malformed(
                    f"the sink's write returned without a place for {name} up to {pages[-1][0]}",
                    "microbatch",
                    hint="a receipt's position has the last place of every partition",
                )

    def forget(self, partition: PartitionId) -> None:
        self._pages.pop(partition, None)


def _last_of(batches: Sequence[Batch]) -> Place | None:
    kept = [batch for batch in batches if batch.num_rows]
    return last_place(kept[-1]) if kept else None


class PageClient:
    """The pages of one ticket, and how far they are stored."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        # Up to where all was durable of each partition, before its pages.
        self.began: dict[PartitionId, Place] = {
            each.partition: each.after for each in ticket.request.ranges if each.after is not None
        }
        self._connection: Connection | None = None  # to the reader process, from `pages` on
        self._handed = Handed()  # pages that were handed on, and are not stored
        self._reporting = threading.Lock()  # one report at a time, in their order
        self._sending = threading.Lock()  # one message at a time

    def pages(self) -> Iterator[Page]:
        """In order, until the ticket ends. Raises Unavailable when the reader process is gone, and
        what reading the source failed with."""
        connection = self._connection = connected(self._ticket)
        with reaching():
            connection.send(self._ticket.request)
            while True:
                if (received := connection.recv_bytes())[:1] == PAGE:
                    yield page_of(received[1:], connection.recv_bytes)
                    continue
                message = pickle.loads(received)  # noqa: S301 - of a server that has the key
                if not isinstance(message, ReportedPlaces):
                    break
                self.began |= message.places
        expect_end(message)

    def handed_on(self, page: Page, batches: Sequence[Batch]) -> None:
        """The page was decoded to these batches, which are on their way to the sink."""
        self._handed.note(page, batches)

    def stored(self, position: Position) -> None:
        """Reports the pages that are stored up to `position`. Any thread may call it."""
        with self._reporting:
            if done := self._handed.done(position):
                self._report(done)

    def finish(self) -> None:
        """All is stored: returns when the reader process knows. Raises Malformed if it is not."""
        self._handed.expect_none()
        with reaching(), self._sending:  # the next task has the connection then
            if self._connection is None:
                return
            self._connection.send(Signal.DONE)
            while (message := self._connection.recv()) is Signal.RECORDED:
                pass  # what was reported lost while the epoch ended
            expect_end(message)
            self.release()

    def _report(self, done: Position) -> None:
        self._send(ReportedPlaces(done))

    def _send(self, message: Any) -> None:
        with reaching(), self._sending:
            if self._connection is not None:
                self._connection.send(message)

    def release(self) -> None:
        """The conversation is over: its connection is kept for the next task of this process."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for key, kept in list(_idle.items()):
            if _is_over(kept):
                del _idle[key]
                kept.close()
        _idle[_key_of(self._ticket)] = connection

    def close(self) -> None:
        """The task is over: a conversation that did not come to its end is broken off."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _key_of(ticket: Ticket) -> tuple[int, str, bytes]:
    return os.getpid(), ticket.address, ticket.key


def _is_over(connection: Connection) -> bool:
    """Of an idle one: the reader process is gone, or another has this descriptor."""
    try:
        return connection.poll()
    except OSError:
        return True


def connected(ticket: Ticket) -> Connection:
    """A connection to the ticket's page server. Raises Unavailable."""
    if (kept := _idle.pop(_key_of(ticket), None)) is not None:
        if not _is_over(kept):
            return kept
        kept.close()
    try:
        return connect(ticket.address, ticket.key)
    except (OSError, EOFError, AuthenticationError) as error:
        raise Unavailable(
            f"the reader process can't be reached at {ticket.address}: {error}",
            "microbatch",
            hint="on a cluster, executors must reach the driver's host (spark.driver.host)",
        ) from error


def expect_end(message: Any) -> None:
    """Raises the error that was sent, unless it is the end of what was asked for."""
    if isinstance(message, PenstockError):
        raise message
    if message is not Signal.END:
        raise Malformed("the reader process sent an unknown message", "microbatch")
