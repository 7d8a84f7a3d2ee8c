"""Values as servers write them; `wire/kinds.py` has one of every kind, from real ones."""

import math
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from datetime import date as calendar_date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.values import ARRAYS, BUILT_IN, value_of
from penstock.wire.pgoutput.values.arrays import array_of
from penstock.wire.pgoutput.values.scalars import (
    binary,
    binary_as_base64,
    boolean,
    date,
    floating,
    text,
    timestamp,
    timestamptz,
)
from tests.servers import Database

# Types that no column has, or that need privileges and are shown as text.
NOT_COLUMNS = {"pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list",
               "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "gtsvector"}  # fmt: skip


def test_the_catalog_is_the_servers(database_any: Database) -> None:
    rows = database_any.execute(
        "SELECT oid, typname::text, typarray, typdelim::text FROM pg_type"
        " WHERE oid < 10000 AND typtype IN ('b', 'r', 'm') AND typcategory NOT IN ('A', 'P')"
    )
    known = {oid: (name, array) for oid, name, array, _ in rows if name not in NOT_COLUMNS}
    assert {oid: name for oid, (name, _) in known.items() if oid not in BUILT_IN} == {}
    assert {array: oid for oid, (_, array) in known.items() if array} == {
        array: oid for array, oid in ARRAYS.items() if oid in known
    }
    assert [name for _, name, _, delimiter in rows if delimiter != ","] == ["box"]


def test_an_unknown_type_is_text_and_is_named() -> None:
    unknown: set[str] = set()
    assert value_of(99_999, {}, "json", unknown)[0](b"what?") == "what?"
    types = {70_000: TypeEntry(kind="b", name="citext")}
    assert value_of(70_000, types, "json", unknown)[0](b"Hi") == "Hi"
    assert unknown == {"type with OID 99999", "citext"}


@pytest.mark.parametrize("kind", ["e", "c", "r", "m"])
def test_types_that_are_their_text_are_not_unknown(kind: str) -> None:
    unknown: set[str] = set()
    types = {70_000: TypeEntry(kind=kind, name="own")}  # type: ignore[arg-type]
    assert value_of(70_000, types, "msgpack", unknown)[0](b"(1,2)") == "(1,2)"
    assert unknown == set()


def test_domains_and_arrays_lead_to_their_base() -> None:
    types = {
        70_000: TypeEntry(kind="d", name="positive", inner=23),
        70_001: TypeEntry(kind="a", name="_positive", inner=70_000),
        70_002: TypeEntry(kind="d", name="positives", inner=70_001),
    }
    assert value_of(70_002, types, "json", set())[0](b"{1,NULL}") == [1, None]


def test_a_type_that_is_made_of_itself_is_malformed() -> None:
    types = {70_000: TypeEntry(kind="d", name="self", inner=70_000)}
    with pytest.raises(Malformed, match="70000 is defined by itself"):
        value_of(70_000, types, "json", set())[0]


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_read_back_the_same(value: float) -> None:
    read = floating(repr(value).encode())
    assert isinstance(read, float)
    assert math.copysign(1, read) == math.copysign(1, value)
    assert read == value


@pytest.mark.parametrize("written", ["", "x", "1e999", "inf", "1,5"])
def test_other_floats_are_a_value_error(written: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        floating(written.encode())


def test_another_boolean_is_a_value_error() -> None:
    for written in (b"", b"true", b"T", b"1"):
        with pytest.raises(ValueError, match="neither"):
            boolean(written)


@given(data=st.binary())
def test_bytea_reads_back_the_same(data: bytes) -> None:
    written = b"\\x" + data.hex().encode()
    assert binary(written) == data
    assert binary_as_base64(written).isascii()


@pytest.mark.parametrize("written", [b"", b"\\", b"hi", b"\\x1", b"\\xzz", b"\\000"])
def test_other_bytea_is_a_value_error(written: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        binary(written)


@given(moment=st.datetimes())
def test_usual_moments_read_back_the_same(moment: datetime) -> None:
    written = f"{moment:%Y-%m-%d %H:%M:%S}".rjust(19, "0")
    if moment.microsecond:
        written += f".{moment.microsecond:06d}".rstrip("0")
    assert datetime.fromisoformat(timestamp(written.encode())) == moment
    aware = timestamptz(f"{written}+00".encode())
    assert aware.endswith("Z")
    assert datetime.fromisoformat(aware) == moment.replace(tzinfo=UTC)


@given(day=st.dates())
def test_usual_days_are_as_they_are(day: calendar_date) -> None:
    assert date(day.isoformat().encode()) == day.isoformat()


@pytest.mark.parametrize(
    ("convert", "written", "value"),
    [
        (date, "0002-01-01 BC", "-000001-01-01"),
        (date, "10000-01-01", "+010000-01-01"),
        (date, "-infinity", "-infinity"),
        (timestamp, "0044-03-15 12:00:00.5 BC", "-000043-03-15T12:00:00.5"),
        (timestamp, "294276-12-31 23:59:59.999999", "+294276-12-31T23:59:59.999999"),
        (timestamptz, "294276-12-31 23:59:59.999999+00", "+294276-12-31T23:59:59.999999Z"),
        (timestamptz, "2026-01-02 03:04:05+02", "2026-01-02T03:04:05+02"),
        (timestamptz, "2026-01-02 03:04:05-03:30", "2026-01-02T03:04:05-03:30"),
    ],
)
def test_unusual_moments_stay_iso_8601(
    convert: Callable[[bytes], str], written: str, value: str
) -> None:
    assert convert(written.encode()) == value


@pytest.mark.parametrize("written", ["", "01/02/2026", "Fri Jan 02 03:04:05 2026 UTC", "later"])
def test_another_date_style_is_a_value_error(written: str) -> None:
    for convert in (date, timestamp, timestamptz):
        if convert is date and len(written) == 10:
            continue
        with pytest.raises(ValueError, match="DateStyle ISO"):
            convert(written.encode())


texts = array_of(text)
ints = array_of(int)
boxes = array_of(text, ";")

# What PostgreSQL's array_out quotes.
_QUOTED = set('"\\{}, \t\n\r\v\f')

LEAVES = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))


def rendered(value: Any) -> str:
    """As array_out writes it."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(rendered, value)) + "}"
    if value == "" or value.upper() == "NULL" or _QUOTED & set(value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def nested(depth: int) -> st.SearchStrategy[list[Any]]:
    strategy: st.SearchStrategy[Any] = LEAVES
    for _ in range(depth):
        strategy = st.lists(strategy, min_size=1, max_size=4)
    return strategy


@pytest.mark.slow
@given(value=st.integers(1, 4).flatmap(nested) | st.just([]))
def test_arrays_of_any_dimension_read_as_rendered(value: list[Any]) -> None:
    assert texts(rendered(value).encode()) == value


@given(value=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_elements_are_converted(value: list[int | None]) -> None:
    written = "{" + ",".join("NULL" if item is None else str(item) for item in value) + "}"
    assert ints(written.encode()) == value


@pytest.mark.parametrize("written", ["[0:1]={7,8}", "[5:5]={1}", "[-1:0][2:3]={{1,2},{3,NULL}}"])
def test_an_array_with_lower_bounds_is_its_text(written: str) -> None:
    assert ints(written.encode()) == written


@pytest.mark.parametrize("written", ["[0:1]={7,x}", "[0:1]7", "[0:1]={7", "[0:1]"])
def test_bounds_without_an_array_are_a_value_error(written: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        ints(written.encode())


def test_boxes_are_parted_by_semicolons() -> None:
    assert boxes(b"{(1,1),(0,0);NULL;(3,3),(2,2)}") == ["(1,1),(0,0)", None, "(3,3),(2,2)"]
    assert boxes(b"{{(1,1),(0,0)};{(3,3),(2,2)}}") == [["(1,1),(0,0)"], ["(3,3),(2,2)"]]


BROKEN = [
    "", "{", "}", "1", "{1", "1}", "{{1}", "{1}}", "{1}{2}", '{"a}', '{"a"b}', '{"a""b"}', "{{},}",
    '{,"a"}', '{"a",}', "{{1}{2}}", "[0:1]", "[0:1]=", "{{1},2", '{"a\\', '"a"', "{1},{2}",
]  # fmt: skip


@pytest.mark.parametrize("written", BROKEN)
def test_what_is_no_array_is_a_value_error(written: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        texts(written.encode())


@given(value=st.integers(1, 3).flatmap(nested), cut=st.integers(0, 10**6))
def test_any_prefix_of_an_array_is_a_value_error(value: list[Any], cut: int) -> None:
    written = rendered(value).encode()
    with pytest.raises(ValueError, match=r".*"):
        texts(written[: cut % len(written)])


@given(data=st.text('{},;"\\NUL1a[]=:', max_size=30))
def test_noise_is_an_array_or_a_value_error(data: str) -> None:
    with suppress(ValueError):
        assert isinstance(texts(data.encode()), list)
