"""Reading for open micro-batches: an offset is the number of an epoch, and tasks get tickets."""

import pickle
import threading
from collections.abc import Callable

from penstock.feeds import Feed
from penstock.microbatch.assignments import Assignments
from penstock.microbatch.draw import Draw
from penstock.microbatch.epochs import SAVE, AssignedEpochs, BufferedEpochs, Epochs, Lengths
from penstock.microbatch.options import BatchLimits, SourceOptions
from penstock.microbatch.page_server import Pages, PageServer
from penstock.microbatch.run_folder import Bell, is_paused, is_stopping
from penstock.microbatch.source_reports import Json, Reading
from penstock.microbatch.ticket import Report, Request, Ticket
from penstock.model.errors import PenstockError, SettingsError
from penstock.model.position import Bookmarks
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster

Notify = Callable[[], None]

# The one key of an offset: which epoch.
_EPOCH = "epoch"


def buffered(
    feed: Feed, options: SourceOptions, positions: Positions, gaps: GapLog, report: Notify
) -> "OpenReading":
    """Pages are read here, and written by one task, so that one chain orders the sink's writes."""
    reservoir = Reservoir(feed, limit=options.buffer, gaps=gaps, watch=report)
    epochs = BufferedEpochs(reservoir, Roster(feed), positions, Lengths(options))
    return OpenReading(options, epochs, report, feed.backend)


def assigned(
    feed: Feed, options: SourceOptions, positions: Positions, gaps: GapLog, report: Notify
) -> "OpenReading":
    """Tasks read the source by themselves: as many as may run at a time."""
    assignments = Assignments(options.buffer)
    lengths = Lengths(options, is_spread=True)
    epochs = AssignedEpochs(assignments, Roster(feed), positions, lengths, gaps=gaps)
    return OpenReading(
        options, epochs, report, feed.backend, feed=pickle.dumps(feed), buffer=options.buffer
    )


class OpenReading(Pages, Reading):
    """With the `Pages` of its server. `feed` and `buffer` are for tasks that
    read: the pickled feed, and the bytes that all of them may buffer. `report` is called often."""

    def __init__(
        self,
        options: SourceOptions,
        epochs: Epochs,
        report: Notify,
        backend: str,
        *,
        feed: bytes = b"",
        buffer: int = 0,
    ) -> None:
        self.reader = epochs.reader  # whose status is reported
        self._epochs, self._report = epochs, report
        self._feed, self._buffer = feed, buffer
        self._runtime, self._query, self._backend = options.runtime, options.query, backend
        self._server = PageServer.of(options, self)
        # Opens partitions, and saves what is durable, so that no page waits for a disk.
        self._watching: threading.Thread | None = None
        self._bell: Bell | None = None  # of the run folder
        self._stopped = threading.Event()  # it ends
        self._failure: PenstockError | None = None  # what saving failed with: it ends all epochs

    def draw(self, request: Request) -> Draw:
        return self._epochs.draw(request.group, request.groups)

    def take(self, report: Report) -> None:
        self._epochs.take(report)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def is_over(self) -> bool:
        ends = is_stopping(self._runtime, self._query) or is_paused(self._runtime, self._backend)
        return ends or self._epochs.ends_early()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                self._epochs.watch(SAVE)
                self._report()
            except Exception as error:
                self._failure = PenstockError.of(error, "saving positions")
                self._wake()
                return

    def _wake(self) -> None:
        """Draws that wait for pages look whether their epoch ends."""
        with self.reader.wake:
            self.reader.wake.notify_all()

    @property
    def durable(self) -> Bookmarks:
        return self._epochs.durable

    def begin(self, bookmarks: Bookmarks) -> Json:
        self._epochs.begin(bookmarks)
        return {_EPOCH: "0"}

    def end_by_itself(self, feed: Feed) -> None:
        raise SettingsError(
            "in the mode realtime micro-batches are open: AvailableNow would have no end",
            "microbatch.no-end",
            hint="leave the option `mode` out",
        )

    def next(self, start: Json, limits: BatchLimits) -> Json:
        return {_EPOCH: str(int(start[_EPOCH]) + 1)}

    def parts(self, start: Json, end: Json) -> list[Ticket]:
        self._server.open()
        self._start()
        return [
            Ticket(
                request=epoch,
                address=self._server.address,
                key=self._server.key,
                feed=self._feed,
                buffer=self._buffer // epoch.groups,
            )
            for epoch in self._epochs.plan(int(end[_EPOCH]))
        ]

    def save(self, start: Json) -> None:
        """What tasks reported goes further than `start`."""
        self._epochs.save()

    def connect(self) -> None:
        self._start()
        self.check()
        self._epochs.check()

    def _start(self) -> None:
        if self._watching is None:
            if self._runtime is not None:
                self._bell = Bell(self._runtime, self._wake)
            self._watching = threading.Thread(target=self._watch, daemon=True)
            self._watching.start()

    def stop(self, timeout: float) -> None:
        self._stopped.set()
        if self._bell is not None:
            self._bell.close()
        self._server.close()
        self._epochs.stop(timeout)
