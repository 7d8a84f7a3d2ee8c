"""What a task and the page server of a reader process send each other, over one socket."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import ormsgpack

from penstock.feeds import Gap
from penstock.model.errors import Malformed
from penstock.model.position import (
    Bookmark,
    Bookmarks,
    PartitionId,
    Place,
    Position,
    bookmarks_from_json,
    bookmarks_to_json,
)

# The first byte of each message. From the page server: a page (a large payload is the next
# message), the end of what was asked for, or a pickled error. From the task: a request
# (`ticket.REQUEST`), what is stored, and the same when the sink is done, which an end answers.
PAGE, END, FAILED, STORED, DONE = b"p", b"e", b"f", b"s", b"d"
# Where tasks read the source by themselves. From the page server: partitions that join and leave,
# and that a gap is recorded. From the task: bookmarks of what is stored, a gap that it found, and
# the status of its partitions.
JOIN, LEAVE, RECORDED, BOOKMARKS, GAP, ROWS = b"j", b"l", b"o", b"b", b"g", b"w"


class Join(NamedTuple):
    """A task follows these partitions from now on, after their bookmarks."""

    bookmarks: Bookmarks

    def pack(self) -> bytes:
        """Makes it a message."""
        return JOIN + orjson.dumps(bookmarks_to_json(self.bookmarks))


class Leave(NamedTuple):
    """A task closes these partitions."""

    partitions: Sequence[PartitionId]

    def pack(self) -> bytes:
        """Makes it a message."""
        return LEAVE + orjson.dumps(self.partitions)


class FoundGap(NamedTuple):
    """A gap that a task found after a bookmark; `to`: its end, if that is known."""

    partition: PartitionId
    gap: Gap
    bookmark: Bookmark
    to: str

    def pack(self) -> bytes:
        """Makes it a message."""
        gap = self.gap
        found = [gap.cause, gap.after, gap.to, gap.detail, gap.policy]
        return GAP + orjson.dumps([self.partition, found, self.bookmark.to_json(), self.to])

    @classmethod
    def unpack(cls, message: bytes) -> "FoundGap":
        """Reads a message of `pack`."""
        partition, found, bookmark, to = orjson.loads(message[1:])
        cause, after, end, detail, policy = found
        gap = Gap(cause=cause, after=after, to=end, detail=detail, policy=policy)
        return cls(PartitionId(partition), gap, Bookmark.from_json(bookmark), to)


def read_bookmarks(message: bytes) -> dict[PartitionId, Bookmark]:
    """The bookmarks of a BOOKMARKS or JOIN message; raises Malformed."""
    return bookmarks_from_json(orjson.loads(message[1:]))


class Rows(NamedTuple):
    """A task's report of the status of its partitions, and of what it has counted since its last
    report; plain JSON."""

    rows: Mapping[PartitionId, Mapping[str, Any]]
    counts: Mapping[str, int]

    def pack(self) -> bytes:
        """Makes it a message."""
        return ROWS + orjson.dumps([self.rows, self.counts])

    @classmethod
    def unpack(cls, message: bytes) -> "Rows":
        """Reads a message of `pack`."""
        return cls(*orjson.loads(message[1:]))


class ReportedPlaces(NamedTuple):
    """A task's report that everything up to these places is durable."""

    places: Position


class ReportedBookmarks(NamedTuple):
    """The report of a task that reads by itself: that everything up to these bookmarks is
    durable."""

    bookmarks: Bookmarks

    def pack(self) -> bytes:
        """Makes it a message."""
        return BOOKMARKS + orjson.dumps(bookmarks_to_json(self.bookmarks))


# What tasks report while they write.
Report = ReportedPlaces | ReportedBookmarks | FoundGap | Rows


def read_report(message: bytes) -> Report:
    """Reads a message of a task that is no request; raises Malformed."""
    kind = message[:1]
    if kind == BOOKMARKS:
        return ReportedBookmarks(read_bookmarks(message))
    if kind == ROWS:
        return Rows.unpack(message)
    if kind == GAP:
        return FoundGap.unpack(message)
    if kind not in (STORED, DONE):
        raise Malformed("a task sent a message out of turn")
    places = ormsgpack.unpackb(message[1:])
    return ReportedPlaces({PartitionId(name): Place(*place) for name, *place in places})


def stored_message(position: Position, *, done: bool) -> bytes:
    """A task's report that everything up to these places is durable."""
    places = [(name, place.cursor, place.ordinal) for name, place in position.items()]
    return (DONE if done else STORED) + ormsgpack.packb(places)
