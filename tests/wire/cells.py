"""Cells as servers send them, and nearly so: strategies for each kind of type."""

import json
import os
import struct
from typing import Any

from hypothesis import strategies as st


def examples(count: int) -> int:
    """How many examples a property is tried on; PENSTOCK_EXAMPLES=20 looks that much longer."""
    return max(2, round(count * float(os.environ.get("PENSTOCK_EXAMPLES", "1"))))


_DIGITS = st.text("0123456789", min_size=1, max_size=24)


def _float4(value: float) -> str:
    return repr(struct.unpack("f", struct.pack("f", value))[0])


def _decimal(sign: str, whole: str, fraction: str, exponent: int | None) -> str:
    tail = "" if exponent is None else f"e{exponent:+03d}"
    return f"{sign}{whole}{'.' if fraction else ''}{fraction}{tail}"


_DECIMALS = st.builds(
    _decimal, st.sampled_from(["", "-"]), _DIGITS, _DIGITS | st.just(""),
    st.none() | st.integers(-330, 330) | st.integers(-30, 30),
)  # fmt: skip
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_NUMBERS = st.one_of(
    _FLOATS.map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(_float4),
    st.floats(-1e17, 1e17).map(lambda value: f"{value:.17g}"),
    st.floats(-1000, 1000).map(lambda value: f"{value:.16g}"),
    st.floats(-1000, 1000).map(lambda value: f"{value / 7:.15g}"),
    _DECIMALS,
    # In the middle between two shortest decimals; the last that is no exponent; the ends.
    st.sampled_from(
        [
            "5.960464477539063e-08",
            "5.9604644775390625e-08",
            "9999999999999998",
            "1e+16",
            "1e-05",
            "9.999999999999999e-06",
            "5e-324",
            "1e+400",
            "2.2250738585072014e-308",
            "1.7976931348623157e+308",
        ]
    ),
)
_NO_NUMBERS = st.sampled_from(["NaN", "Infinity", "-Infinity", "nan", "-0"])
_INTEGERS = st.one_of(
    st.integers(-(2**66), 2**66), st.integers(-300, 300),
    st.sampled_from([2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 65535, 65536]),
).map(str)  # fmt: skip
_TEXTS = st.text(max_size=40) | st.text('"\\\n\x00\x1f\x7fé€😀a', max_size=300)

_KEYS = st.text('ab"é\\', max_size=3)
_PLAIN = st.one_of(
    st.sampled_from(["null", "true", "false", "-0", "0", "-0.0", "1e5", "1E+2", "1.50", "01"]),
    _NUMBERS,
    _INTEGERS,
    _TEXTS.map(json.dumps),
    _TEXTS.map(lambda value: json.dumps(value, ensure_ascii=False)),
    st.sampled_from(["1.", '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\/"', '"\\x"']),
    st.just('"\\ud800\\u0041"'),
)  # fmt: skip


def _object(pairs: list[tuple[str, str]], space: str) -> str:
    inside = ",".join(f"{space}{json.dumps(key)}{space}:{value}" for key, value in pairs)
    return f"{{{inside}{space}}}"


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    space = st.sampled_from(["", " ", "\n\t"])
    lists = st.builds(lambda items, s: f"[{s}{(s + ',').join(items)}]", st.lists(inner), space)
    big = st.integers(14, 18).map(lambda n: f"[{','.join(['1'] * n)}]")
    wide = st.integers(14, 18).map(lambda n: _object([(f"k{i}", "1") for i in range(n)], ""))
    return lists | st.builds(_object, st.lists(st.tuples(_KEYS, inner)), space) | big | wide


_DOCUMENTS = st.recursive(_PLAIN, _nested, max_leaves=12)
_DEEP = st.sampled_from([60, 70, 250, 1100]).map(lambda depth: "[" * depth + "]" * depth)

