"""When a page is cut."""

import math

import pytest

from penstock.feeds.postgres.pages import PageTimer

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
    page_timer.cut(101.0)
    due = page_timer.due_in(101.0005, holds=True, between=True)
    assert due == pytest.approx(0.0015)
    assert page_timer.due_in(101.0005 + due + 1e-9, holds=True, between=True) <= 0


def test_the_rest_of_a_transaction_is_waited_for_but_not_long(page_timer: PageTimer) -> None:
    page_timer.due_in(100.5, holds=False, between=True)
    assert page_timer.due_in(100.502, holds=True, between=False) == pytest.approx(0.498)
    assert page_timer.due_in(100.502, holds=True, between=True) <= 0  # its commit has come
    assert page_timer.due_in(101.0001, holds=True, between=False) <= 0


def test_a_cut_begins_the_wait_anew(page_timer: PageTimer) -> None:
    page_timer.due_in(100.5, holds=False, between=False)
    page_timer.cut(100.51)  # the page was full in the middle of a transaction
    assert page_timer.due_in(100.511, holds=True, between=False) == pytest.approx(0.499)
