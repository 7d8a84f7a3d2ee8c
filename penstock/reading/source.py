"""The source in the reader process: offsets as JSON, positions saved, reports to the service.

The planner, the epochs and the reservoir live here, in the one Python process that Spark keeps for
a streaming source. It reports to the service through a folder: the board's socket, and a stop file.
"""

import logging
import os
import pickle
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.errors import Unavailable
from penstock.feeds import Feed, Polled
from penstock.handover.conversation import FoundGap, Request, Rows
from penstock.handover.options import SourceOptions, read_source
from penstock.handover.run_folder import BOARD, STOP, read_owner, read_task_slots
from penstock.handover.split import Split
from penstock.handover.ticket import Ticket
from penstock.ops.reporter import Reporter
from penstock.position import Bookmarks, Position, bookmarks_to_json
from penstock.reading.assignments import Assignments
from penstock.reading.draw import Draw, PlannedDraw
from penstock.reading.epochs import Epochs
from penstock.reading.first_offset import bookmarks_of, start_of, with_beginning
from penstock.reading.gap_log import GapLog
from penstock.reading.page_server import PageServer
from penstock.reading.planner import Planner, ReadLimits
from penstock.reading.positions import Positions
from penstock.reading.remaining import Remaining
from penstock.reading.roster import Roster
from penstock.reading.save_reports import save_reports
from penstock.reading.silences import Silences
from penstock.reading.source_reports import SourceReports
from penstock.reservoir.reservoir import Reservoir

__all__ = ["Source"]

# For how long a stop tries to save positions.
LAST_SAVE = 5.0

log = logging.getLogger("penstock")
# Seconds that a stop waits for the source.
STOPPING = 5.0

# The one key of an offset in realtime: which epoch.
_EPOCH = "epoch"

Json = dict[str, Any]


