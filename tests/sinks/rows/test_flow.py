"""Flow control: the back-pressure monitor, the circuit breaker, and what both are fed with."""

from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.sinks.rows.flow import (
    BETTER_AFTER,
    BREAKERS,
    CALM,
    PACES,
    PRESSURES,
    WORSE_AFTER,
    Breaker,
    BreakerEvent,
    BreakerState,
    Flow,
    Pressure,
    PressureEvent,
    PressureState,
)
from penstock.sinks.settings import BreakerSettings, PressureSettings
from tests.waiting import Clock

NORMAL, SLOW, CRITICAL = PressureState
BRISK, DRAGGING, CHOKING, RESTED = PressureEvent
NEVER = {(NORMAL, RESTED), (SLOW, RESTED)}


def test_the_table_has_every_pair_but_those_that_cannot_be() -> None:
    assert set(PRESSURES) == set(product(PressureState, PressureEvent)) - NEVER
    assert set(PACES) == set(PressureState)


def answered(pressure: Pressure, *took: float, now: float = 0.0) -> Pressure:
    for one in took:
        pressure = pressure.answered(one, now)
    return pressure


@pytest.mark.parametrize(
    ("took", "state"),
    [
        (0.0999, NORMAL),
        (0.1, SLOW),  # exactly at a threshold counts as above it
        (0.4999, SLOW),
        (0.5, CRITICAL),
        (5.0, CRITICAL),
    ],
)
def test_the_thresholds(took: float, state: PressureState) -> None:
    assert answered(Pressure(), *[took] * WORSE_AFTER).state is state


def test_the_fastest_of_the_last_answers_decides() -> None:
    assert answered(Pressure(), 9, 9, 0.01, 9, 9).state is NORMAL
    assert answered(Pressure(), 9, 9, 0.2).state is SLOW
    assert answered(Pressure(), 9, 9, 0.2, 9, 9).state is SLOW
    assert answered(Pressure(), 9, 9, 0.2, 9, 9, 9).state is CRITICAL


def test_a_single_slow_answer_now_and_then_changes_nothing() -> None:
    pressure = answered(Pressure(), *[0.001, 0.001, 3.0] * 50)
    assert pressure.state is NORMAL


def test_slow_means_smaller_batches_and_longer_waits() -> None:
    pace = answered(Pressure(), 0.2, 0.2, 0.2).pace
    assert (pace.divisor > 1, pace.patience > 1, pace.paused) == (True, True, False)
    assert PACES[CRITICAL].paused
    assert (PACES[NORMAL].divisor, PACES[NORMAL].patience) == (1, 1)


def test_slow_gets_better_only_after_many_answers_in_a_row() -> None:
    slow = answered(Pressure(), 0.2, 0.2, 0.2, now=100)
    nearly = answered(slow, *[0.01] * (BETTER_AFTER - 1), now=101)
    assert nearly.state is SLOW
    assert answered(nearly, 0.01, now=101).state is NORMAL
    assert answered(nearly, 0.1, *[0.01] * (BETTER_AFTER - 1), now=101).state is SLOW


def test_slow_gets_better_when_nothing_was_slow_for_long_enough() -> None:
    slow = answered(Pressure(), 0.2, 0.2, 0.2, now=100)
    assert answered(slow, 0.01, now=100 + CALM - 0.01).state is SLOW
    assert answered(slow, 0.01, now=100 + CALM).state is NORMAL
    assert slow.idle(100 + CALM - 0.01).state is SLOW
    assert slow.idle(100 + CALM).state is NORMAL


def test_a_pause_ends_when_it_is_over_and_the_server_is_judged_anew() -> None:
    paused = answered(Pressure(pause=1.0), 2, 2, 2, now=50)
    assert (paused.resting(50.25), paused.resting(51)) == (0.75, 0)
    assert paused.rested(50.99).state is CRITICAL
    trying = paused.rested(51)
    assert (trying.state, trying.since) == (SLOW, 51)
    # The answers of before do not count any more.
    assert answered(trying, 2, 2, now=52).state is SLOW
    assert answered(trying, 2, 2, 2, now=52).state is CRITICAL


def test_only_a_pause_ends_a_pause() -> None:
    paused = answered(Pressure(), 2, 2, 2)
    assert answered(paused, *[0.001] * 100, now=1000).state is CRITICAL
    assert paused.idle(1000).state is CRITICAL


@pytest.mark.parametrize("quick", [Pressure(), answered(Pressure(), 0.2, 0.2, 0.2)])
def test_a_pause_that_never_began_does_not_end(quick: Pressure) -> None:
    assert quick.rested(1e9) == quick
    assert quick.resting(0) == 0


def test_a_server_that_does_not_answer_at_all_is_critical() -> None:
    limit = WORSE_AFTER * 0.5
    assert Pressure().waiting(limit - 0.01, now=9).state is NORMAL
    silent = Pressure().waiting(limit, now=9)
    assert (silent.state, silent.since) == (CRITICAL, 9)


def test_the_thresholds_can_be_set() -> None:
    strict = Pressure(slow=0.01, critical=0.02)
    assert answered(strict, 0.01, 0.01, 0.01).state is SLOW
    assert answered(strict, 0.02, 0.02, 0.02).state is CRITICAL


