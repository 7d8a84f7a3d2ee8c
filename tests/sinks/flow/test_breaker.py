"""The circuit breaker: its table, its threshold and its timeout."""

from itertools import product

from penstock.sinks.flow import BREAKERS, Breaker, BreakerEvent, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState
SUCCEEDED, FAILED, TRIPPED, WAITED = BreakerEvent
NEVER = {
    (CLOSED, WAITED),
    (OPEN, SUCCEEDED), (OPEN, FAILED), (OPEN, TRIPPED),
    (HALF_OPEN, FAILED), (HALF_OPEN, WAITED),
}  # fmt: skip


def test_the_table_has_every_pair_but_those_that_cannot_be() -> None:
    assert set(BREAKERS) == set(product(BreakerState, BreakerEvent)) - NEVER


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
