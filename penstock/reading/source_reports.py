"""What the reader process reports of a backend to the service: sums, partitions, gaps, batches."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.ops.partitions import DISCONNECTED, ENDED, READING, PartitionReports, Row, summed
from penstock.ops.reporter import Reporter
from penstock.position import Bookmark, Bookmarks
from penstock.reading.assignments import Assignments
from penstock.reading.gap_log import GapLog
from penstock.reading.remaining import Remaining
from penstock.reading.silences import Silences
from penstock.reservoir.reservoir import Reservoir

__all__ = ["SourceReports"]

# Seconds between two reports.
REPORT = 0.5


class SourceReports:
    """Reports on `board`; None: there is no service, and each call returns at once. `show` comes
    before the first `report`. `readers` is what reads the partitions: the reservoir, or tasks."""

    def __init__(self, board: Reporter | None, backend: str) -> None:
        self._board, self._backend = board, backend
        self._partitions = PartitionReports(board, backend) if board else None
        self._reported = 0.0
        self._reporting = threading.Lock()
        self._drawn = 0
        self._ended: Mapping[str, Any] | None = None
        self.batches = 0
        self.stopped = False

    def show(
        self,
        readers: Reservoir | Assignments,
        *,
        gaps: GapLog,
        silences: Silences,
        remaining: Remaining,
        durable: Callable[[], Bookmarks],
    ) -> None:
        """What is reported on."""
        self._readers = readers
        self._gaps, self._silences = gaps, silences
        self._remaining, self._durable = remaining, durable

    def report(self) -> None:
        """Reports if it is time to; reader threads do not wait for one another here."""
        self._report(now=False)

    def report_now(self) -> None:
        """Reports at once."""
        self._report(now=True)

    def batch_ended(self, start: Mapping[str, Any]) -> None:
        """Tells, once, how many changes the micro-batch had that ended at this offset."""
        if start == self._ended:
            return
        drawn, self._drawn, self._ended = self._drawn, self._readers.drawn, start
        if self._board is not None:
            self._board.report("batch", self._backend, {"rows": self._drawn - drawn})

    def _report(self, *, now: bool) -> None:
        if self._board is None or self._partitions is None:
            return
        if not self._reporting.acquire(blocking=now):
            return
        try:
            if now or time.monotonic() - self._reported >= REPORT:
                self._reported = time.monotonic()
                self._send(self._board, self._partitions)
        finally:
            self._reporting.release()

    def _send(self, board: Reporter, partitions: PartitionReports) -> None:
        rows = self._silences.look(self._rows())
        status = {
            **summed(rows),
            **self._readers.counts,
            "buffer_percent": self._readers.fill,
            "batches": self.batches,
            "stopped": self.stopped,
        }
        board.report("source", self._backend, status)
        board.report_rows("gap", self._backend, self._gaps.rows())
        partitions.send(rows)

    def _rows(self) -> dict[str, Row]:
        durable = self._durable()
        rows: dict[str, Row] = {
            name: {
                **row,
                **self._remaining.of(name),
                "state": READING if row["connected"] else DISCONNECTED,
                "place": _place(durable.get(name)),
            }
            for name, row in self._readers.rows().items()
        }
        ended = {name: each for name, each in durable.items() if each.ended and name not in rows}
        return rows | {name: {"state": ENDED, "place": _place(ended[name])} for name in ended}


def _place(bookmark: Bookmark | None) -> str | None:
    return None if bookmark is None or bookmark.place is None else str(bookmark.place)
