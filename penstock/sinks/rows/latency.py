"""How long changes take from the commit at the source until they are stored."""

import time
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.process.histograms import observed

# Seconds between two measurements while changes come, and changes: a column keeps its whole batch.
_EVERY, _ROWS = 0.5, 10_000


class PublishLatency:
    """Of one write. `fields`: the percentiles of the last measurement, in milliseconds."""

    def __init__(self) -> None:
        self.fields: dict[str, float] = {}
        # Times of commit: since the last call of `stored`, and before each since `measure`.
        self._sent: list[pa.Array[Any]] = []
        self._stored: list[tuple[float, list[pa.Array[Any]]]] = []
        self._rows = 0  # in both
        self._measured = 0.0
        self._counts: dict[str, float] = {}

    def sent(self, batch: pa.RecordBatch) -> None:
        """These changes are published."""
        self._sent.append(batch.column("committed_at"))
        self._rows += len(batch)

    def stored(self) -> None:
        """What was sent counts as stored now: an upper bound, because the oldest of it was
        acknowledged before. Measures if it is time to: a page would wait for it."""
        if self._sent:
            self._stored.append((time.time(), self._sent))
            self._sent = []
        if self._rows >= _ROWS or time.monotonic() - self._measured >= _EVERY:
            self.measure()

    def measure(self) -> None:
        """From the commit at the source until it was stored, since the last time."""
        self._measured = time.monotonic()
        waited = [
            now * 1e3 - part.drop_null().cast(pa.int64()).to_numpy() / 1e3
            for now, parts in self._stored
            for part in parts
        ]
        self._stored.clear()
        self._rows = 0
        if sum(map(len, waited)):
            all_waited = np.concatenate(waited)
            p50, p99 = np.percentile(all_waited, (50, 99))
            self._counts = observed("publish", all_waited / 1e3)
            self.fields = {
                "latency_p50_ms": round(float(p50), 1),
                "latency_p99_ms": round(float(p99), 1),
            }

    def take_counts(self) -> dict[str, float]:
        """The histogram's counts since the last call."""
        counts, self._counts = self._counts, {}
        return counts
