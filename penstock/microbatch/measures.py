"""What a task measures of the pages that it decodes, reported at most twice a second."""

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.model.page import Page
from penstock.ops.reporter import Reporter
from penstock.process.histograms import observed

_EVERY = 0.5  # seconds


class Measures:
    """Of one ticket, whose pages are of one backend. A page only leaves numbers behind: what
    becomes of them is computed when they are reported. The last change stands for its page."""

    def __init__(self, board: Reporter | None) -> None:
        self._board = board
        self._backend = ""
        # Of each page: changes, and seconds from the commit until it was read.
        self._sizes: list[int] = []
        self._delays: list[float] = []
        self._sent = 0.0

    def page(self, page: Page, batches: Sequence[pa.RecordBatch]) -> None:
        """A page and its changes."""
        rows = sum(batch.num_rows for batch in batches)
        if self._board is None or not rows:
            return
        last = next(batch for batch in reversed(batches) if batch.num_rows)
        if not self._backend:
            self._backend = last.column("backend")[-1].as_py()
        self._sizes.append(rows)
        found: Any = last.column("committed_at")[-1]  # `as_py` would make a datetime
        committed: int | None = found.value
        if committed is not None:
            self._delays.append((page.captured_at - committed) / 1e6)

    def report(self) -> None:
        """Reports if it is time to."""
        if time.monotonic() - self._sent >= _EVERY:
            self.report_now()

    def report_now(self) -> None:
        """Reports what was not reported yet."""
        if self._board is not None and self._sizes:
            counts = {**observed("batch", self._sizes), **observed("ingest", self._delays)}
            self._board.add("measure", self._backend, counts)
        self._sizes, self._delays = [], []
        self._sent = time.monotonic()
