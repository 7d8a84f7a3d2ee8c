"""What is measured of changes that are stored: how long they took, and of which tables they are. Of
what the kernel made, without Arrow."""

import ctypes
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from penstock.native.batch import KIND, Batch, NativeBatch, arrow
from penstock.process.table_counts import COUNTED, Counted
from penstock.sinks.rows.columns import slot

Waited = np.ndarray[Any, np.dtype[np.float64]]

_COMMITTED = slot("committed_at", (), batch=True)
_AT = [KIND.index(name) for name in COUNTED]
_MEASURED = ("committed_at", *COUNTED)


class Sample(NamedTuple):
    """What is measured of a batch: when its rows were committed (int64 each, microseconds since
    1970), the key of their kinds, and how many are of each kind."""

    rows: int
    times: bytes
    key: bytes
    sizes: list[int]


Sampled = Sample | pa.RecordBatch


def sampled(changes: Batch) -> Sampled:
    """The same of changes that the kernel made; of others, and of rows without a time or of very
    many kinds, the columns. A batch itself would be kept until it is measured."""
    if isinstance(changes, NativeBatch):
        committed, kinds, rows = changes.columns[_COMMITTED], changes.kinds, changes.rows
        if committed.valid is None and (key := kinds.key):
            return Sample(rows, ctypes.string_at(committed.data, 8 * rows), key, kinds.sizes)
    return arrow(changes).select(_MEASURED)


def waited(stored: Iterable[tuple[float, Iterable[Sampled]]]) -> Waited:
    """Milliseconds of each change that has a time, from the commit at the source until it was
    stored. `stored`: when (seconds since 1970), and what."""
    found: list[Waited] = []
    samples: list[tuple[float, Sample]] = []  # one array is made of all
    for now, several in stored:
        for one in several:
            if isinstance(one, Sample):
                samples.append((now, one))
            else:
                times: Any = one.column("committed_at").drop_null()
                found.append(now * 1e3 - times.view("int64").to_numpy() / 1e3)
    if samples:
        committed = np.frombuffer(b"".join([one.times for _, one in samples]), np.int64)
        ends = np.array([now for now, _ in samples]) * 1e3
        found.append(np.repeat(ends, [one.rows for _, one in samples]) - committed / 1e3)
    return np.concatenate(found) if found else np.empty(0)


def counted(samples: Iterable[Sample]) -> Counter[Counted]:
    """How many changes there are of each table and operation."""
    # By key: the sizes of its kinds, of one sample after the other.
    sizes: dict[bytes, list[int]] = {}
    for one in samples:
        sizes.setdefault(one.key, []).extend(one.sizes)
    found: Counter[Counted] = Counter()
    for key, all_sizes in sizes.items():
        names = _names(key)
        for number, name in enumerate(names):
            found[name] += sum(all_sizes[number :: len(names)])
    return found


@lru_cache(1000)
def _names(key: bytes) -> tuple[Counted, ...]:
    """What each kind of a key is counted by."""
    values: list[bytes | None] = []
    at = 0
    while at < len(key):
        size = int.from_bytes(key[at : at + 4], "little", signed=True)
        at += 4
        values.append(None if size < 0 else key[at : at + size])
        at += max(size, 0)
    texts = [None if value is None else value.decode(errors="replace") for value in values]
    kinds = (texts[start : start + len(KIND)] for start in range(0, len(texts), len(KIND)))
    named = tuple(tuple(kind[number] for number in _AT) for kind in kinds)
    return cast("tuple[Counted, ...]", named)
