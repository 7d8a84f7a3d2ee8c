"""Lines read by the native library, against Arrow's reader of CSV on the same lines."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.native import library
from penstock.typed import lines as read
from penstock.typed.native import read_natively
from tests.wire.cells import examples

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built")

_NUMBER = st.integers(-(2**63), 2**63 - 1)
_DATE = st.dates().map(str)
_TIME = st.datetimes().map(lambda each: str(each).rstrip("0") if each.microsecond else str(each))
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_INFINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_CELLS = {
    pa.string(): _TEXT,
    pa.bool_(): st.sampled_from("tf"),
    pa.int16(): st.integers(-(2**15), 2**15 - 1).map(str),
    pa.int32(): st.integers(-(2**31), 2**31 - 1).map(str),
    pa.int64(): _NUMBER.map(str),
    pa.float32(): st.floats(width=32).map(lambda each: str(pa.scalar(each, pa.float32()))),
    pa.float64(): st.floats().map(lambda each: _INFINITE.get(repr(each), repr(each))),
    pa.date32(): _DATE,
    pa.timestamp("us"): _TIME,
    pa.timestamp("us", tz="UTC"): _TIME.map(lambda each: f"{each}+00"),
    pa.decimal128(10, 3): st.decimals(-9999999, 9999999, places=3).map(str),
    pa.decimal128(3, 3): st.decimals("-0.999", "0.999", places=3).map(str),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(str),
    pa.binary(): st.binary(max_size=9).map(lambda each: f"\\x{each.hex()}"),
}
# What makes broken lines, and now and then whole ones.
_ODD = b'\\\t\n{}",;0123-: .+tfxN\xc3\xa9'
_KINDS = [*_CELLS, *map(pa.list_, _CELLS)]


def _escaped(text: str) -> str:
    """As COPY writes a cell."""
    letters = dict(zip("\b\f\n\r\t\v\\", "bfnrtv\\", strict=True))
    return "".join(f"\\{letters[each]}" if each in letters else each for each in text)


def _element(text: str) -> str:
    """As an array has it; quotes are never wrong."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    plain = text.isalnum() and text.upper() != "NULL"
    return text if plain else f'"{quoted}"'


@st.composite
def _cell(draw: st.DrawFn, kind: pa.DataType) -> str:
    if draw(st.integers(0, 9)) == 0:
        return "\\N"
    if not pa.types.is_list(kind):
        return _escaped(draw(_CELLS[kind]))
    of = st.none() | _CELLS[kind.value_type]
    found = draw(st.lists(of, max_size=4))
    return _escaped(f"{{{','.join('NULL' if each is None else _element(each) for each in found)}}}")


@st.composite
def _rows(draw: st.DrawFn) -> tuple[pa.Schema, list[str]]:
    kinds = draw(st.lists(st.sampled_from(_KINDS), min_size=1, max_size=5))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    row = st.tuples(*map(_cell, kinds)).map("\t".join)
    return schema, draw(st.lists(row, min_size=1, max_size=9))


def _slowly(lines: bytes, schema: pa.Schema) -> list[pa.Array]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "read_natively", lambda *_: None)
        columns, misfits = read.read_lines(lines, schema.names, schema)
    assert not misfits
    return columns