# What publishers report, with the clock.


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def flow(clock: Clock) -> Flow:
    return Flow(PressureSettings(), BreakerSettings(), clock)


def test_the_queue_before_a_batch_is_not_the_servers_slowness(flow: Flow, clock: Clock) -> None:
    """Four batches in flight, each answered 90 ms after the one before it: the last waited 360 ms
    for its answer, and took the server 90."""
    for _ in range(10):
        for _ in range(4):
            flow.sent()
        for left in (3, 2, 1, 0):
            clock.now += 0.09
            flow.answered(clock.now, more=left > 0)
    assert flow.states["pressure"] == "normal"
    assert flow.slowest() == pytest.approx(90)


def test_a_server_that_is_slow_with_each_is_slow(flow: Flow, clock: Clock) -> None:
    told: list[Any] = []
    flow.listen(told.append)
    for _ in range(3):
        flow.sent()
        clock.now += 0.11
        flow.answered(clock.now, more=False)
        clock.now += 60  # between two batches nothing is due
    assert flow.states["pressure"] == "slow"
    assert told[0]["pressure_transitions"] == 1
    assert told[0]["pressure_entered"] == {"slow": 1}
    assert (flow.scaled(1000), flow.scaled(2)) == (250, 1)


def test_an_answer_that_nobody_looked_at_counts_from_when_it_can_have_come(
    flow: Flow, clock: Clock
) -> None:
    """We encoded for a second and then found three answers: not the server's fault."""
    for _ in range(3):
        flow.sent()
    sent = clock.now
    clock.now += 1.0
    for left in (2, 1, 0):
        flow.answered(sent, more=left > 0)
    assert flow.states["pressure"] == "normal"
    assert flow.slowest() == 0


def test_a_new_connection_owes_no_answers(flow: Flow, clock: Clock) -> None:
    flow.sent()
    flow.forget()
    clock.now += 100
    flow.waiting()
    assert flow.states["pressure"] == "normal"


def test_a_pause_lasts_until_nothing_is_in_flight_and_its_time_is_over(
    flow: Flow, clock: Clock
) -> None:
    flow.sent()
    clock.now += 2
    flow.waiting()
    assert (flow.states["pressure"], flow.pause) == ("critical", 1)
    clock.now += 1
    assert flow.held(flying=7)
    assert not flow.held(flying=0)
    assert flow.states["pressure"] == "slow"


def test_the_thresholds_must_rise() -> None:
    with pytest.raises(ValidationError, match="critical_threshold must not be below"):
        PressureSettings(slow_threshold="1s", critical_threshold="500ms")  # type: ignore[arg-type]


# The circuit breaker: its table, its threshold and its timeout.

CLOSED, OPEN, HALF_OPEN = BreakerState
SUCCEEDED, FAILED, TRIPPED, WAITED = BreakerEvent
NEVER_BROKEN = {
    (CLOSED, WAITED),
    (OPEN, SUCCEEDED), (OPEN, FAILED), (OPEN, TRIPPED),
    (HALF_OPEN, FAILED), (HALF_OPEN, WAITED),
}  # fmt: skip


def test_the_breakers_table_has_every_pair_too() -> None:
    assert set(BREAKERS) == set(product(BreakerState, BreakerEvent)) - NEVER_BROKEN


def failed(breaker: Breaker, times: int, now: float = 0.0) -> Breaker:
    for _ in range(times):
        breaker = breaker.failed(now)
    return breaker


def test_the_failure_at_the_threshold_opens_it() -> None:
    assert failed(Breaker(), 4).state is CLOSED
    assert failed(Breaker(), 5).state is OPEN
    assert failed(Breaker(threshold=1), 1).state is OPEN


def test_a_success_forgets_the_failures_before_it() -> None:
    assert failed(failed(Breaker(), 4).succeeded(), 4).state is CLOSED


def test_it_opens_for_the_timeout_and_then_lets_one_probe_through() -> None:
    broken = failed(Breaker(timeout=30), 5, now=100)
    assert (broken.remaining(100), broken.remaining(129.5)) == (30, 0.5)
    assert broken.waited(129.99).state is OPEN
    assert broken.waited(130).state is HALF_OPEN
    assert broken.waited(130).remaining(130) == 0


def test_a_probe_that_succeeds_closes_it_and_counts_anew() -> None:
    closed = failed(Breaker(), 5).waited(30).succeeded()
    assert (closed.state, closed.failures) == (CLOSED, 0)
    assert failed(closed, 4).state is CLOSED


def test_a_probe_that_fails_opens_it_for_the_whole_timeout_again() -> None:
    again = failed(Breaker(timeout=30), 5, now=0).waited(31).failed(32)
    assert (again.state, again.since) == (OPEN, 32)
    assert again.waited(61.9).state is OPEN
    assert again.waited(62).state is HALF_OPEN


def test_what_is_not_open_does_not_wait() -> None:
    assert Breaker().waited(1e9) == Breaker()
    assert Breaker().remaining(0) == 0
