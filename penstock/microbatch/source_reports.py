"""What the reader process reports of a backend to the service: sums, partitions, gaps, batches."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.feeds import Feed
from penstock.microbatch.assignments import Assignments
from penstock.microbatch.options import BatchLimits
from penstock.microbatch.ticket import Part
from penstock.model.position import Bookmark, Bookmarks
from penstock.ops.partitions import DISCONNECTED, ENDED, READING
from penstock.ops.reporter import Reporter
from penstock.ops.reports import (
    BatchReport,
    GapReport,
    MeasureReport,
    PartitionReport,
    SpansReport,
)
from penstock.process.histograms import observed
from penstock.reading.gaps import GapLog
from penstock.reading.partition_reports import PartitionReports, summed
from penstock.reading.remaining import Remaining
from penstock.reading.reservoir import Reservoir
from penstock.reading.silences import Silences

# Seconds between two reports, and between two of the same.
REPORT, SAME = 0.5, 2.0
_PLACES = 200  # that one report of a save names

Json = dict[str, Any]


class Reading(Protocol):
    """One of the ways to read a feed: for open micro-batches, or for planned ones."""

    reader: Reservoir | Assignments  # whose status is reported

    @property
    def durable(self) -> Bookmarks:
        """Everything up to here is in the sink."""

    def begin(self, bookmarks: Bookmarks) -> Json:
        """The first offset. Everything up to `bookmarks` is durable."""

    def end_by_itself(self, feed: Feed) -> None:
        """From the next `next` on the source has no more changes than it has then, and `start`
        itself means that all of them are durable. Raises SettingsError where that cannot be."""

    def next(self, start: Json, limits: BatchLimits) -> Json:
        """The end after `start`, up to which all is durable; `start` itself if there is nothing."""

    def parts(self, start: Json, end: Json) -> Sequence[Part]:
        """What the tasks of a micro-batch get."""

    def save(self, start: Json) -> None:
        """Saves and acknowledges what is durable, now. Raises Unavailable, LeaseLost."""

    def connect(self) -> None:
        """In a pause: keeps the connection, or makes it. Raises what reading failed with."""

    def stop(self, timeout: float) -> None:
        """Reads no more; waits at most `timeout` seconds for the source."""


class SourceReports:
    """Reports on `board`; None: each call returns at once. `show` comes before the first `report`.
    `spans`: also what each save covers. `stopped`: everything is saved and nothing more is read."""

    def __init__(self, board: Reporter | None, feed: Feed, *, spans: bool = False) -> None:
        self.batches = 0
        self.stopped = False
        self._board, self._backend, self._feed, self._spans = board, feed.backend, feed, spans
        self._partitions = PartitionReports(board, feed.backend) if board else None
        self._reported = 0.0  # when, by the monotonic clock
        self._moved: Any = None  # what moves, as it was then
        self._reporting = threading.Lock()  # one report at a time
        self._ended: Mapping[str, Any] | None = None  # the offset where the last micro-batch ended
        self._drawn = 0  # changes up to there

    def show(
        self, reading: Reading, gaps: GapLog, silences: Silences, remaining: Remaining
    ) -> None:
        self._reading, self._gaps = reading, gaps
        self._silences, self._remaining = silences, remaining

    def saved(self, seconds: float, error: str, written: Bookmarks) -> None:
        """Reports a save of positions: how long it took, and why it failed ("": it did not)."""
        if self._board is None:
            return
        ended, names = time.time_ns(), list(written)
        for first in range(0, len(names) if self._spans else 0, _PLACES):
            places = {str(name): _place(written[name]) for name in names[first : first + _PLACES]}
            saved = {name: place for name, place in places.items() if place is not None}
            began = ended - int(seconds * 1e9)
            self._board.report(self._backend, SpansReport(saved=saved, began=began, ended=ended))
        report = MeasureReport(
            positions_error=error,
            saved=int(not error),
            save_errors=int(bool(error)),
            histograms=observed("checkpoint", seconds),
        )
        self._board.add(self._backend, report)

    def batch_ended(self, start: Mapping[str, Any]) -> None:
        """Reports, once, how many changes the micro-batch had that ended at this offset."""
        if start == self._ended:
            return
        drawn, self._drawn, self._ended = self._drawn, self._reading.reader.drawn, start
        if self._board is not None:
            self._board.report(self._backend, BatchReport(rows=self._drawn - drawn))

    def report(self, *, now: bool = False) -> None:
        """Reports if it is time to, or `now`; reader threads do not wait for one another here."""
        if self._board is None or self._partitions is None:
            return
        if not self._reporting.acquire(blocking=now):
            return
        try:
            since = time.monotonic() - self._reported
            if now or (since >= REPORT and (self._moves() or since >= SAME)):
                self._reported = time.monotonic()
                self._send(self._board, self._partitions)
        finally:
            self._reporting.release()

    def _moves(self) -> bool:
        """Whether anything was read or stored, came or went since this was asked last."""
        reader, before = self._reading.reader, self._moved
        counts = dict(reader.counts), reader.drawn, self.batches
        self._moved = *counts, reader.connected, self._reading.durable
        return bool(self._moved != before)

    def _send(self, board: Reporter, partitions: PartitionReports) -> None:
        checked = self._silences.checked(self._rows())
        rows = {name: PartitionReport(**row) for name, row in checked.items()}
        reader = self._reading.reader
        status = summed(
            rows,
            self._feed.status(),
            **reader.counts,
            buffer_percent=reader.fill,
            batches=self.batches,
            stopped=self.stopped,
            detail_series=self._feed.detail_series,
        )
        board.report(self._backend, status)
        gaps = {name: GapReport(**row) for name, row in self._gaps.rows().items()}
        board.report_rows(self._backend, gaps)
        partitions.send(rows)

    def _rows(self) -> dict[str, dict[str, Any]]:
        durable = self._reading.durable
        rows: dict[str, dict[str, Any]] = {
            name: {
                **row,
                **self._remaining.of(name),
                "state": READING if row["connected"] else DISCONNECTED,
                "place": _place(durable.get(name)),
            }
            for name, row in self._reading.reader.rows().items()
        }
        ended = {name: each for name, each in durable.items() if each.ended and name not in rows}
        return rows | {name: {"state": ENDED, "place": _place(ended[name])} for name in ended}


def _place(bookmark: Bookmark | None) -> str | None:
    return None if bookmark is None or bookmark.place is None else str(bookmark.place)
