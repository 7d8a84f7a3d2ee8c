"""The gap detector: the source's clock moves on, and its open stream does not."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.reading.gaps import GapLog
from penstock.reading.silences import Silence, Silences, observe

MINUTES = 60.0
Look = tuple[float, str]  # the source's clock, its newest token


def gaps(*looks: Look, max_gap: float = 5 * MINUTES) -> list[bool]:
    state: Silence | None = None
    found = []
    for clock, token in looks:
        state, is_gap = observe(state, clock=clock, token=token, max_gap=max_gap)
        found.append(is_gap)
    return found


def test_five_minutes_without_a_token_are_a_gap_and_only_once() -> None:
    assert gaps((0, "a"), (299, "a"), (300, "a"), (301, "a")) == [False, False, True, False]


def test_idleness_with_tokens_that_move_is_no_gap() -> None:
    assert not any(gaps(*((minute * MINUTES, str(minute)) for minute in range(0, 600, 4))))


def test_after_a_gap_that_ended_the_next_one_is_found() -> None:
    looks = [(0.0, "a"), (400.0, "a"), (401.0, "b"), (700.0, "b"), (701.0, "b"), (702.0, "b")]
    assert gaps(*looks) == [False, True, False, False, True, False]


def test_a_clock_that_goes_back_never_underflows() -> None:
    assert not any(gaps((1000, "a"), (0, "a"), (1000, "b"), (5, "c"), (1299, "c")))
    assert gaps((1000, "a"), (5, "b"), (1300, "b")) == [False, False, True]


def test_a_reader_that_paused_finds_a_new_token_with_the_new_clock() -> None:
    assert gaps((0, "a"), (3600, "b"), (3601, "b")) == [False, False, False]


@given(st.lists(st.tuples(st.floats(0, 2000), st.sampled_from("ab"))))
def test_a_gap_is_found_once_for_each_silence(looks: list[Look]) -> None:
    found = gaps(*looks)
    changes = [0, *(n + 1 for n, (a, b) in enumerate(pairwise(looks)) if a[1] != b[1]), len(looks)]
    assert all(sum(found[first:last]) <= 1 for first, last in pairwise(changes))
    assert not any(found[:1])


def row(clock: float | None, token: str, *, connected: bool = True) -> dict[str, dict[str, Any]]:
    return {"p": {"connected": connected, "clock": clock, "token": token, "place": "07:1"}}


def test_a_silent_partition_is_recorded_and_stale() -> None:
    log = GapLog(clock=iter(range(0, 1000, 10)).__next__)
    silences = Silences(log, 300.0)
    assert silences.checked(row(0, "a")) == {"p": {"connected": True, "place": "07:1"}}
    silences.checked(row(299, "a"))
    assert log.rows() == {}
    silences.checked(row(300, "a"))
    silences.checked(row(900, "a"))
    found = log.rows()["p"]
    assert found["stale"]
    assert found["counts"] == {"silent": 1}
    assert found["gaps"][0]["from"] == "07:1"


def test_the_first_event_after_a_silence_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    log = GapLog(clock=iter(range(0, 1000, 10)).__next__)
    silences = Silences(log, 300.0)
    for clock, token, place in (
        (0, "a", "07:1"), (300, "a", "07:1"), (310, "idle", "07:1"), (320, "b", "08:0"),
        (330, "c", "09:0"),
    ):  # fmt: skip
        silences.checked({"p": {"connected": True, "clock": clock, "token": token, "place": place}})
    (gap,) = log.rows()["p"]["gaps"]
    assert (gap["from"], gap["to"]) == ("07:1", "08:0")
    assert log.rows()["p"]["counts"] == {"silent": 1}
    assert caplog.text.count("goes on after a silence") == 1


def test_a_connection_that_was_lost_starts_anew() -> None:
    log = GapLog()
    silences = Silences(log, 300.0)
    silences.checked(row(0, "a"))
    silences.checked(row(100, "a", connected=False))
    silences.checked(row(400, "a"))
    silences.checked(row(600, "a"))
    assert log.rows() == {}


def test_without_a_limit_or_a_clock_nothing_is_found() -> None:
    for silences, clock in ((Silences(log := GapLog(), None), 900.0), (Silences(log, 1.0), None)):
        silences.checked(row(None if clock is None else 0.0, "a"))
        silences.checked(row(clock, "a"))
    assert log.rows() == {}