class Source:
    """One feed under Spark; made by `open`, used by one thread."""

    def __init__(self, options: SourceOptions, feed: Feed, positions: Positions | None) -> None:
        self._feed = feed
        self._positions = positions
        self._initial: Json | None = None
        self._last_save: float | None = None  # until when a stop tries to save
        self._durable: Bookmarks = {}
        self._runtime = options.runtime
        self._fixed_slots = options.slots
        folder = Path(options.runtime) if options.runtime else None
        self._stop_file = folder / STOP if folder else None
        board = Reporter(folder / BOARD) if folder else None
        self._reports = reports = SourceReports(board, feed.backend)
        self._gaps = GapLog(positions, report=reports.report_now)
        if positions is not None and board is not None:
            positions.on_write = save_reports(board, feed.backend)
        is_open = options.mode == "realtime" and positions is not None
        # Tasks of open micro-batches read what anyone may read; all else is read here.
        self._polled = is_open and isinstance(feed, Polled) and feed.polled
        self._buffer = options.buffer
        self._assignments = Assignments(options.buffer) if self._polled else None
        self._reservoir = Reservoir(
            feed, limit=options.buffer, gaps=self._gaps, watch=reports.report
        )
        roster = Roster(feed)
        self._planner = Planner(
            self._reservoir,
            roster,
            limits=ReadLimits(
                events=options.max_events,
                bytes=options.max_bytes,
                buffer=options.buffer,
                patience=options.patience,
            ),
            positions=positions,
        )
        self._epochs = (
            Epochs(
                self._readers,
                roster,
                positions,
                groups=self._groups,
                seconds=options.epoch,
                slots=self._slots,
                clock=time.monotonic,
            )
            if options.mode == "realtime" and positions is not None
            else None
        )
        self._remaining = Remaining(feed, self._stored)
        reports.show(
            self._readers,
            gaps=self._gaps,
            silences=Silences(self._gaps, options.max_gap),
            remaining=self._remaining,
            durable=self._stored,
        )
        self._mode = options.mode
        self._late = bool(options.late)
        self._server = PageServer(
            _address(options),
            self._draw,
            stored=self._epochs.stored if self._epochs else _no_report,
            marked=self._epochs.marked if self._epochs else _no_report,
            lost=self._lost,
            status=self._assignments.report_rows if self._assignments else _no_report,
            stopping=self._is_closing,
            watch=self._watch if self._epochs else None,
            bind=options.pages.bind,
            port=options.pages.port,
        )

    @classmethod
    def open(cls, options: Mapping[str, str]) -> "Source":
        """Reads the options and opens the positions store, if one is named."""
        sys.excepthook = _ended_quietly
        settings, feed = read_source(options)
        if settings.positions is None:
            return cls(settings, feed, None)
        positions = Positions.of(
            settings.positions,
            settings.pipeline,
            feed.backend,
            settings.checkpoint,
            owner=read_owner(settings.runtime),
        )
        return cls(settings, feed, positions)

    def initial(self) -> Json:
        """The stored bookmarks. A first start begins, and stores where, before anything is read.

        Only a first start may create what is missing at the source: creating it again after a
        stored bookmark would be a silent gap.
        """
        bookmarks = self._begun()
        if self._runtime:
            self._remaining.open()
        if self._epochs is not None:
            self._epochs.begin(bookmarks)
            return {_EPOCH: "0"}
        self._initial = bookmarks_to_json(bookmarks)
        return self._initial

    def _begun(self) -> Bookmarks:
        positions = self._positions
        if positions is not None and positions.is_known():
            return positions.load()
        bookmarks = self._feed.begin()
        if positions is None:
            return bookmarks
        positions.begin(bookmarks)
        return positions.load()

    def latest(self, start: Json) -> Json:
        """The end of the next micro-batch. After the stop file appeared: nothing more, and
        everything up to `start` is saved and acknowledged."""
        durable = self._epochs.durable if self._epochs else bookmarks_of(start)
        self._reports.batch_ended(start)
        if self._is_stopping():
            self._finish(durable)
            return start
        if self._epochs is not None:
            end = {_EPOCH: str(int(start[_EPOCH]) + 1)}
        else:
            end = bookmarks_to_json(self._planner.advance(durable))
            if self._positions is None and start == self._initial:
                end = with_beginning(end, start)
            elif bookmarks_of(end) == durable:
                end = start
        self._reports.batches += end != start
        self._durable = durable
        self._reports.report()
        return end

    def splits(self, start: Json, end: Json) -> "list[Split] | list[Ticket]":
        """The changes between two offsets, or tickets for them."""
        if self._epochs is None:
            between = bookmarks_of(start_of(end, start)), bookmarks_of(end)
        if self._epochs is None and self._mode == "rows" and not self._late:
            return self._planner.splits(*between, most=self._tasks)
        self._server.open()
        address, key = self._server.address, self._server.key
        if self._epochs is not None:
            return [
                Ticket(
                    address=address,
                    key=key,
                    group=epoch.group,
                    groups=epoch.groups,
                    seconds=epoch.seconds,
                    most=epoch.most,
                    feed=pickle.dumps(self._feed) if self._polled else b"",
                    buffer=self._buffer // epoch.groups,
                )
                for epoch in self._epochs.plan(int(end[_EPOCH]))
            ]
        ranges = self._planner.ranges(*between)
        shares = [ranges[first :: self._tasks] for first in range(self._tasks)]
        return [Ticket(address=address, key=key, ranges=tuple(share)) for share in shares if share]

    def _stored(self) -> Bookmarks:
        return self._epochs.durable if self._epochs else self._durable

    def _draw(self, request: Request) -> Draw:
        if self._epochs is not None:
            return self._epochs.draw(request.group, request.groups)
        return PlannedDraw(self._reservoir, request.ranges)

    def stop(self) -> None:
        """Stops reading."""
        self._remaining.close()
        self._server.close()
        self._reservoir.stop(STOPPING)

    def _is_stopping(self) -> bool:
        return self._stop_file is not None and self._stop_file.exists()

    def _is_closing(self) -> bool:
        """Whether an open epoch ends now."""
        return self._is_stopping() or (self._epochs is not None and self._epochs.is_cut_short())

    def _slots(self) -> int | None:
        live = read_task_slots(self._runtime)
        return live if live is not None else self._fixed_slots

    def _watch(self, timeout: float) -> None:
        assert self._epochs is not None
        self._epochs.watch(timeout)
        if self._polled:  # otherwise the threads that read do it
            self._reports.report()

    def _groups(self) -> int:
        """Over how many tasks an open micro-batch is spread: pages that were read here are written
        by one, so that one chain orders the sink's writes."""
        return self._tasks if self._polled else 1

    def _lost(self, found: FoundGap) -> None:
        self._gaps.lost(found.partition, found.gap, found.bookmark, to=found.to)

    @property
    def _tasks(self) -> int:
        """Over how many tasks a planned micro-batch is spread."""
        return max(1, self._slots() or 1)

    def _finish(self, durable: Bookmarks) -> None:
        if self._reports.stopped:
            self._reports.report()  # again, or else a report that was dropped would be waited for
            time.sleep(0.05)  # Spark triggers again at once until the service stops the query
            return
        try:
            if self._epochs is not None:
                self._epochs.settle()
            else:
                self._planner.settle(durable, force=True)
        except Unavailable as error:
            if self._last_save is None:
                self._last_save = time.monotonic() + LAST_SAVE
            if time.monotonic() < self._last_save:
                time.sleep(0.05)  # Spark triggers again at once
                return
            late = self._positions.unsaved(durable) if self._positions else ""
            log.warning("stopped with positions that are not saved (%s): %s", late, error)
        self._reservoir.stop(STOPPING)
        self._durable = durable
        self._reports.stopped = True
        self._reports.report_now()

    @property
    def _readers(self) -> Reservoir | Assignments:
        return self._assignments or self._reservoir


def _address(options: SourceOptions) -> str:
    if options.pages.host:
        return f"tcp:{options.pages.host}"
    return f"unix:{options.runtime}/pages-{os.getpid()}" if options.runtime else "unix:"


def _no_report(_: Position | Bookmarks | Rows) -> None:
    """Tasks of a planned micro-batch report nothing: Spark's next offset says that it is done."""


def _ended_quietly(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Spark stops a source by closing its socket; PySpark's runner then fails to say that it
    noticed, and would print two tracebacks at every stop."""
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
