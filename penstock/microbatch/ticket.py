"""What crosses between the reader process and a task: pages in a split, or a ticket for them, which
Spark carries; and what the task and the page server send each other, over one socket. All of these
are pickled, but for pages (see `messages_of`): both ends have proven that they have the key.

A split is for a task that makes whole rows. A ticket crosses in place of pages: a task presents it
to the page server of the reader process and gets the pages there, so that they do not pass through
the JVM. The task that makes stubs has one for ranges of partitions. The task that writes, in an
epoch, has one for a group of partitions and a time: an epoch's end is known only when it is over.

Pages are cut where the socket ran dry, so after a crash they are cut elsewhere. A micro-batch that
Spark planned before the crash must still hold the same changes: `after` and `until` bound it.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import ormsgpack
import pyarrow as pa

from penstock.feeds import Gap, RowSource
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place, Position


class Range(NamedTuple):
    """What lies in a partition after one place, up to another."""

    partition: PartitionId
    after: Place | None
    until: Place


class SplitPages(NamedTuple):
    """The changes of `pages` (one partition, in order) after `after` and up to `until`."""

    pages: tuple[Page, ...]
    after: Place | None
    until: Place


@dataclass(slots=True, kw_only=True)
class Split:
    """The changes of one task, of any number of partitions."""

    parts: tuple[SplitPages, ...]


@dataclass(slots=True, kw_only=True)
class RowsSplit:
    """A range of a table's rows, which its task reads from the source. `name`: of the range, in
    this query."""

    source: RowSource
    range: Any
    name: str


def bounded(
    page: Page, batches: Iterable[pa.RecordBatch], after: Place | None, until: Place | None
) -> Iterator[pa.RecordBatch]:
    """The changes of a decoded page that are after `after` and up to `until`, if there is one."""
    if (after is None or page.first > after) and (until is None or page.last <= until):
        yield from batches
        return
    for batch in batches:
        cursors, ordinals = (batch.column(name).to_pylist() for name in ("cursor", "ordinal"))
        inside = [
            (after is None or place > after) and (until is None or place <= until)
            for place in zip(cursors, ordinals, strict=True)
        ]
        kept = batch.filter(pa.array(inside, pa.bool_()))
        if kept.num_rows:
            yield kept


# The row that a split becomes: the pickled decoder that reads the pages, and the pickled ticket.
_COLUMNS: list["pa.Field[Any]"] = [
    pa.field("decoder", pa.binary(), nullable=False),
    pa.field("ticket", pa.binary(), nullable=False),
]
TICKETS = pa.schema(_COLUMNS)
# Bytes of a payload from which on copying it costs more than a message of its own.
_LARGE = 1 << 16


@dataclass(slots=True, kw_only=True)
class Request:
    """The changes of `ranges`; or, if there are none, of group `group` of `groups` for `seconds`
    and then for as long as more of them wait, but at most for `most` seconds."""

    ranges: tuple[Range, ...] = ()
    group: int = 0
    groups: int = 1
    seconds: float = 0.0
    most: float = 0.0


@dataclass(slots=True, kw_only=True)
class Ticket:
    """A request, and where it is answered: `address` is the page server's; `key` opens it."""

    request: Request
    address: str
    key: bytes = field(repr=False)
    # Where the task reads the source by itself: the pickled feed, and bytes that it may buffer.
    feed: bytes = field(default=b"", repr=False)
    buffer: int = 0


# What a task gets.
Part = Split | RowsSplit | Ticket


def ticket_row(ticket: Ticket, decoder: bytes) -> pa.RecordBatch:
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
    """The inverse; `more` gives a second message. Raises Malformed, and what `more` raises."""
    try:
        partition, first, last, count, captured_at, context, payload = ormsgpack.unpackb(head)
    except (ValueError, TypeError) as error:
        raise Malformed("the reader process sent no page", "microbatch") from error
    return Page(
        partition=PartitionId(partition),
        first=Place.parse(first),
        last=Place.parse(last),
        count=count,
        captured_at=captured_at,
        context=context,
        payload=more() if payload is None else payload,
    )


# The first byte of a page's first message, and of no pickle.
PAGE = b"p"


class Signal(Enum):
    """What is sent without more."""

    END = "end"  # from the page server: of what was asked for, or the answer to `DONE`
    DONE = "done"  # from the task: the sink has stored all of it
    RECORDED = "recorded"  # from the page server: a gap is


# Where tasks read the source by themselves, the page server sends these two.
class Join(NamedTuple):
    """A task follows these partitions from now on, after their bookmarks."""

    bookmarks: Bookmarks


class Leave(NamedTuple):
    """A task closes these partitions."""

    partitions: Sequence[PartitionId]


class FoundGap(NamedTuple):
    """A gap that a task found after a bookmark; `to`: its end, if that is known."""

    partition: PartitionId
    gap: Gap
    bookmark: Bookmark
    to: str


class Rows(NamedTuple):
    """A task's report of its partitions' status, and of what it counted since the last."""

    rows: Mapping[PartitionId, Mapping[str, Any]]
    counts: Mapping[str, int]


class ReportedPlaces(NamedTuple):
    """A task's report that everything up to these places is durable; and what an open request is
    answered first: that it was."""

    places: Position


class ReportedBookmarks(NamedTuple):
    """The same report, of a task that reads by itself."""

    bookmarks: Bookmarks


# What tasks report while they write.
Report = ReportedPlaces | ReportedBookmarks | FoundGap | Rows
