"""What charts show: by the second and by the minute, in arrays of a fixed size."""

from typing import Any

import numpy as np
import orjson
import pytest

from penstock.ops.board import Board
from penstock.ops.history import RANGES, History
from penstock.ops.partitions import PartitionReport
from penstock.ops.reports import SinkReport, SourceReport

BEGUN = 1_800_000_000  # a whole minute


def recorded(seconds: int, *, step: int = 1, skip: range = range(0)) -> History:
    """Of a pipeline that reads 10 changes a second, and has a lag of the second's number."""
    board, history = Board("/nowhere"), History()
    for number in range(0, seconds, step):
        board.post("shop", SourceReport(events=10 * number, lag_seconds=number % 60))
        board.post("s", SinkReport(acknowledged=2 * number, latency_p99_ms=7.5))
        if number not in skip:
            history.record(board.snapshot(), BEGUN + number)
    return history


@pytest.mark.slow
def test_the_last_fifteen_minutes_are_there_by_the_second() -> None:
    found = recorded(1000).shown("15m")
    assert (found["step"], len(found["times"])) == (1, 900)
    assert found["times"] == list(range(BEGUN + 100, BEGUN + 1000))
    assert set(found["series"]["read/shop"]) == {10.0}
    assert found["series"]["stored/s"] == [2.0] * 900
    assert found["series"]["lag_seconds/shop"][-1] == 999 % 60
    assert {"latency_p99_ms/s", "buffered_bytes/shop"} < found["series"].keys()


@pytest.mark.slow
def test_a_day_is_there_by_the_minute_with_the_mean_rate_and_the_longest_lag() -> None:
    found = recorded(86_400 + 600, step=20).shown("24h")
    assert (found["step"], len(found["times"])) == (60, 1440)
    assert found["times"][-1] == BEGUN + 86_400 + 480
    assert found["series"]["lag_seconds/shop"] == [40.0] * 1440
    assert found["series"]["read/shop"] == [10.0] * 1440


def test_what_is_not_known_is_null() -> None:
    found = orjson.loads(orjson.dumps(recorded(100, skip=range(50, 60)).shown("15m")))
    assert found["series"]["lag_seconds/shop"][49:61] == [49, *[None] * 10, 0]
    assert found["series"]["read/shop"][0] is None  # of one count there is no rate
    assert found["series"]["read/shop"][60] == 10.0
    assert "lag_bytes/shop" not in found["series"]


def test_a_history_that_begins_or_is_empty_has_no_times_before() -> None:
    assert History().shown("24h") == {"step": 60, "times": [], "series": {}}
    assert recorded(3).shown("15m")["times"] == [BEGUN, BEGUN + 1, BEGUN + 2]
    assert recorded(61).shown("24h")["times"] == [BEGUN]


@pytest.mark.parametrize("back", [0.0, 0.4, 3600.0])
def test_a_clock_that_is_set_back_waits(back: float) -> None:
    history = recorded(10)
    board = Board("/nowhere")
    history.record(board.snapshot(), BEGUN + 9 - back)
    assert orjson.dumps(history.shown("15m")) == orjson.dumps(recorded(10).shown("15m"))


def test_a_backend_that_left_is_forgotten_after_a_day() -> None:
    history, board = recorded(120), Board("/nowhere")
    for minute in range(1445):
        history.record(board.snapshot(), BEGUN + 200 + 60 * minute)
    assert history.shown("15m")["series"] == history.shown("24h")["series"] == {}


def test_a_backend_takes_less_than_300_kb_however_many_partitions_it_has() -> None:
    board, history = Board("/nowhere"), History()
    for number in range(1000):
        board.post(f"shop/{number}", PartitionReport(lag_seconds=1.0))
    source: dict[str, Any] = {"lag_bytes": 1, "lag_seconds": 1, "window_left_seconds": 1}
    board.post("shop", SourceReport(**source))
    board.post("s", SinkReport(latency_p50_ms=1, latency_p99_ms=1))
    for number in range(200):
        history.record(board.snapshot(), BEGUN + number)
    arrays = [array for ring in history._rings.values() for array in ring.values.values()]
    assert len(arrays) == 8 * len(RANGES)
    assert sum(array.nbytes for array in arrays if isinstance(array, np.ndarray)) < 300_000
