"""Reading for open micro-batches: an offset is the number of an epoch, and tasks get tickets."""

import pickle
from collections.abc import Callable
from typing import Any

from penstock.feeds import Feed
from penstock.microbatch.assignments import Assignments
from penstock.microbatch.conversation import FoundGap
from penstock.microbatch.epochs import AssignedEpochs, BufferedEpochs, Epochs, Lengths
from penstock.microbatch.options import SourceOptions
from penstock.microbatch.page_server import PageServer
from penstock.microbatch.run_folder import is_stopping
from penstock.microbatch.source_reports import ReaderStatus
from penstock.microbatch.ticket import Ticket
from penstock.model.position import Bookmarks
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster

Json = dict[str, Any]
Report = Callable[[], None]

# The one key of an offset: which epoch.
_EPOCH = "epoch"


def buffered(
    feed: Feed, options: SourceOptions, positions: Positions, gaps: GapLog, report: Report
) -> "OpenReading":
    """Pages are read here, and written by one task, so that one chain orders the sink's writes."""
    reservoir = Reservoir(feed, limit=options.buffer, gaps=gaps, watch=report)
    lengths = Lengths(options.epoch, options.live_slots)
    epochs = BufferedEpochs(reservoir, Roster(feed), positions, lengths)
    reading = OpenReading(options, reservoir, epochs, report, stored=epochs.stored)
    reading.stop_reading = reservoir.stop
    return reading


def assigned(
    feed: Feed, options: SourceOptions, positions: Positions, gaps: GapLog, report: Report
) -> "OpenReading":
    """Tasks read the source by themselves: as many as may run at a time."""
    assignments = Assignments(options.buffer)
    lengths = Lengths(options.epoch, options.live_slots, lambda: options.live_slots() or 1)
    epochs = AssignedEpochs(assignments, Roster(feed), positions, lengths)

    def lost(found: FoundGap) -> None:
        gaps.lost(found.partition, found.gap, found.bookmark, to=found.to)

    reading = OpenReading(
        options,
        assignments,
        epochs,
        report,
        marked=epochs.stored,
        lost=lost,
        status=assignments.report_rows,
    )
    reading.feed, reading.buffer = pickle.dumps(feed), options.buffer
    return reading


class OpenReading:
    """A `source.Reading`, made by `buffered` or `assigned`. `feed` and `buffer` are for tasks that
    read: the pickled feed, and the bytes that all of them may buffer."""

    def __init__(
        self,
        options: SourceOptions,
        reader: ReaderStatus,
        epochs: Epochs,
        report: Report,
        **reports: Callable[[Any], None],
    ) -> None:
        self.reader = reader
        self.feed, self.buffer = b"", 0
        self.stop_reading: Callable[[float], object] = lambda _: None
        self._epochs = epochs

        def watch(timeout: float) -> None:
            epochs.watch(timeout)
            report()

        self._server = PageServer.of(
            options,
            lambda request: epochs.draw(request.group, request.groups),
            stopping=lambda: is_stopping(options.runtime) or epochs.is_cut_short(),
            watch=watch,
            **reports,
        )

    @property
    def durable(self) -> Bookmarks:
        """See `Reading`."""
        return self._epochs.durable

    def begin(self, bookmarks: Bookmarks) -> Json:
        """See `Reading`."""
        self._epochs.begin(bookmarks)
        return {_EPOCH: "0"}

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
                feed=self.feed,
                buffer=self.buffer // epoch.groups,
            )
            for epoch in self._epochs.plan(int(end[_EPOCH]))
        ]

    def save(self, start: Json) -> None:
        """See `Reading`: what tasks reported goes further than `start`."""
        self._epochs.save()

    def stop(self, timeout: float) -> None:
        """See `Reading`."""
        self._server.close()
        self.stop_reading(timeout)
