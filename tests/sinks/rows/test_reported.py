"""When a write reports what is stored."""

import pytest

from penstock.sinks.rows.loop import _IDLE, _PROGRESS, _QUIET, _STORED, Tally, _Reported


@pytest.fixture
def reported() -> _Reported:
    return _Reported(100.0)


def test_nothing_stored_is_not_reported(reported: _Reported) -> None:
    assert reported.due_in(1000.0, Tally()) == _IDLE


def test_a_change_after_a_while_is_reported_at_once(reported: _Reported) -> None:
    assert reported.due_in(100.0 + _PROGRESS, Tally(stored=1)) == 0


def test_while_changes_keep_coming_a_report_waits_for_the_next_time(reported: _Reported) -> None:
    now, tally = 100.0, Tally()
    while (now := now + _QUIET / 5) < 100.0 + _PROGRESS:
        tally.stored += 1
        assert 0 < reported.due_in(now, tally) <= _QUIET
    tally.stored += 1
    assert reported.due_in(now, tally) == 0


def test_the_last_change_of_several_is_reported_soon(reported: _Reported) -> None:
    tally = Tally(stored=1)
    assert reported.due_in(100.01, tally) == pytest.approx(_QUIET)
    assert reported.due_in(100.03, tally) == pytest.approx(_QUIET - 0.02)
    assert reported.due_in(100.01 + _QUIET, tally) == 0


def test_many_bytes_are_reported_at_once(reported: _Reported) -> None:
    tally = Tally(stored=1, size=_STORED)
    assert reported.due_in(100.0, tally) == 0
    again = _Reported(100.0, tally.stored, tally.size)
    tally.stored += 1
    assert again.due_in(100.0, tally) > 0
