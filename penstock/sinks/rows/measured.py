"""What is measured of changes that are stored: when they were committed, and of which tables they
are. Of what the kernel made, without Arrow."""

import ctypes
from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.native.batch import Batch, NativeBatch
from penstock.process.table_counts import COUNTED, Counted
from penstock.sinks.rows.alike import Alike
from penstock.sinks.rows.columns import slot

_alike = Alike(COUNTED)
_COMMITTED = slot("committed_at", (), batch=True)


def committed_times(changes: Batch) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Microseconds since 1970 UTC of each change that has a time."""
    if isinstance(changes, NativeBatch) and (column := changes.columns[_COMMITTED]).valid is None:
        memory: Any = (ctypes.c_byte * (8 * changes.rows)).from_address(column.data)
        return np.frombuffer(memory, np.int64).copy()
    found: Any = changes.column("committed_at").drop_null()
    times: np.ndarray[Any, np.dtype[np.int64]] = found.view("int64").to_numpy()
    return times


def counted(changes: NativeBatch) -> Counter[Counted]:
    """How many changes there are of each table and operation."""
    numbers, firsts, key = _alike.of(changes.columns, changes.rows)
    if not key:  # of very many tables
        batch = changes.batch
        return Counter(zip(*(batch.column(name).to_pylist() for name in COUNTED), strict=True))
    sizes = [changes.rows] if len(firsts) == 1 else np.bincount(numbers).tolist()
    return Counter(dict(zip(_names(key), sizes, strict=True)))


@lru_cache(1000)
def _names(key: bytes) -> tuple[Counted, ...]:
    """The values that an `Alike` made a key of."""
    values: list[Any] = []
    at = 0
    while at < len(key):
        size = int.from_bytes(key[at : at + 4], "little", signed=True)
        at += 4
        values.append(None if size < 0 else key[at : at + size].decode())
        at += max(size, 0)
    return tuple(zip(*[iter(values)] * len(COUNTED), strict=True))
