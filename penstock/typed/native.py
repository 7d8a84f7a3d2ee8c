"""Lines of COPY -> Arrow columns by the native library, where all values are ordinary."""

import ctypes
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from pyarrow import types

from penstock.native import library

# The kinds of native/typed.c; other types are converted from their text.
_TEXT, _DECIMAL = 0, 8
_KINDS = {
    pa.string(): _TEXT, pa.bool_(): 1, pa.int16(): 2, pa.int32(): 3, pa.int64(): 4,
    pa.date32(): 5, pa.timestamp("us"): 6, pa.timestamp("us", tz="UTC"): 7, pa.binary(): 9,
    pa.float64(): 10,
}  # fmt: skip
_UNWANTED = -1


class _Wanted(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in ("kind", "delimiter", "precision", "scale"))


class _Array(ctypes.Structure):
    """Arrow's struct ArrowArray: 5 numbers and 5 pointers."""

    _fields_ = (("numbers", ctypes.c_int64 * 5), ("pointers", ctypes.c_void_p * 5))


def read_natively(
    lines: Any, names: Sequence[str], wanted: pa.Schema, boxes: Collection[str]
) -> list[Any] | None:
    """As `lines.read_lines`, of bytes or a column without nulls; None without the
    library, and where any value is not ordinary: too large, infinite, an array of arrays."""
    nested = (types.is_list(each) and types.is_nested(each.value_type) for each in wanted.types)
    if (read := _function()) is None or any(nested):
        return None
    fields = {field.name: field for field in wanted}
    here = [fields[name] for name in names if name in fields]
    plan = (_Wanted * len(names))(*(
        _plan(fields[name].type, ";" if name in boxes else ",")
        if name in fields else _Wanted(kind=_UNWANTED)
        for name in names
    ))  # fmt: skip
    made = _Array()
    if isinstance(lines, bytes):
        given: tuple[Any, ...] = (lines, len(lines), None, 0)
    else:
        _, ends, data = lines.buffers()
        given = (data.address, 0, ends.address + 4 * lines.offset, len(lines))
    if read(*given, plan, len(names), ctypes.byref(made)):
        return None
    schema = pa.schema([(field.name, _read_as(field.type)) for field in here])
    batch = pa.RecordBatch._import_from_c(ctypes.addressof(made), schema)
    try:
        return [batch.column(field.name).cast(field.type) for field in wanted]
    except pa.ArrowInvalid:
        return None


def _read_as(kind: Any) -> Any:
    """What the library makes of a column."""
    if types.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    return kind if kind in _KINDS or types.is_decimal128(kind) else pa.string()


def _plan(kind: Any, delimiter: str) -> _Wanted:
    if types.is_list(kind):
        plan = _plan(kind.value_type, delimiter)
        plan.delimiter = ord(delimiter)
        return plan
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return _Wanted(kind=_DECIMAL, precision=kind.precision, scale=kind.scale)
    return _Wanted(kind=_KINDS.get(kind, _TEXT))


@cache
def _function() -> Any:
    if (functions := library()) is None:
        return None
    function = functions.penstock_typed_lines
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p,
        ctypes.c_int32, ctypes.c_void_p,
    ]  # fmt: skip
    function.restype = ctypes.c_int32
    return function
