"""What a task and the page server of a reader process send each other, over one socket.

Each is a pickled value: both ends have proven that they have the key. Only pages are not: see
`ticket.messages_of`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from penstock.feeds import Gap
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Position

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
    """A task's report of the status of its partitions, and of what it has counted since its last
    report; plain JSON."""

    rows: Mapping[PartitionId, Mapping[str, Any]]
    counts: Mapping[str, int]


class ReportedPlaces(NamedTuple):
    """A task's report that everything up to these places is durable."""

    places: Position


class ReportedBookmarks(NamedTuple):
    """The report of a task that reads by itself: that everything up to these bookmarks is
    durable."""

    bookmarks: Bookmarks


# What tasks report while they write.
Report = ReportedPlaces | ReportedBookmarks | FoundGap | Rows
