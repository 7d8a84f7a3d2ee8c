"""The columns that a formatter is run over: a batch's, and some more beside them.

Where the compiled kernel is there, it gets the addresses of their bytes once, for all runs.
"""

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model.change import COLUMNS
from penstock.model.errors import SettingsError
from penstock.native import ARROW_ARRAY, NativeColumn
from penstock.native.batch import Batch, NativeBatch, NativeKinds, arrow
from penstock.sinks.rows import kernel as native
from penstock.wire.hash_partitions import MOST

# An Arrow column.
Column = Any
Numbers = np.ndarray[Any, np.dtype[np.int32]]
BINARY = pa.binary()
# The kernel has the change's columns first, then the items of its one list, then what is added.
_SLOTS = {name: number for number, name in enumerate(COLUMNS)}
FIRST_EXTRA = 2 * len(COLUMNS)
ITEMS = len(COLUMNS)  # the kernel's number of the items of the change's one list


class Values:
    """A few values, for `Pick`, `Edge` and `Behind`."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self.values = values
        self._ends = array("i", accumulate(map(len, values), initial=0))
        self._data = array("b", b"".join(values) or b"\0")  # so that it has an address
        ends, data = self._ends.buffer_info()[0], self._data.buffer_info()[0]
        self.native = NativeColumn(None, ends, data, 0, len(values))


class Columns:
    """The columns of a batch of changes, by name, and `extras`: binary or integer columns, numpy's
    int32 or `Values`. Without a batch: extras only."""

    def __init__(self, rows: int, changes: Batch | None = None, **extras: Any) -> None:
        self.rows, self._changes, self.extras = rows, changes, extras
        self.native: Any = None
        if isinstance(changes, NativeBatch):
            assert not extras
            self.native = changes.columns
            return
        batch = changes
        if (kernel := native.kernel()) is None:
            return
        room = (FIRST_EXTRA if batch is not None else 0) + len(extras)
        self.native = (NativeColumn * room)()
        if batch is not None:
            array = (ctypes.c_byte * ARROW_ARRAY)()
            batch._export_to_c(ctypes.addressof(array))
            kernel.penstock_rows_columns(array, self.native)
            # The addresses stay valid for as long as the batch is, which is held here.
            kernel.penstock_rows_release(array)
        for number, one in enumerate(extras.values(), room - len(extras)):
            self.native[number] = _pointed(one)

    @property
    def batch(self) -> pa.RecordBatch | None:
        return None if self._changes is None else arrow(self._changes)

    @property
    def kinds(self) -> NativeKinds | None:
        """What the kernel found of a page's rows, unless that is too much."""
        if isinstance(self._changes, NativeBatch) and self._changes.kinds.key_size:
            return self._changes.kinds
        return None

    def with_extras(self, **extras: Any) -> "Columns":
        """The same and more."""
        more = Columns.__new__(Columns)
        more.rows, more._changes, more.extras = self.rows, self._changes, {**self.extras, **extras}
        more.native = None
        if self.native is not None:
            known = len(self.native)
            more.native = (NativeColumn * (known + len(extras)))()
            ctypes.memmove(more.native, self.native, ctypes.sizeof(self.native))
            for number, one in enumerate(extras.values(), known):
                more.native[number] = _pointed(one)
        return more

    def __getitem__(self, name: str) -> Any:
        if name in self.extras:
            return self.extras[name]
        batch = self.batch
        assert batch is not None
        return batch.column(name)

    def pointer(self, name: str) -> Any:
        """Where the kernel's description of a batch's column is."""
        return ctypes.byref(self.native[_SLOTS[name]])


def slot(name: str, extras: Sequence[str], *, batch: bool) -> int:
    """The kernel's number of a column."""
    if name in extras:
        return (FIRST_EXTRA if batch else 0) + extras.index(name)
    return _SLOTS[name]


def binary(values: Iterable[bytes]) -> Column:
    """A binary column. Values are taken one at a time: a thousand results of orjson that are alive
    together cost five times the time (each is cut out of a larger block of memory)."""
    data, ends = bytearray(), array("i", [0])
    for value in values:
        data += value
        ends.append(len(data))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(BINARY, len(ends) - 1, buffers, 0)


def hashes_of(column: Column) -> Numbers:
    """Each row's hash partition, by `route`; 0 where none is set. Raises SettingsError."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.int32)
    numbers: Numbers = np.asarray(column.fill_null(0) if column.null_count else column, np.int32)
    if numbers.view(np.uint32).max() >= MOST:  # negative ones are large there
        wrong = next(number for number in numbers.tolist() if not 0 <= number < MOST)
        raise SettingsError(
            f"a change has the hash partition {wrong}",
            "rows",
            hint=f"keep the column `route` between 0 and {MOST - 1} in the transform",
        )
    return numbers


def offsets_of(column: Column) -> Any:
    """Where the values of a text or binary column end in its data; first where they begin."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)


def sizes_of(column: Column) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Bytes of each value of a text or binary column."""
    ends = offsets_of(column)
    sizes: np.ndarray[Any, np.dtype[np.int64]] = (ends[1:] - ends[:-1]).astype(np.int64)
    return sizes


def address(numbers: "np.ndarray[Any, Any]") -> int:
    """Where an array's numbers are."""
    return int(numbers.__array_interface__["data"][0])


def _pointed(column: Any) -> NativeColumn:
    if isinstance(column, NativeColumn):
        return column
    if isinstance(column, Values):
        return column.native
    if isinstance(column, np.ndarray):
        return NativeColumn(None, None, address(column), 0, len(column))
    return NativeColumn.of(column)
