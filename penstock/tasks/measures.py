"""What a task measures of the pages that it decodes, reported at most twice a second."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import pyarrow as pa

from penstock.histograms import observed
from penstock.ops.reporter import Reporter

__all__ = ["Measures"]

_EVERY = 0.5  # seconds


class Measures:
    """Of one task. Costs microseconds a page: the last change stands for its page."""

    def __init__(self, board: Reporter | None) -> None:
        self._board = board
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._sent = 0.0

    def page(self, batches: Sequence[pa.RecordBatch]) -> None:
        """The changes of one page."""
        rows = sum(batch.num_rows for batch in batches)
        if self._board is None or not rows:
            return
        last = next(batch for batch in reversed(batches) if batch.num_rows)
        counts = self._counts[last.column("backend")[-1].as_py()]
        counts.update(observed("batch", rows))
        committed, captured = (_micros(last, name) for name in ("committed_at", "captured_at"))
        if committed is not None and captured is not None:
            counts.update(observed("ingest", (captured - committed) / 1e6))
        if time.monotonic() - self._sent >= _EVERY:
            self.send()

    def send(self) -> None:
        """Reports what was not reported yet."""
        if self._board is not None:
            for backend, counts in self._counts.items():
                self._board.add("measure", backend, counts)
        self._counts.clear()
        self._sent = time.monotonic()


def _micros(batch: pa.RecordBatch, name: str) -> int | None:
    value: int | None = batch.column(name)[-1].cast(pa.int64()).as_py()
    return value
