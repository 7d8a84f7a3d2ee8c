"""Batches -> parts in the source's order, and not too large.

Rows of one batch that were shuffled are sorted; a batch with changes before those of an earlier
batch of the same write is refused, because the earlier ones may be stored already.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import IMAGES
from penstock.model.errors import SettingsError
from penstock.model.position import Place
from penstock.sinks.encoding import kernel as native
from penstock.sinks.encoding.columns import Column
from penstock.sinks.encoding.message import Origin, OriginRun
from penstock.sinks.encoding.part import Part

_BYTES = 4 << 20
_KEYS = ("backend", "partition", "cursor", "ordinal")


class Order:
    """Keeps the last place of each origin, for the length of one write. Parts have at most `rows`
    rows."""

    def __init__(self, rows: int = 1000) -> None:
        self._rows = rows
        self._last: dict[Origin, Place] = {}

    def arrange(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """The batch in parts that are in order, of at most some 4 MiB.

        Raises SettingsError when a change is before one of an earlier batch.
        """
        part = Part.seen(batch)
        if part is None or _out_of_order(part.runs, {}) is not None:
            part = Part.of(_sorted(batch))
        late = _out_of_order(part.runs, self._last)
        if late is not None:
            origin = late.origin
            raise SettingsError(
                f"changes of {origin.partition} are out of order: {late.first} after "
                f"{self._last[origin]}",
                hint="let nothing shuffle between the source and the sink (no repartition, join or "
                "union), or sort by partition, cursor and ordinal in one partition",
            )
        yield from _cut(part, self._rows)


def _out_of_order(runs: tuple[OriginRun, ...], last: dict[Origin, Place]) -> OriginRun | None:
    """The first run that is not after the last place of its origin; notes the places in `last`."""
    for run in runs:
        before = last.get(run.origin)
        if before is not None and run.first <= before:
            return run
        last[run.origin] = run.last
    return None


def _sorted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """By origin and place; a change that is there twice stays once."""
    keys: list[tuple[str, Any]] = [(name, "ascending") for name in _KEYS]
    batch = batch.take(pc.sort_indices(batch, sort_keys=keys))
    differ = [
        np.asarray(pc.not_equal(column[:-1], column[1:]), np.bool_)
        for column in map(batch.column, _KEYS)
    ]
    return batch.filter(pa.array(np.concatenate(([True], np.logical_or.reduce(differ)))))


def _cut(part: Part, most: int) -> Iterator[Part]:
    start, total = 0, len(part)
    while start < total:
        rows = min(most, total - start)
        while rows > 1 and _weight(part, start, rows) > _BYTES:
            rows //= 2
        yield part if rows == total else Part.of(part.batch.slice(start, rows))
        start += rows


def _weight(part: Part, start: int, rows: int) -> int:
    if part.weight is not None and rows == len(part):
        return part.weight
    kernel, columns = native.kernel(), part.columns
    if kernel is None:
        return sum(_size(columns[name].slice(start, rows)) for name in IMAGES)
    return sum(kernel.penstock_rows_span(columns.pointer(name), start, rows) for name in IMAGES)


def _size(column: Column) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)
