"""How long changes take from the commit at the source until they are stored."""

import time
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.histograms import observed

__all__ = ["PublishLatency"]


class PublishLatency:
    """Of one write. `fields`: the percentiles of the last measurement, in milliseconds."""

    def __init__(self) -> None:
        self.fields: dict[str, float] = {}
        self._committed: list[pa.Array[Any]] = []  # times of commit, since the last measurement
        self._counts: dict[str, float] = {}

    def sent(self, batch: pa.RecordBatch) -> None:
        """These changes are published."""
        self._committed.append(batch.column("committed_at"))

    def measure(self) -> None:
        """From the commit at the source until now, over what was sent since the last time: an upper
        bound, because the oldest of it was acknowledged before."""
        parts = [part.drop_null().cast(pa.int64()).to_numpy() for part in self._committed]
        self._committed.clear()
        if sum(map(len, parts)):
            waited = time.time() * 1e3 - np.concatenate(parts) / 1e3
            p50, p99 = np.percentile(waited, (50, 99))
            self._counts = observed("publish", waited / 1e3)
            self.fields = {
                "latency_p50_ms": round(float(p50), 1),
                "latency_p99_ms": round(float(p99), 1),
            }

    def take_counts(self) -> dict[str, float]:
        """The histogram's counts since the last call."""
        counts, self._counts = self._counts, {}
        return counts
