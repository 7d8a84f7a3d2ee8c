"""When a page is cut."""

import math

import pytest

from penstock.feeds.postgres.collecting import PageTimer

SPACING = 0.002


@pytest.fixture
def page_timer() -> PageTimer:
    return PageTimer(SPACING, 100.0)


def test_an_empty_page_is_never_cut(page_timer: PageTimer) -> None:
    assert page_timer.due_in(200.0, holds=False, between=True) == math.inf
    assert page_timer.due_in(300.0, holds=False, between=False) == math.inf


def test_a_transaction_that_is_over_is_cut_at_once(page_timer: PageTimer) -> None:
    assert page_timer.due_in(100.01, holds=True, between=True) <= 0


def test_a_trickle_is_cut_no_more_often_than_the_spacing(page_timer: PageTimer) -> None:
    page_timer.cut(101.0, 1)
    due = page_timer.due_in(101.0005, holds=True, between=True)
    assert due == pytest.approx(0.0015)
    assert page_timer.due_in(101.0005 + due + 1e-9, holds=True, between=True) <= 0


def test_the_rest_of_a_transaction_is_waited_for(page_timer: PageTimer) -> None:
    assert page_timer.due_in(200.0, holds=True, between=False) == math.inf
    assert page_timer.due_in(200.0, holds=True, between=True) <= 0  # its commit has come


def test_after_a_small_page_nothing_is_looked_at_until_the_next_may_be_cut(
    page_timer: PageTimer,
) -> None:
    page_timer.cut(101.0, 1)
    assert page_timer.rest(101.0005) == pytest.approx(0.0015)
    assert page_timer.rest(101.01) == 0


def test_after_a_large_page_more_is_taken_at_once(page_timer: PageTimer) -> None:
    page_timer.cut(101.0, 2000)
    assert page_timer.rest(101.0005) == 0
