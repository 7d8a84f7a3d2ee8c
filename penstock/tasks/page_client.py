"""A task's end of the page server: pages for a ticket, and reports of what is stored.

Connections are kept by the worker process and used again by its next task; one that was left in
the middle of a conversation is not.
"""

import os
import pickle
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import AuthenticationError

import pyarrow as pa

from penstock.connections import connect
from penstock.errors import Malformed, PenstockError, Unavailable
from penstock.handover.conversation import END, FAILED, PAGE, Request, stored_message
from penstock.handover.ticket import Ticket, page_of
from penstock.page import Page
from penstock.position import PartitionId, Place, Position

__all__ = ["PageClient"]

_LOST = "the reader process is gone"
_HINT = "the query starts again from the stored position"

# By process: a forked child must not share its parent's sockets.
_idle: dict[tuple[int, str, bytes], Connection] = {}


class PageClient:
    """The pages of one ticket, and how far they are stored."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._connection: Connection | None = None
        # Of each partition, the pages that were handed on: the last change of each, and the last
        # one that the tables' filter left of it (None: of all pages so far).
        self._handed: dict[PartitionId, deque[tuple[Place, Place | None]]] = {}

    @property
    def is_open_ended(self) -> bool:
        """Whether the reader process wants reports of what is stored while it goes on."""
        return self._ticket.is_open

    def pages(self) -> Iterator[Page]:
        """In order, as they come, until the ticket ends.

        Raises Unavailable when the reader process is gone, and what reading the source failed
        with.
        """
        connection = self._connection = _connected(self._ticket)
        try:
            connection.send_bytes(Request.of(self._ticket).pack())
            while True:
                message = connection.recv_bytes()
                if message[:1] != PAGE:
                    _expect_end(message)
                    break
                yield page_of(message[1:], connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise Unavailable(_LOST, hint=_HINT) from error
        if not self.is_open_ended:
            self._release()

    def handed_on(self, page: Page, batches: list[pa.RecordBatch]) -> None:
        """The page was decoded to these batches, which are on their way to the sink."""
        if not self.is_open_ended:
            return
        kept = [batch for batch in batches if batch.num_rows]
        last = None
        if kept:
            columns = (kept[-1].column(name) for name in ("cursor", "ordinal"))
            last = Place(*(column[len(column) - 1].as_py() for column in columns))
        self._handed.setdefault(page.partition, deque()).append((page.last, last))

    def stored(self, position: Position) -> None:
        """The sink reports how far it is: the reader process hears which pages are done."""
        done: dict[PartitionId, Place] = {}
        for name in set(position) | self._without_changes:
            place, handed = position.get(name), self._handed.get(name)
            while handed:
                end, last = handed[0]
                if last is not None and (place is None or last > place):
                    break
                done[name] = end
                handed.popleft()
        if done and self._connection is not None:
            self._send(done, done=False)

    @property
    def _without_changes(self) -> set[PartitionId]:
        """The partitions whose next page has no change for the sink, which never reports it."""
        handed = dict(self._handed)  # one step, whatever the pulling thread does meanwhile
        return {name for name, pages in handed.items() if pages and pages[0][1] is None}

    def finish(self) -> None:
        """Everything that was handed on is stored; returns when the reader process knows."""
        if self._connection is None or not self.is_open_ended:
            return
        self._send({name: pages[-1][0] for name, pages in self._handed.items() if pages}, done=True)
        try:
            _expect_end(self._connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise Unavailable(_LOST, hint=_HINT) from error
        self._release()

    def _send(self, position: Position, *, done: bool) -> None:
        assert self._connection is not None
        try:
            self._connection.send_bytes(stored_message(position, done=done))
        except OSError as error:
            raise Unavailable(_LOST, hint=_HINT) from error

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _idle[_door(self._ticket)] = connection


def _door(ticket: Ticket) -> tuple[int, str, bytes]:
    return os.getpid(), ticket.address, ticket.key


def _connected(ticket: Ticket) -> Connection:
    kept = _idle.pop(_door(ticket), None)
    if kept is not None:
        return kept
    try:
        return connect(ticket.address, ticket.key)
    except (OSError, EOFError, AuthenticationError) as error:
        raise Unavailable(
            f"the reader process can't be reached at {ticket.address}: {error}",
            hint="on a cluster, executors must reach the driver's host (spark.driver.host)",
        ) from error


def _expect_end(message: bytes) -> None:
    if message[:1] == END:
        return
    if message[:1] != FAILED:
        raise Malformed("the reader process sent an unknown message")
    error = pickle.loads(message[1:])  # noqa: S301 - whoever says it has the key
    assert isinstance(error, PenstockError)
    raise error
