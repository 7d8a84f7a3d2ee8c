"""What charts show: by the second and by the minute, in arrays of a fixed size."""

import time
from typing import Any

import numpy as np
import orjson
import pytest

from penstock.ops.board import Board
from penstock.ops.history import RANGES, History
from penstock.ops.partitions import PartitionReport
from penstock.ops.reports import (
    GapReport,
    QueryReport,
    SinkReport,
    SnapshotsReport,
    SourceReport,
)
from penstock.ops.status import assess

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


def test_an_hour_is_there_by_ten_seconds_and_a_week_by_the_hour() -> None:
    history = recorded(7200, step=5)
    hour, week = history.shown("1h"), history.shown("7d")
    assert (hour["step"], len(hour["times"]), hour["times"][-1]) == (10, 360, BEGUN + 7180)
    assert set(hour["series"]["read/shop"]) == {10.0}
    assert (week["step"], week["times"]) == (3600, [BEGUN])
    assert week["series"]["lag_seconds/shop"] == [55.0]


def test_latency_of_long_ago_is_not_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    history, board = History(), Board("/nowhere")
    board.post("s", SinkReport(acknowledged=1, latency_p99_ms=17_514.4))
    history.record(board.snapshot(), BEGUN)
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    history.record(board.snapshot(), BEGUN + 1)
    found = orjson.loads(orjson.dumps(history.shown("15m")))
    assert found["series"]["latency_p99_ms/s"] == [17_514.4, None]


def test_what_happened_is_marked_once() -> None:
    history, board = History(), Board("/nowhere")

    def look(second: int) -> list[tuple[float, str, str]]:
        status = assess(
            board.snapshot(), name="shop", version="1", backends=["a"], started=board.started,
            now=board.started + second,
        )  # fmt: skip
        history.notice(status, BEGUN + second)
        marks = history.shown("15m")["marks"][1:]
        return [(each["at"] - BEGUN, each["kind"], each["text"]) for each in marks]

    board.post("a", QueryReport(begun=True))
    board.post("a", SourceReport(connected=True))
    seen = look(1)
    assert seen == [(1, "health", "ok")]
    board.post("a", QueryReport(paused={"since": "now", "by": "ann", "until": None}, restarts=1))
    gap = {"at": "2027-01-15T08:00:01+00:00", "cause": "trimmed", "detail": "hours are gone"}
    board.post("a/p0", GapReport(stale=False, counts={"trimmed": 1}, gaps=[gap]))
    last = {"snapshot_id": "snap-1", "state": "done", "rows": 12345, "at": "unreadable"}
    board.post("a", SnapshotsReport(last={"public.items": last}))
    for second in (2, 3):
        assert look(second)[1:] == [
            (1, "gap", "a, p0: trimmed, hours are gone"),
            (2, "health", "degraded: backend a: paused since now by ann, until it is resumed"),
            (2, "pause", "a is paused by ann"),
            (2, "restart", "a begins anew"),
            (2, "snapshot", "of public.items: done, 12,345 rows"),
        ]
    board.post("a", QueryReport(paused=None))
    assert look(4)[6:] == [(4, "health", "ok"), (4, "resume", "a goes on")]


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
    found = History().shown("24h")
    assert (found["step"], found["times"], found["series"]) == (60, [], {})
    assert [each["kind"] for each in found["marks"]] == ["start"]
    assert recorded(3).shown("15m")["times"] == [BEGUN, BEGUN + 1, BEGUN + 2]
    assert recorded(61).shown("24h")["times"] == [BEGUN]


@pytest.mark.parametrize("back", [0.0, 0.4, 3600.0])
def test_a_clock_that_is_set_back_waits(back: float) -> None:
    history = recorded(10)
    board = Board("/nowhere")
    history.record(board.snapshot(), BEGUN + 9 - back)
    again = recorded(10).shown("15m") | {"marks": []}
    assert orjson.dumps(history.shown("15m") | {"marks": []}) == orjson.dumps(again)


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
    assert len(arrays) == 8 * (len(RANGES) - 1), "an hour is not over"
    assert sum(array.nbytes for array in arrays if isinstance(array, np.ndarray)) < 300_000
