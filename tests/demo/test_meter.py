"""Rates and latencies, with a clock that the test turns."""

import pytest

from penstock.demo.consumer import Meter, quantile


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)]
)
def test_a_quantile_is_one_of_the_values(share: float, expected: float) -> None:
    assert quantile(range(100, 0, -1), share) == expected


def test_no_values_have_no_quantile() -> None:
    meter = Meter()
    assert quantile([], 0.5) is None
    assert meter.recent(0.0, 0.5) is None
    assert meter.overall(0.5) is None
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


def test_the_warm_up_counts_in_the_window_but_not_in_the_end() -> None:
    meter = Meter()
    meter.add(0.0, 9.0)
    assert meter.recent(1.0, 0.99) == 9.0
    assert meter.overall(0.99) is None
    meter.add(6.0, 0.1)
    assert meter.overall(0.99) == 0.1
