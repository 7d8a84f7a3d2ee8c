"""Batches as they come -> batches of one origin each, in the source's order, and not too large.

Rows of one batch that were shuffled are sorted; a batch that goes back behind an earlier one of
the same write cannot be mended here, because the earlier one may be stored already.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import IMAGES
from penstock.errors import SettingsError
from penstock.position import Place
from penstock.sinks.encoding import kernel as native
from penstock.sinks.encoding.columns import Column
from penstock.sinks.encoding.message import Origin
from penstock.sinks.encoding.part import Part, place_of

__all__ = ["Order", "behind"]

_ROWS = 1000
_BYTES = 4 << 20


class Order:
    """Knows, for the length of one write, how far each origin has come."""

    def __init__(self) -> None:
        self._last: dict[Origin, Place] = {}

    def arrange(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """The batch in pieces of one origin, sorted, of at most 1,000 rows and some 4 MiB.

        Raises SettingsError when a piece is behind what an earlier batch held.
        """
        whole = Part.seen(batch)
        parts = [whole] if whole else (Part.of(_sorted(one)) for one in _by_origin(batch))
        for part in parts:
            self._check(part)
            yield from _cut(part)

    def _check(self, part: Part) -> None:
        before = self._last.get(part.origin)
        if before is not None and part.first <= before:
            raise SettingsError(
                f"changes of {part.origin.partition} came out of order: {part.first} behind "
                f"{before}",
                hint="let nothing shuffle between the source and the sink (no repartition, join or "
                "union), or sort by partition, cursor and ordinal in one partition",
            )
        self._last[part.origin] = part.last


def behind(batch: pa.RecordBatch, place: Place) -> pa.RecordBatch:
    """The rows behind a place, of a batch that is in order."""
    low, high = 0, len(batch)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if place_of(batch, middle) <= place else (low, middle)
    return batch.slice(low) if low else batch


def _by_origin(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    names = ("backend", "partition")
    values = [batch.column(name).unique() for name in names]
    if all(len(distinct) == 1 for distinct in values):
        yield batch
        return
    for backend in values[0]:
        for partition in values[1]:
            mine = pc.and_(
                pc.equal(batch.column("backend"), backend),
                pc.equal(batch.column("partition"), partition),
            )
            part = batch.filter(mine)
            if len(part):
                yield part


def _sorted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Strictly ascending: a change that is there twice stays once."""
    if _ascending(batch):
        return batch
    keys: list[tuple[str, Any]] = [("cursor", "ascending"), ("ordinal", "ascending")]
    batch = batch.take(pc.sort_indices(batch, sort_keys=keys))
    return batch.filter(pa.array(np.concatenate(([True], _steps(batch)))))


def _ascending(batch: pa.RecordBatch) -> bool:
    return bool(_steps(batch).all())


def _steps(batch: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """For each row but the first, whether it is behind the one before it."""
    cursor, ordinal = batch.column("cursor"), batch.column("ordinal")
    rises = pc.less(cursor[:-1], cursor[1:])
    same = pc.equal(cursor[:-1], cursor[1:])
    further = pc.less(ordinal[:-1], ordinal[1:])
    return np.asarray(pc.or_(rises, pc.and_(same, further)), np.bool_)


def _cut(part: Part) -> Iterator[Part]:
    start, total = 0, len(part)
    while start < total:
        rows = min(_ROWS, total - start)
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
    return sum(kernel.penstock_weave_span(columns.pointer(name), start, rows) for name in IMAGES)


def _size(column: Column) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)
