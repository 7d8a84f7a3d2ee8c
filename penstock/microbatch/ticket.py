"""A ticket: what Spark carries in place of pages. A task presents it to the page server of the
reader process and gets the pages there: they do not pass through the JVM.

The task that makes stubs has one for ranges of partitions (a micro-batch that can be planned
again). The task that writes, in an epoch, has one for a group of partitions and a time: the end of
an epoch is known only when it is over.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ormsgpack
import pyarrow as pa

from penstock.microbatch.split import Range
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place

# The row that a split becomes: the pickled decoder that reads the pages, and the pickled ticket.
_COLUMNS: list["pa.Field[Any]"] = [
    pa.field("decoder", pa.binary(), nullable=False),
    pa.field("ticket", pa.binary(), nullable=False),
]
TICKETS = pa.schema(_COLUMNS)
# Bytes of a payload from which on copying it costs more than a message of its own.
_LARGE = 1 << 16


@dataclass(slots=True, kw_only=True)
class Ticket:
    """The changes of `ranges`; or, if there are none, of group `group` of `groups` for `seconds`
    and then for as long as more of them wait, but at most for `most` seconds.

    `address` is the page server's (`unix:PATH` or `tcp:HOST:PORT`), `key` opens it.
    """

    address: str
    key: bytes = field(repr=False)
    ranges: tuple[Range, ...] = ()
    group: int = 0
    groups: int = 1
    seconds: float = 0.0
    most: float = 0.0
    # Where the task reads the source by itself: the pickled feed, and bytes that it may buffer.
    feed: bytes = field(default=b"", repr=False)
    buffer: int = 0


def ticket_row(ticket: Ticket, decoder: bytes) -> pa.RecordBatch:
    """Makes the ticket a row of TICKETS."""
    return pa.RecordBatch.from_pydict(
        {"decoder": [decoder], "ticket": [pickle.dumps(ticket)]}, schema=TICKETS
    )


def tickets(batch: pa.RecordBatch) -> Iterator[tuple[Ticket, bytes]]:
    """The inverse of `ticket_row`: each ticket and its pickled decoder."""
    for row in batch.to_pylist():
        yield pickle.loads(row["ticket"]), row["decoder"]  # noqa: S301 - made by ticket_row


def messages_of(page: Page) -> tuple[bytes, ...]:
    """The page for a socket: one message, or a large payload in one of its own, as it is. (Each
    message costs both ends a call of the kernel, and the sender its turn at the interpreter.)"""
    is_large = len(page.payload) > _LARGE
    fields = (
        page.partition, str(page.first), str(page.last), page.count, page.captured_at, page.context,
        None if is_large else page.payload,
    )  # fmt: skip
    head = ormsgpack.packb(fields)
    return (head, page.payload) if is_large else (head,)


def page_of(head: bytes, more: Callable[[], bytes]) -> Page:
    """The inverse of `messages_of`; `more` gives the second message if there is one. Raises
    Malformed, and what `more` raises."""
    try:
        partition, first, last, count, captured_at, context, payload = ormsgpack.unpackb(head)
    except (ValueError, TypeError) as error:
        raise Malformed("what came from the reader process is no page") from error
    return Page(
        partition=PartitionId(partition),
        first=Place.parse(first),
        last=Place.parse(last),
        count=count,
        captured_at=captured_at,
        context=context,
        payload=more() if payload is None else payload,
    )
