"""The compiled kernel's functions and structures (`penstock/native/*.c`), or none."""

import ctypes
from functools import cache
from typing import Any

from penstock.native import library

UNKNOWN = -(1 << 63)  # what the kernel returns when it has to be done the other way
_ADDRESS, _NUMBER, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class NativePiece(ctypes.Structure):
    """`struct piece`."""

    _fields_ = (
        ("kind", ctypes.c_int32), ("a", ctypes.c_int32), ("b", ctypes.c_int32),
        ("form", ctypes.c_int32), ("data", ctypes.c_char_p), ("size", ctypes.c_int64),
    )  # fmt: skip


class NativeFormatting(ctypes.Structure):
    """`struct formatting`."""

    _fields_ = (("pieces", ctypes.POINTER(NativePiece)), ("count", _NUMBER))


class NativeSizes(ctypes.Structure):
    """`struct sizes`."""

    _fields_ = (("all", _NUMBER), ("most", _NUMBER))


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "format_bound": (_NUMBER, (_ADDRESS, _INT, _ADDRESS, _NUMBER)),
    "format": (_NUMBER, (_ADDRESS, _INT, _ADDRESS, _NUMBER, _NUMBER, _ADDRESS, _ADDRESS)),
    "format_all_bound": (_NUMBER, (_ADDRESS, _INT, _ADDRESS, _NUMBER)),
    "format_all": (_NUMBER, (_ADDRESS, _INT, _ADDRESS, _NUMBER, _ADDRESS, _ADDRESS, _ADDRESS)),
    "rows_columns": (None, (_ADDRESS, _ADDRESS)),
    "rows_release": (None, (_ADDRESS,)),
    "rows_kinds": (
        _NUMBER, (_ADDRESS, _ADDRESS, _ADDRESS, _INT, _NUMBER, _ADDRESS, _ADDRESS, _ADDRESS),
    ),
    "rows_survey": (None, (_ADDRESS, _ADDRESS, _NUMBER, _ADDRESS)),
    "rows_runs": (_NUMBER, (_ADDRESS, _ADDRESS, _NUMBER, _ADDRESS)),
    "rows_span": (_NUMBER, (_ADDRESS, _NUMBER, _NUMBER)),
    "convert": (_INT, (_ADDRESS, _ADDRESS)),
}  # fmt: skip


@cache
def kernel() -> Any:
    """The library with its functions declared, or None."""
    if (found := library()) is None:
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(found, f"penstock_{name}", None)
        if function is None:  # built from older code
            return None
        function.restype, function.argtypes = result, arguments
    return found
