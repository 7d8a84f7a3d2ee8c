"""Rates and latencies, with a clock that the test turns."""

import pytest

from penstock.demo.consumer import Meter


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)]
)
def test_a_quantile_is_a_latency_after_the_warm_up(share: float, expected: float) -> None:
    meter = Meter()
    meter.add(0.0, 900.0)
    for latency in range(100, 0, -1):
        meter.add(6.0, latency)
    assert meter.quantile(share) == expected


def test_nothing_has_no_quantile_and_no_rate() -> None:
    meter = Meter()
    assert meter.quantile(0.5) is None
    assert meter.rate(0.0) == 0.0


def test_the_rate_is_of_the_last_seconds() -> None:
    meter = Meter()
    for tick in range(100):
        meter.add(tick / 10, 0.01)
    assert meter.rate(10.0) == pytest.approx(10.0, rel=0.05)
    assert meter.rate(20.0) == 0.0


def test_a_young_rate_is_not_averaged_over_the_whole_window() -> None:
    meter = Meter()
    for tick in range(10):
        meter.add(tick / 10, 0.01)
    assert meter.rate(1.0) == pytest.approx(10.0)
