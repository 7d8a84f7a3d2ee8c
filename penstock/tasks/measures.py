"""What a task measures of the pages that it decodes, reported at most twice a second."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.histograms import observed
from penstock.ops.reporter import Reporter

_EVERY = 0.5  # seconds


class Measures:
    """Of one task. A page only leaves numbers behind: what becomes of them is computed when they
    are reported. The last change stands for its page."""

    def __init__(self, board: Reporter | None) -> None:
        self._board = board
        # By backend, of each page: changes, and seconds from the commit until it was read.
        self._pages: defaultdict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
        self._sent = 0.0

    def page(self, batches: Sequence[pa.RecordBatch]) -> None:
        """The changes of one page."""
        rows = sum(batch.num_rows for batch in batches)
        if self._board is None or not rows:
            return
        last = next(batch for batch in reversed(batches) if batch.num_rows)
        sizes, delays = self._pages[last.column("backend")[-1].as_py()]
        sizes.append(rows)
        committed, captured = (_micros(last, name) for name in ("committed_at", "captured_at"))
        if committed is not None and captured is not None:
            delays.append((captured - committed) / 1e6)

    def report(self) -> None:
        """Reports if it is time to."""
        if time.monotonic() - self._sent >= _EVERY:
            self.report_now()

    def report_now(self) -> None:
        """Reports what was not reported yet."""
        if self._board is not None:
            for backend, (sizes, delays) in self._pages.items():
                counts = {**observed("batch", sizes), **observed("ingest", delays)}
                self._board.add("measure", backend, counts)
        self._pages.clear()
        self._sent = time.monotonic()


def _micros(batch: pa.RecordBatch, name: str) -> int | None:
    found: Any = batch.column(name)[-1]  # `as_py` would make a datetime
    value: int | None = found.value
    return value
