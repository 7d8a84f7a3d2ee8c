"""The compiled kernels, where there are any: `library()` or None.

Everything works without them, only slower: message bodies are equal in value, all else is the same
byte for byte. A kernel is plain C behind ctypes (which releases the GIL, unless it is asked not
to): no Python object ever crosses, only buffers and numbers.
PENSTOCK_NATIVE=off turns them off; PENSTOCK_NATIVE=/some/file.so takes another build.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

# Goes up with every change of a function's signature or of a structure that crosses; native.h has
# the same. A library that was made from other sources is then not used.
ABI = 16

ARROW_ARRAY = 80  # bytes of `struct ArrowArray`

_LIBRARY = "libpenstock.so.1"

_OFF = ("off", "0", "false", "no")


class NativeColumn(ctypes.Structure):
    """`struct column` of columns.h."""

    _fields_ = (
        ("valid", ctypes.c_void_p), ("offsets", ctypes.c_void_p), ("data", ctypes.c_void_p),
        ("offset", ctypes.c_int64), ("length", ctypes.c_int64),
    )  # fmt: skip

    @classmethod
    def of(cls, column: Any) -> "NativeColumn":
        """Where the bytes of an Arrow column are, for as long as it is held."""
        valid, *ends, data = column.buffers()
        return cls(
            valid.address if column.null_count else None,
            ends[0].address if ends else None,
            None if data is None else data.address,
            column.offset,
            len(column),
        )


@cache
def library() -> ctypes.CDLL | None:
    """The shared library; None if it was not built, is of another version, or is turned off."""
    return _load()[0]


@cache
def held_library() -> ctypes.PyDLL | None:
    """The same, whose functions keep the GIL: for calls that are over sooner than another thread
    would give it back."""
    found = library()
    return None if found is None else ctypes.PyDLL(found._name)


def describe() -> str:
    """Whether the kernels are used, and if not, why: for the log and `penstock check`."""
    return _load()[1]


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    asked = os.environ.get("PENSTOCK_NATIVE", "")
    if asked.lower() in _OFF:
        return None, "turned off by PENSTOCK_NATIVE"
    path = Path(asked) if "/" in asked else Path(__file__).with_name(_LIBRARY)
    try:
        found = ctypes.CDLL(str(path))
        found.penstock_abi.argtypes = []
        found.penstock_abi.restype = ctypes.c_int32
        abi = found.penstock_abi()
    except (OSError, AttributeError):
        return None, "not built: everything works, more slowly"
    if abi != ABI:
        return None, f"built for another version ({abi} instead of {ABI}): install penstock again"
    return found, "used"
