"""Reading for open micro-batches: an offset is the number of an epoch, and tasks get tickets."""

import pickle
from collections.abc import Callable
from typing import Any

from penstock.feeds import Feed
from penstock.handover.options import SourceOptions
from penstock.handover.ticket import Ticket
from penstock.position import Bookmarks
from penstock.reading.assignments import Assignments
from penstock.reading.epochs import AssignedEpochs, BufferedEpochs, Epochs, Lengths
from penstock.reading.gap_log import GapLog
from penstock.reading.page_server import PageServer, address_of
from penstock.reading.positions import Positions
from penstock.reading.roster import Roster
from penstock.reading.source_reports import ReaderStatus
from penstock.reservoir.reservoir import Reservoir

Json = dict[str, Any]

# The one key of an offset: which epoch.
_EPOCH = "epoch"


def buffered(
    feed: Feed,
    options: SourceOptions,
    positions: Positions,
    *,
    gaps: GapLog,
    report: Callable[[], None],
    slots: Callable[[], int | None],
    stopping: Callable[[], bool],
) -> "OpenReading":
    """Pages are read here, and written by one task, so that one chain orders the sink's writes."""
    reservoir = Reservoir(feed, limit=options.buffer, gaps=gaps, watch=report)
    lengths = Lengths(options.epoch, slots)
    epochs = BufferedEpochs(reservoir, Roster(feed), positions, lengths)
    server = PageServer(
        address_of(options),
        lambda request: epochs.draw(request.group, request.groups),
        stored=epochs.stored,
        stopping=lambda: stopping() or epochs.is_cut_short(),
        watch=epochs.watch,
        bind=options.pages.bind,
        port=options.pages.port,
    )
    return OpenReading(reservoir, epochs, server, stop=reservoir.stop)


def assigned(
    feed: Feed,
    options: SourceOptions,
    positions: Positions,
    *,
    gaps: GapLog,
    report: Callable[[], None],
    slots: Callable[[], int | None],
    stopping: Callable[[], bool],
) -> "OpenReading":
    """Tasks read the source by themselves: as many as may run at a time."""
    assignments = Assignments(options.buffer)
    lengths = Lengths(options.epoch, slots, groups=lambda: slots() or 1)
    epochs = AssignedEpochs(assignments, Roster(feed), positions, lengths)

    def watch(timeout: float) -> None:
        epochs.watch(timeout)
        report()

    server = PageServer(
        address_of(options),
        lambda request: epochs.draw(request.group, request.groups),
        marked=epochs.stored,
        lost=lambda found: gaps.lost(found.partition, found.gap, found.bookmark, to=found.to),
        status=assignments.report_rows,
        stopping=lambda: stopping() or epochs.is_cut_short(),
        watch=watch,
        bind=options.pages.bind,
        port=options.pages.port,
    )
    return OpenReading(assignments, epochs, server, feed=pickle.dumps(feed), buffer=options.buffer)


class OpenReading:
    """A `source.Reading`, made by `buffered` or `assigned`. `feed` and `buffer` are for tasks that
    read: the pickled feed, and the bytes that all of them may buffer."""

    def __init__(
        self,
        reader: ReaderStatus,
        epochs: Epochs,
        server: PageServer,
        *,
        feed: bytes = b"",
        buffer: int = 0,
        stop: Callable[[float], object] = lambda _: None,
    ) -> None:
        self.reader = reader
        self._epochs = epochs
        self._server = server
        self._feed = feed
        self._buffer = buffer
        self._stop = stop

    @property
    def durable(self) -> Bookmarks:
        """See `Reading`."""
        return self._epochs.durable

    def begin(self, bookmarks: Bookmarks) -> Json:
        """See `Reading`."""
        self._epochs.begin(bookmarks)
        return {_EPOCH: "0"}

    def reached(self, start: Json) -> None:
        """See `Reading`: what tasks reported goes further."""

    def next(self, start: Json) -> Json:
        """See `Reading`."""
        return {_EPOCH: str(int(start[_EPOCH]) + 1)}

    def parts(self, start: Json, end: Json) -> list[Ticket]:
        """See `Reading`."""
        self._server.open()
        return [
            Ticket(
                address=self._server.address,
                key=self._server.key,
                group=epoch.group,
                groups=epoch.groups,
                seconds=epoch.seconds,
                most=epoch.most,
                feed=self._feed,
                buffer=self._buffer // epoch.groups,
            )
            for epoch in self._epochs.plan(int(end[_EPOCH]))
        ]

    def save(self) -> None:
        """See `Reading`."""
        self._epochs.save()

    def stop(self, timeout: float) -> None:
        """See `Reading`."""
        self._server.close()
        self._stop(timeout)
