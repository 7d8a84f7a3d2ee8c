"""Rows of partitions: for how long they are known, and which of them are shown."""

from collections.abc import Iterator
from typing import Any

from penstock.ops.board import Board, Entry
from penstock.ops.partitions import most_urgent
from penstock.ops.reports import PartitionReport, SourceReport
from penstock.ops.status import Status, assess
from penstock.ops.thresholds import Thresholds
from penstock.reading.partition_reports import summed

LIMITS = Thresholds(stalled_after=30, lag_limit=1000)


def row(**more: Any) -> PartitionReport:
    known = {"state": "reading", "place": "0A:1", "lag": 0, "lag_unit": "changes", **more}
    return PartitionReport(**known)


def test_a_partition_that_is_not_reported_any_more_is_forgotten() -> None:
    now = 0.0
    board = Board("/nowhere", clock=lambda: now)
    board.post("shop/p0", row())
    board.post("shop", SourceReport())
    now = 59.0
    assert board.snapshot().rows(PartitionReport, "shop")
    now = 61.0
    assert not board.snapshot().rows(PartitionReport, "shop")
    assert "shop" in board.snapshot().of(SourceReport)


def entries(**rows: PartitionReport) -> dict[str, Entry[PartitionReport]]:
    board = Board("/nowhere", clock=lambda: 0.0)
    for name, fields in rows.items():
        board.post(f"shop/{name}", fields)
    return board.snapshot().rows(PartitionReport, "shop")


def test_those_that_need_attention_are_shown_first() -> None:
    found = entries(
        idle=row(),
        late=row(lag_seconds=5.0),
        later=row(lag_seconds=50.0),
        failing=row(last_error="throttled"),
        gone=row(state="disconnected", last_error="refused"),
        many=row(lag=9),
    )
    names = [name for name, _ in most_urgent(found)]
    assert names == ["gone", "failing", "later", "late", "many", "idle"]
    assert [name for name, _ in most_urgent(found, 2)] == ["gone", "failing"]
    assert len(most_urgent(found, None)) == 6


def status_of(board: Board, now: float, **more: Any) -> Status:
    return assess(
        board.snapshot(),
        name="shop",
        version="1",
        backends=["shop"],
        started=0.0,
        now=now,
        thresholds=LIMITS,
        **more,
    )


def posted(rows: dict[str, PartitionReport], times: Iterator[float] | range) -> Board:
    """The board of a reader that reported the same rows at these times."""
    now = 0.0
    board = Board("/nowhere", clock=lambda: now, bounds=LIMITS.bounds)
    for at in times:
        now = float(at)
        board.post("shop", summed(rows, {}))
        for name, fields in rows.items():
            board.post(f"shop/{name}", fields)
    return board


def test_the_status_is_bounded_unless_it_is_asked_for_all() -> None:
    board = posted({f"p{number}": row() for number in range(50)}, range(1))
    assert len(status_of(board, 1.0).backends[0].partitions) == 20
    assert len(status_of(board, 1.0, partitions=None).backends[0].partitions) == 50
    assert status_of(board, 1.0).backends[0].partition_count == 50


def test_one_partition_that_is_stuck_is_unhealthy_however_the_others_move() -> None:
    now = 0.0
    board = Board("/nowhere", clock=lambda: now, bounds=LIMITS.bounds)
    for at in range(50):
        now = float(at)
        rows = {"p0": row(place=f"{at}:0", lag=5), "p1": row(lag=5), "p2": row()}
        board.post("shop", summed(rows, {}))
        for name, fields in rows.items():
            board.post(f"shop/{name}", fields)
    found = status_of(board, 49.0)
    assert found.health == "unhealthy"
    (reason,) = found.reasons
    assert "1 of 3 partitions are behind, and have not moved for up to 49 s (p1)" in reason


def test_a_log_that_grows_by_what_is_not_ours_is_not_behind() -> None:
    rows = {"s": row(lag=900, lag_unit="bytes"), "t": row(lag=90, lag_unit="bytes")}
    assert status_of(posted(rows, range(50)), 49.0).health == "ok"


def test_many_partitions_that_are_disconnected_are_one_reason() -> None:
    rows: dict[str, PartitionReport] = {
        f"p{n}": row(state="disconnected", last_error="x") for n in range(40)
    }
    found = status_of(posted({**rows, "q": row()}, range(20)), 19.0)
    (reason,) = found.reasons
    assert reason.startswith("backend shop: 40 of 41 partitions disconnected for up to 19 s (p0, ")
    assert reason.endswith(", and 30 more): x")
    assert found.health == "degraded"


def test_a_change_in_flight_that_is_old_is_behind_in_whatever_unit() -> None:
    rows = {"p0": row(lag_seconds=301.0, place="1:0"), "p1": row()}
    found = status_of(posted(rows, range(2)), 1.0)
    assert (found.health, found.reasons) == ("degraded", ("backend shop: 301 s behind the source",))


def test_the_window_of_a_backend_is_that_of_the_partition_that_leaves_it_first() -> None:
    rows = {
        "p0": row(window_seconds=86_400, window_left_seconds=80_000),
        "p1": row(window_seconds=86_000, window_left_seconds=70_000),
        "p2": row(),
    }
    found = summed(rows, {})
    assert (found.window_seconds, found.window_left_seconds) == (86_000, 70_000)
    found = summed({"p0": row(window_seconds=60), "p1": row()}, {})
    assert (found.window_seconds, found.window_left_seconds) == (60, None)
