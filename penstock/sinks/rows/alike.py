"""Which rows have the same values in some columns, as the kernel tells."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.sinks.rows import kernel as native
from penstock.sinks.rows.columns import Numbers, address, slot

_INTEGERS = ("relation_id",)
_KEY_BYTES = 1 << 16


class _Key(ctypes.Structure):
    """`struct key`."""

    _fields_ = (("size", ctypes.c_int64), ("data", ctypes.c_uint8 * _KEY_BYTES))


class Alike:
    """Of the columns `names` of changes. Used by one thread at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        integers = ctypes.c_int32 * len(names)
        self._slots = integers(*(slot(name, (), batch=True) for name in names))
        self._widths = integers(*(8 if name in _INTEGERS else 0 for name in names))
        self._count = len(names)
        self._key = _Key()
        self._at = ctypes.addressof(self._key)

    def of(self, columns: Any, rows: int) -> tuple[Numbers, Numbers, bytes]:
        """A number for each row, which rows with the same values share; the first row of each
        number; and the values of these as one key, empty where it would be too long: of each value
        an int32, how many bytes it has or -1 for null, and its bytes."""
        both = np.empty(2 * rows, np.int32)
        at = address(both)
        found = native.kernel().penstock_rows_kinds(
            columns, self._slots, self._widths, self._count, rows, at, at + 4 * rows, self._at
        )
        if found < 0:
            raise MemoryError
        key = ctypes.string_at(self._at + _Key.data.offset, self._key.size)
        return both[:rows], both[rows : rows + found], key
