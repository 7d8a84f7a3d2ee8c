"""Gathers small batches into one, which costs about as much as one of them to encode and send."""

import math

import pyarrow as pa

from penstock.sinks.flow.pressure import Pace
from penstock.sinks.settings import BatchSettings

_USUAL = Pace()
# What is gathered at most for several messages at once.
_ROWS, _BYTES = 8000, 4 << 20


class Gather:
    """Batches of one schema, in order. Pure: `now` is seconds on the caller's clock."""

    def __init__(self, limits: BatchSettings) -> None:
        self._limits = limits
        self._batches: list[pa.RecordBatch] = []
        self._since = 0.0
        self._bytes = 0
        self.rows = 0
        # Among how many messages at once the changes are divided (hash partitions, tables): the
        # limits are those of one message. Only waiting for it is bounded by what it was.
        self.spread = 1

    def takes(self, batch: pa.RecordBatch) -> bool:
        """False when a batch has another schema: its images are encoded otherwise."""
        return not self._batches or self._batches[0].schema.equals(batch.schema)

    def add(self, batch: pa.RecordBatch, now: float) -> None:
        """Takes a batch that `takes` accepted."""
        if not self._batches:
            self._since = now
        self._batches.append(batch)
        self.rows += len(batch)
        # A batch's own `nbytes` looks at each column's slices: 50 times dearer.
        self._bytes += batch.get_total_buffer_size()

    def is_due(self, now: float, pace: Pace = _USUAL) -> bool:
        """True when there is enough (changes or bytes), or its first has waited long enough."""
        return self.is_full(pace) or (
            self.rows > 0 and now - self._since >= self._limits.max_wait * pace.patience
        )

    def is_full(self, pace: Pace = _USUAL) -> bool:
        """True when there is enough (changes or bytes)."""
        size, most = self._limits.max_size, self._limits.max_bytes
        if self.spread > 1:
            size = max(size, min(size * self.spread, _ROWS))
            most = max(most, min(most * self.spread, _BYTES))
        return self.rows > 0 and (
            self.rows * pace.divisor >= size or self._bytes * pace.divisor >= most
        )

    def due_in(self, now: float, pace: Pace = _USUAL) -> float:
        """Seconds until what is there has waited long enough; endless when there is nothing."""
        if not self._batches:
            return math.inf
        return max(0.0, self._since + self._limits.max_wait * pace.patience - now)

    def take(self) -> list[pa.RecordBatch]:
        """Everything, as one batch (or none), and begins anew."""
        batches, self._batches = self._batches, []
        self.rows = self._bytes = 0
        if len(batches) < 2:
            return batches
        return pa.Table.from_batches(batches).combine_chunks().to_batches()
