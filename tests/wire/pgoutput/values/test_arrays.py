from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.pgoutput.values.arrays import array_of
from penstock.wire.pgoutput.values.text import text

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
