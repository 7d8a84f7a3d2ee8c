"""The source in the reader process: offsets as JSON, positions saved, reports to the service.

A reading, for open micro-batches or for planned ones, lives here, in the one Python process that
Spark keeps for a streaming source. It reports to the service through a folder: the board's socket,
and a stop file.
"""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from penstock.feeds import Feed
from penstock.microbatch.first_rows import AfterFirstRows
from penstock.microbatch.open import assigned, buffered
from penstock.microbatch.options import BatchLimits, SourceOptions, read_source
from penstock.microbatch.planned import PlannedReading
from penstock.microbatch.run_folder import BOARD, is_paused, is_stopping, read_owner
from penstock.microbatch.source_reports import Json, Reading, SourceReports
from penstock.microbatch.ticket import Part
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmarks
from penstock.ops.reporter import Reporter
from penstock.reading.announced import Announced
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.remaining import Remaining
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster
from penstock.reading.silences import Silences

log = logging.getLogger("penstock")

# Seconds: for how long a stop tries to save positions, and how long it waits for the source.
LAST_SAVE = STOPPING = 5.0
_BACKLOG = ("lag", "lag_unit", "lag_bytes", "lag_seconds")
# Seconds between two looks whether a pause is over.
_PAUSED = 0.5


class Source:
    """One feed under Spark; made by `open`, used by one thread."""

    def __init__(self, options: SourceOptions, feed: Feed, positions: Positions | None) -> None:
        self._feed, self._positions = feed, positions
        self._give_up: float | None = None  # when a stop ends without a save, once one has failed
        self._runtime, self._query = options.runtime, options.query
        self._limits, self._has_rows = options.limits, options.snapshot == "initial"
        board = Reporter(Path(options.runtime) / BOARD) if options.runtime else None
        self._reports = reports = SourceReports(board, feed, spans=options.reports.spans)
        if positions is not None:
            positions.on_write = reports.saved
        gaps = GapLog(positions, report=partial(reports.report, now=True))
        self._reading: Reading
        if options.mode == "rows" or positions is None:
            reservoir = Reservoir(feed, limit=options.buffer, gaps=gaps, watch=reports.report)
            planned = PlannedReading(reservoir, Roster(feed), options, positions)
            self._reading = AfterFirstRows(planned, feed) if self._has_rows else planned
        else:
            # Tasks of open micro-batches read what anyone may read; all else is read here.
            make = assigned if feed.polled else buffered
            self._reading = make(feed, options, positions, gaps, reports.report)
        self._remaining = Remaining(feed, self._reading)
        reports.show(self._reading, gaps, Silences(gaps, options.max_gap), self._remaining)

    @classmethod
    def open(cls, options: Mapping[str, str]) -> "Source":
        """Reads the options and opens the positions store, if one is named."""
        sys.excepthook = _ended_quietly
        settings, feed = read_source(options)
        if (store := settings.target.schemas(settings.pipeline)) is not None:
            feed.announce_schemas(Announced(store))
        feed.mark_changes()
        if settings.images == "text":
            feed.number_columns()
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
        stored bookmark would be a silent gap."""
        positions = self._positions
        begun: Bookmarks = {} if positions is None else positions.load()
        if not begun:
            # With its rows first a query has the changes from now on, wherever `start` is.
            begun = self._feed.begin("now" if self._has_rows else None)
            begun = begun if positions is None else positions.begin(begun)
        if self._runtime:
            self._remaining.open()
        return self._reading.begin(begun)

    def end_by_itself(self) -> None:
        """The query is to end when it has what the source has at its first micro-batch."""
        self._reading.end_by_itself(self._feed)

    def newest(self) -> Json:
        """Of each partition, as far as the source says so: where its log ends (`end`), and how much
        of it comes after what is durable (`lag` in a `lag_unit`, `lag_bytes`, `lag_seconds`)."""
        rows = self._reading.reader.rows().items()
        return {
            name: {"end": row.get("current"), **self._remaining.of(name)}
            | {key: row[key] for key in _BACKLOG if row.get(key) is not None}
            for name, row in rows
            if row["connected"]
        }

    def latest(self, start: Json, limits: BatchLimits | None = None) -> Json:
        """The end of the next micro-batch. After the stop file appeared: nothing more, and
        everything up to `start` is saved and acknowledged."""
        self._reports.batch_ended(start)
        if is_stopping(self._runtime, self._query):
            self._finish(start)
            return start
        if is_paused(self._runtime, self._feed.backend):
            with suppress(Unavailable):  # tried again
                self._reading.save(start)
                if not self._feed.polled:  # what is polled keeps no connection
                    self._reading.connect()
            self._reports.report()
            time.sleep(_PAUSED)
            return start
        end = self._reading.next(start, limits or self._limits)
        self._reports.batches += end != start
        self._reports.report()
        return end

    def splits(self, start: Json, end: Json) -> Sequence[Part]:
        return self._reading.parts(start, end)

    def stop(self) -> None:
        self._remaining.close()
        self._reading.stop(STOPPING)

    def _finish(self, start: Json) -> None:
        if self._reports.stopped:
            self._reports.report()  # again, or else a report that was dropped would be waited for
            time.sleep(0.05)  # Spark triggers again at once until the service stops the query
            return
        try:
            self._reading.save(start)
        except Unavailable as error:
            if self._give_up is None:
                self._give_up = time.monotonic() + LAST_SAVE
            if time.monotonic() < self._give_up:
                time.sleep(0.05)  # Spark triggers again at once
                return
            late = self._positions.unsaved(self._reading.durable) if self._positions else ""
            log.warning("stopped with positions that are not saved (%s): %s", late, error)
        self._reading.stop(STOPPING)
        self._reports.stopped = True
        self._reports.report(now=True)


def _ended_quietly(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Spark stops a source by closing its socket; PySpark's runner then fails to say that it
    noticed, and would print two tracebacks at every stop."""
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
