"""Which changes share a message: one kind, in order per table, and cut where a prefix ends."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sinks.messages.grouping import Group, ends_of, grouped, lined_up
from tests.wire.cells import examples

# Destinations: two of table a, two of b, one of c, and a logical message, which is in no table.
TABLES = ["a", "a", "b", "b", "c", None]


def group(kinds: list[int], *, most: int = 500, largest: int = 1 << 20, sizes: Any = None) -> Any:
    measured = np.array(sizes or [100] * len(kinds), np.int64)
    return grouped(np.array(kinds, np.int32), TABLES, measured, most=most, largest=largest)


def rows(groups: list[Group]) -> list[list[int]]:
    return [one.rows.tolist() for one in groups]


def flat(found: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(found))


def test_changes_of_one_kind_are_one_message() -> None:
    assert rows(group([0] * 5)) == [[0, 1, 2, 3, 4]]


def test_changes_of_different_tables_pass_each_other() -> None:
    groups = group([0, 2, 0, 2, 4])
    assert rows(groups) == [[0, 2], [1, 3], [4]]
    assert ends_of(groups).tolist() == [False, True, True]


def test_another_kind_of_the_same_table_closes_its_message() -> None:
    """Insert, update, insert: the update must not overtake, nor be overtaken."""
    assert rows(group([0, 1, 0, 2, 0])) == [[0], [1], [3], [2, 4]]


def test_nothing_passes_a_logical_message() -> None:
    groups = group([0, 2, 5, 0, 2])
    assert rows(groups) == [[0], [1], [2], [3], [4]]
    assert ends_of(groups).all()


def test_a_message_has_at_most_so_many_changes_and_bytes() -> None:
    assert [len(one) for one in rows(group([0] * 7, most=3))] == [3, 3, 1]
    assert [len(one) for one in rows(group([0] * 7, largest=250))] == [2, 2, 2, 1]
    assert rows(group([0] * 4, largest=250, sizes=[100, 900, 100, 100])) == [[0], [1], [2, 3]]


def test_changes_of_many_tables_in_turns_are_a_message_for_each() -> None:
    """What hash partitions do to a table."""
    tables = [f"part {number}" for number in range(16)]
    kinds = np.array([number * 7 % 16 for number in range(1600)], np.int32)
    groups = grouped(kinds, tables, np.full(1600, 100), most=500, largest=1 << 20)
    assert [one.count for one in groups] == [100] * 16
    assert sorted(lined_up(groups)) == list(range(1600))
    assert ends_of(groups).tolist() == [False] * 15 + [True]


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(
    kinds=st.lists(st.sampled_from([0, 0, 1, 2, 2, 3, 4, 5]), min_size=1, max_size=60),
    most=st.integers(1, 9), largest=st.integers(1, 900), data=st.data(),
)  # fmt: skip
def test_whatever_comes_in_what_may_be_stored_is_a_prefix(
    kinds: list[int], most: int, largest: int, data: Any
) -> None:
    count = len(kinds)
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=count, max_size=count))
    groups = group(kinds, most=most, largest=largest, sizes=sizes)
    stored = rows(groups)
    assert sorted(flat(stored)) == list(range(count))
    for one, found in zip(groups, stored, strict=True):
        assert {kinds[row] for row in found} == {one.number}
        assert one.last == found[-1]
        assert one.count == len(found) <= most
        assert sum(sizes[row] for row in found) <= largest or one.count == 1
    for table in set(TABLES):
        order = [row for found in stored for row in found if TABLES[kinds[row]] == table]
        assert order == sorted(order)
    ends = ends_of(groups)
    assert ends[-1]
    for number, end in enumerate(ends, 1):
        said = flat(stored[:number])
        # A stream that ends here has everything up to the place that its last message names.
        assert end == (sorted(said) == list(range(stored[number - 1][-1] + 1)))
    for row, kind in enumerate(kinds):
        if TABLES[kind] is None:
            order = flat(stored)
            before = order[: order.index(row)]
            assert sorted(before) == list(range(row))
