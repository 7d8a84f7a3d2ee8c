"""Eras: what another history of the log makes sorts behind, and is named apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from penstock.wire.pgoutput.lsn import era_of, format_lsn, lsn_of, next_era

LSNS = st.integers(0, 2**64 - 1)


@given(LSNS, st.integers(0, 50))
def test_a_cursor_is_its_era_and_its_lsn(lsn: int, number: int) -> None:
    era = ""
    for _ in range(number):
        era = next_era(era)
    cursor = era + format_lsn(lsn)
    assert (era_of(cursor), lsn_of(cursor)) == (era, lsn)


@given(LSNS, LSNS)
def test_every_cursor_of_an_era_sorts_behind_all_of_those_before(one: int, other: int) -> None:
    era, before = "", format_lsn(one)
    for _ in range(30):
        era = next_era(era)
        after = era + format_lsn(other)
        assert after > before
        before = era + format_lsn(one)


@given(LSNS, LSNS)
def test_inside_an_era_cursors_sort_as_lsns(one: int, other: int) -> None:
    assert ("e0001-" + format_lsn(one) < "e0001-" + format_lsn(other)) == (one < other)


def test_eras_end() -> None:
    with pytest.raises(Malformed):
        next_era("e9999-")
