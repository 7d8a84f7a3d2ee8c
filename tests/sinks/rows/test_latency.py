"""How long changes take until they are stored: measured when it costs no page its time."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.process.histograms import histograms
from penstock.process.table_counts import COUNTED
from penstock.sinks.rows import loop
from penstock.sinks.rows.loop import PublishLatency, Tally


class Clock:
    now = 1_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(loop, "time", found)
    return found


def committed(at: float, rows: int) -> pa.RecordBatch:
    times = pa.array(np.full(rows, at * 1e6, np.int64), pa.timestamp("us", "UTC"))
    names = {name: pa.array([name] * rows, pa.string()) for name in COUNTED}
    return pa.RecordBatch.from_pydict({"committed_at": times, **names})


def test_each_change_is_measured_once_and_from_when_it_was_stored(clock: Clock) -> None:
    found = PublishLatency([])
    found.measure()
    found.sent(committed(clock.now - 2.0, 3))
    found.stored()
    found.sent(committed(clock.now, 1))
    clock.now += 0.25
    found.stored()
    assert "histograms" not in found.take(), "it is not time"
    clock.now += 0.125
    found.measure()
    assert found.fields == {"latency_p50_ms": 2000.0, "latency_p99_ms": 2000.0}
    measured = histograms(found.take()["histograms"])["publish"]
    assert measured["buckets"]["+Inf"] == 4
    assert measured["sum"] == pytest.approx(3 * 2.0 + 0.25)
    found.measure()
    assert "histograms" not in found.take()


def test_the_sizes_of_stored_batches_are_told_once(clock: Clock) -> None:
    tally = Tally()
    found = PublishLatency(tally.sizes)
    tally.count_batch(3)
    tally.count_batch(400)
    measured = histograms(found.take(at_once=True)["histograms"])["published"]
    assert (measured["buckets"]["10"], measured["buckets"]["1000"]) == (1, 2)
    assert measured["sum"] == 403 and tally.batches == 2
    assert found.take(at_once=True) == {}


@pytest.mark.parametrize(("later", "rows"), [(0.5, 1), (0, 10_000)])
def test_it_measures_again_after_half_a_second_or_many_changes(
    later: float, rows: int, clock: Clock
) -> None:
    found = PublishLatency([])
    found.measure()
    clock.now += later
    found.sent(committed(clock.now, rows))
    found.stored()
    assert histograms(found.take()["histograms"])["publish"]["buckets"]["+Inf"] == rows
