"""Which rows are of one kind, as the kernel tells: of batches that it did not make itself."""

import ctypes
from typing import Any

import numpy as np

from penstock.native.batch import KIND, KIND_SLOTS, KIND_WIDTHS
from penstock.sinks.rows import kernel as native
from penstock.sinks.rows.columns import Numbers, address

_KEY_BYTES = 1 << 16


class _Key(ctypes.Structure):
    """`struct key`."""

    _fields_ = (("size", ctypes.c_int64), ("data", ctypes.c_uint8 * _KEY_BYTES))


class Alike:
    """By the columns KIND of changes. Used by one thread at a time."""

    def __init__(self) -> None:
        self._key = _Key()
        self._at = ctypes.addressof(self._key)

    def of(self, columns: Any, rows: int) -> tuple[Numbers, Numbers, bytes]:
        """A number for each row, which rows with the same values share; the first row of each
        number; and the values of these as one key, empty where it would be too long: of each value
        an int32, how many bytes it has or -1 for null, and its bytes."""
        both = np.empty(2 * rows, np.int32)
        at = address(both)
        found = native.kernel().penstock_rows_kinds(
            columns, KIND_SLOTS, KIND_WIDTHS, len(KIND), rows, at, at + 4 * rows, self._at
        )
        if found < 0:
            raise MemoryError
        key = ctypes.string_at(self._at + _Key.data.offset, self._key.size)
        return both[:rows], both[rows : rows + found], key
