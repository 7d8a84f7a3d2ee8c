"""Histograms as counters that add up."""

from collections import Counter

import pytest

from penstock.process.histograms import BUCKETS, histograms, observed


def test_values_are_counted_in_buckets_that_accumulate() -> None:
    sums: Counter[str] = Counter()
    for values in ([0.005, 0.3], [1000.0, -1.0], 0.02):
        sums.update(observed("publish", values))
    found = histograms(sums)["publish"]
    buckets = found["buckets"]
    assert [buckets[bound] for bound in ("0.005", "0.01", "0.025", "0.5", "60", "+Inf")] == [
        2, 2, 3, 4, 4, 5,
    ]  # fmt: skip
    assert found["sum"] == pytest.approx(1000.325)


def test_without_a_value_there_is_no_histogram() -> None:
    assert observed("batch", []) == {}
    assert histograms({"published": 3}) == {}


@pytest.mark.parametrize("name", BUCKETS)
def test_bounds_rise(name: str) -> None:
    assert list(BUCKETS[name]) == sorted(set(BUCKETS[name]))