_DATES = st.dates().map(str)
_MOMENTS = st.datetimes().map(lambda moment: moment.isoformat(" "))
_STRANGE_TIMES = st.sampled_from(
    ["infinity", "-infinity", "0044-03-15 BC", "12000-01-01", "0044-03-15 12:00:00 BC",
     "0044-03-15 12:00:00+00 BC", "12000-01-01 00:00:00.5+00", "2026-01-01 00:00:00.+00",
     "2026-01-01 00:00:00+02", "2026-01-01 00:00:00.1234567+00", "2026-01-01T00:00:00+00",
     "2026-01-01 00:00:00.123456", "2026-1-1", "é026-01-01 00:00:00+00", "+00", "today"]
)  # fmt: skip
_BYTES = st.binary(max_size=40).map(lambda data: "\\x" + data.hex())

SCALARS: dict[str, tuple[int, int, Any]] = {
    "boolean": (16, 1000, st.sampled_from(["t", "f", "true", ""])),
    "integer": (20, 1016, _INTEGERS),
    "float8": (701, 1022, _NUMBERS | _NO_NUMBERS),
    "text": (25, 1009, _TEXTS),
    "numeric": (1700, 1231, _DECIMALS | st.just("NaN")),
    "uuid": (2950, 2951, st.uuids().map(str)),
    "bytea": (17, 1001, _BYTES | st.sampled_from(["\\x0", "\\xzz", "00", "\\", "\\xAB"])),
    "json": (114, 199, _DOCUMENTS | _DEEP),
    "jsonb": (3802, 3807, _DOCUMENTS | _DEEP),
    "date": (1082, 1182, _DATES | _STRANGE_TIMES),
    "timestamp": (1114, 1115, _MOMENTS | _STRANGE_TIMES),
    "timestamptz": (1184, 1185, _MOMENTS.map(lambda text: text + "+00") | _STRANGE_TIMES),
    "box": (603, 1020, st.sampled_from(["(3,4),(1,2)", "(1,1),(0,0)"])),
}  # fmt: skip


def _element(text: str | None, force: bool) -> str:
    """As array_out writes it; `force`d into quotes, which is read the same."""
    if text is None:
        return "NULL"
    plain = text and not set(text) & set('{}",;\\ \t\n\r\v\f') and text.upper() != "NULL"
    if plain and not force:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _array(cells: Any, delimiter: str) -> Any:
    element = st.builds(_element, st.none() | cells | st.just("NULL"), st.booleans())
    flat = st.lists(element, max_size=18)
    row = flat.map(lambda items: "{" + delimiter.join(items) + "}")
    nested = st.lists(row, min_size=1, max_size=3).map(
        lambda rows: "{" + delimiter.join(rows) + "}"
    )
    bounds = st.sampled_from(["[0:1]=", "[0:0][-1:1]=", "[0"])
    odd = st.sampled_from(
        ["{", "}", "", "{}", "{{}}", "{{},{}}", "{a", '{"a', '{"a\\', "{a,}", "{,}", '{"a"b}',
         "{a}}", "{a}x", "{{a},b}", "{a\\b}", "[0:1]", "{{{{{{{1}}}}}}}"]
    )  # fmt: skip
    return row | nested | st.builds(str.__add__, bounds, row) | odd


CELLS: dict[str, tuple[int, Any]] = {
    name: (oid, cells) for name, (oid, _, cells) in SCALARS.items()
}
CELLS |= {
    f"{name}[]": (array, _array(cells, ";" if name == "box" else ","))
    for name, (_, array, cells) in SCALARS.items()
}


def _mutate(cell: str, at: int, with_: bytes) -> bytes:
    data = cell.encode()
    at %= len(data) + 1
    return data[:at] + with_ + data[at + 1 :]


# What is not quite a cell of its type: one byte is something else, or two, or gone.
ODD: Any = st.builds(
    _mutate,
    st.one_of(*(cells for _, cells in CELLS.values())),
    st.integers(0, 10_000),
    st.sampled_from([b"", b"\xff", b"\x00", b'"', b"\\", b"{", b"}", b",", b"-", b"9", b"e", b" "])
    | st.binary(min_size=1, max_size=2),
)
