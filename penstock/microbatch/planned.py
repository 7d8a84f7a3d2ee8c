"""Reading for planned micro-batches: offsets are bookmarks, and tasks get what lies between two.

Without saved positions, Spark's checkpoint is the record. Spark logs where a micro-batch ends, and
asks the source anew where the first one starts: after a crash before the first commit, and at every
start until there is a change. So the first end comes at once, with a change or without, and carries
the beginning.
"""

from collections.abc import Callable
from typing import Any

from penstock.feeds import Feed
from penstock.microbatch.conversation import Report, Request
from penstock.microbatch.draw import PlannedDraw
from penstock.microbatch.options import SourceOptions
from penstock.microbatch.page_server import PageServer
from penstock.microbatch.planner import Planner, ReadLimits
from penstock.microbatch.split import Split
from penstock.microbatch.ticket import Ticket
from penstock.model.position import (
    Bookmark,
    Bookmarks,
    PartitionId,
    bookmarks_from_json,
    bookmarks_to_json,
)
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster

Json = dict[str, Any]

# Beside the partitions of an offset. No feed names a partition so.
_BEGUN = "@begun"


def with_beginning(end: Json, begun: Json) -> Json:
    """The first offset of a query that began at `begun`."""
    return {**end, _BEGUN: begun}


def start_of(end: Json, start: Json) -> Json:
    """Where the micro-batch starts whose end that is."""
    found: Json = end.get(_BEGUN, start)
    return found


def bookmarks_of(offset: Json) -> dict[PartitionId, Bookmark]:
    """The bookmarks of any offset; raises Malformed."""
    return bookmarks_from_json({name: each for name, each in offset.items() if name != _BEGUN})


class PlannedReading:
    """A `source.Reading`, and the `Pages` of its server. Pages go to tasks in splits, or, where
    tasks make stubs (`late`), through the page server."""

    def __init__(
        self,
        feed: Feed,
        options: SourceOptions,
        positions: Positions | None,
        gaps: GapLog,
        report: Callable[[], None],
    ) -> None:
        reservoir = Reservoir(feed, limit=options.buffer, gaps=gaps, watch=report)
        self.reader = self._reservoir = reservoir
        self.durable: Bookmarks = {}  # everything up to here is in the sink
        limits = ReadLimits(
            events=options.max_events, bytes=options.max_bytes, patience=options.patience
        )
        self._planner = Planner(reservoir, Roster(feed), limits=limits, positions=positions)
        self._slots = options.live_slots
        self._initial: Json | None = None  # where a query began whose offsets are the record
        self._is_record = positions is None  # Spark's checkpoint is the record
        self._server = PageServer.of(options, self)
        self._is_served = bool(options.late)  # tasks get tickets, not pages

    def draw(self, request: Request) -> PlannedDraw:
        """See `Pages`."""
        return PlannedDraw(self._reservoir, request.ranges)

    def take(self, report: Report) -> None:
        """See `Pages`: tasks that decode store nothing."""

    def is_over(self) -> bool:
        """See `Pages`: a planned micro-batch ends with its pages."""
        return False

    def begin(self, bookmarks: Bookmarks) -> Json:
        """See `Reading`."""
        begun = bookmarks_to_json(bookmarks)
        self._initial = begun if self._is_record else None
        return begun

    def next(self, start: Json) -> Json:
        """See `Reading`."""
        self.durable = bookmarks_of(start)
        found = self._planner.advance(self.durable)
        if start == self._initial:
            return with_beginning(bookmarks_to_json(found), start)
        return start if found == self.durable else bookmarks_to_json(found)

    def parts(self, start: Json, end: Json) -> list[Split] | list[Ticket]:
        """See `Reading`."""
        tasks = max(1, self._slots() or 1)
        between = bookmarks_of(start_of(end, start)), bookmarks_of(end)
        if not self._is_served:
            return self._planner.splits(*between, most=tasks)
        self._server.open()
        ranges = self._planner.ranges(*between)
        shares = [tuple(ranges[first::tasks]) for first in range(tasks)]
        address, key = self._server.address, self._server.key
        return [Ticket(address=address, key=key, ranges=share) for share in shares if share]

    def save(self, start: Json) -> None:
        """See `Reading`."""
        self.durable = bookmarks_of(start)
        self._planner.save(self.durable, force=True)

    def stop(self, timeout: float) -> None:
        """See `Reading`."""
        self._server.close()
        self._reservoir.stop(timeout)