@settings(max_examples=examples(200), deadline=None)
@given(_rows())
def test_ordinary_lines_are_read_alike(rows: tuple[pa.Schema, list[str]]) -> None:
    schema, lines = rows
    data = "".join(f"{line}\n" for line in lines).encode()
    found = read_natively(data, schema.names, schema, ())
    assert found is not None
    for column in found:
        column.validate(full=True)
    wanted = _slowly(data, schema)
    assert [*map(str, found)] == [*map(str, wanted)]
    assert [each.type for each in found] == schema.types
    # Of a column of lines, too, of which the first is left out; the columns in another order.
    turned = pa.schema([*schema][::-1])
    rest = read_natively(pa.array(["", *lines]).slice(1), schema.names, turned, ())
    assert rest is not None
    assert [*map(str, rest)] == [*map(str, wanted[::-1])]


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pa.bool_(), "true"), (pa.bool_(), ""), (pa.int16(), "32768"), (pa.int32(), "-2147483649"),
        (pa.int64(), "9223372036854775808"), (pa.int64(), ""), (pa.int64(), "1.0"),
        (pa.date32(), "infinity"), (pa.date32(), "2025-02-29"), (pa.date32(), "10000-01-01"),
        (pa.date32(), "0044-03-15 BC"), (pa.date32(), "0000-01-01"), (pa.date32(), "2026-13-01"),
        (pa.timestamp("us"), "2026-01-02 03:04:05+00"), (pa.timestamp("us"), "2026-01-02 24:00:00"),
        (pa.timestamp("us"), "2026-01-02 03:04:05."), (pa.timestamp("us"), "2026-01-02 03:04"),
        (pa.timestamp("us", tz="UTC"), "2026-01-02 03:04:05"),
        (pa.timestamp("us", tz="UTC"), "2026-01-02 03:04:05+01"),
        (pa.decimal128(4, 2), "100.00"), (pa.decimal128(4, 2), "1.001"),
        (pa.decimal128(4, 2), "NaN"),
        (pa.decimal128(4, 2), "."), (pa.decimal128(4, 2), "1."), (pa.decimal128(4, 2), "-"),
        (pa.decimal128(38, 0), "1" * 39), (pa.decimal128(38, 0), str(2**128)),
        (pa.timestamp("us"), "2026-01-02 03:04:05.1234567"),
        (pa.float64(), "1e999"), (pa.float64(), "x"),
        (pa.binary(), "abc"), (pa.binary(), "\\\\x1"), (pa.binary(), "\\\\xgg"),
        (pa.list_(pa.string()), "{{a}}"), (pa.list_(pa.string()), "[0:0]={a}"),
        (pa.list_(pa.string()), "{a"), (pa.list_(pa.string()), "{a,}"), (pa.list_(pa.string()), ""),
        (pa.list_(pa.string()), '{"a'), (pa.list_(pa.string()), '{"a\\\\'),
        (pa.list_(pa.list_(pa.string())), "{{a}}"),
        (pa.list_(pa.string()), "{a}b"), (pa.string(), "a\tb"), (pa.string(), "a\\"),
    ],
    ids=str,
)  # fmt: skip
def test_all_else_is_left_to_the_other(kind: pa.DataType, cell: str) -> None:
    schema = pa.schema([("c", kind)])
    assert read_natively(f"{cell}\n".encode(), ["c"], schema, ()) is None
    assert read_natively(pa.array([cell]), ["c"], schema, ()) is None


def test_bytes_that_are_no_text_are_refused() -> None:
    schema = pa.schema([("c", pa.string())])
    assert read_natively(b"\xff\n", ["c"], schema, ()) is None
    assert read_natively(b"no end", ["c"], schema, ()) is None


def test_doubles_that_are_not_finite() -> None:
    schema = pa.schema([("d", pa.float64()), ("l", pa.list_(pa.float64()))])
    found = read_natively(
        b"NaN\t{}\nInfinity\t{Infinity,NULL}\n-Infinity\t\\N\n", ["d", "l"], schema, ()
    )
    assert found is not None
    assert str([each.to_pylist() for each in found]) == (
        "[[nan, inf, -inf], [[], [inf, None], None]]"
    )


def test_elements_of_boxes_are_parted_by_semicolons() -> None:
    schema = pa.schema([("b", pa.list_(pa.string()))])
    found = read_natively(b"{(1,1),(0,0);(2,2),(1,1)}\n", ["b"], schema, {"b"})
    assert found is not None
    assert found[0].to_pylist() == [["(1,1),(0,0)", "(2,2),(1,1)"]]


def test_broken_lines_are_never_read_outside() -> None:
    """Any bytes are columns or refused."""
    chance = random.Random(7)
    kinds: list[pa.DataType] = _KINDS
    refused = 0
    for _ in range(examples(1500)):
        schema = pa.schema([(str(n), chance.choice(kinds)) for n in range(chance.randrange(1, 4))])
        data = bytes(chance.choices(_ODD, k=chance.randrange(40)))
        found = read_natively(data, schema.names, schema, ())
        refused += found is None
        for column in found or ():
            column.validate(full=True)
    assert refused
