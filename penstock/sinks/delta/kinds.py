"""Types of columns by PostgreSQL's names, as far as Delta has them. Pure.

A type that is none of `typed.lines.TYPES` is text, and so are enums, domains, ranges and numbers of
more than 38 digits: one name for a column, whether the log, the catalogue or the table tells it.
"""

from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from penstock.tables.lines import RelationColumn
from penstock.typed.lines import TYPES, arrow_type
from penstock.wire.pgoutput.values import ARRAYS

# What becomes of a value that its column's type cannot hold. `text`: dates and timestamps, which
# have values that no reader's have, are texts.
OnMisfit = Literal["refuse", "null", "text"]

_NUMERIC, _HEADER = 1700, 4  # a modifier is the size of a header more
# Types that changes have as a number.
_NAMES: Mapping[int, str] = {
    16: "boolean", 17: "bytea", 20: "bigint", 21: "smallint", 23: "integer", 26: "oid", 700: "real",
    701: "double precision", 1082: "date", 1114: "timestamp without time zone",
    1184: "timestamp with time zone",
}  # fmt: skip
_TIMES = ("date", "timestamp without time zone", "timestamp with time zone")
_KINDS = {kind: name for name, kind in TYPES.items() if name != "oid"}


def kind_of(column: RelationColumn, on_misfit: OnMisfit = "refuse") -> str:
    """The type that the table has for a source's column, or one of `META`."""
    if column.type == "timestamptz":  # of `META`: a source's has a number
        return "timestamp with time zone"
    kind = kind_named(arrow_type(column.type or _built_in(column.oid, column.modifier)))
    if on_misfit == "text" and (base := kind.removesuffix("[]")) in _TIMES:
        return kind.replace(base, "text")
    return kind


def _built_in(oid: int, modifier: int) -> str:
    if (element := ARRAYS.get(oid)) is not None:
        return f"{_built_in(element, modifier)}[]"
    if oid == _NUMERIC and modifier >= _HEADER:
        # The scale has 11 bits and a sign.
        scale = ((modifier - _HEADER & 0x7FF) ^ 0x400) - 0x400
        return f"numeric({modifier - _HEADER >> 16 & 0xFFFF},{scale})"
    return _NAMES.get(oid, "text")


def kind_named(kind: Any) -> str:
    """The name of an Arrow type, from which `arrow_type` makes it; text for any other."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{kind_named(kind.value_type)}[]"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return _KINDS.get(kind, "text")


def computed_kind(kind: Any) -> str:
    """The name of the type that a table has for what DataFusion computes."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{computed_kind(kind.value_type)}[]"
    if pa.types.is_timestamp(kind):
        return f"timestamp {'without' if kind.tz is None else 'with'} time zone"
    if pa.types.is_unsigned_integer(kind):
        return "bigint"
    return "bytea" if pa.types.is_binary_view(kind) else kind_named(kind)


def is_box_array(column: RelationColumn) -> bool:
    """Whether the elements of its arrays are parted by semicolons."""
    return column.type == "box[]" or column.oid == 1020
