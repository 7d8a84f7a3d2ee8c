"""Rows of partitions: their sums, how they cross to the board, and which of them are shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.board import Board, Entry
from penstock.ops.health import Thresholds
from penstock.ops.partitions import PartitionReports, shown, summed
from penstock.ops.reporter import Reporter
from penstock.ops.reports import PartitionReport, SourceReport
from penstock.ops.status import Status, assess
from tests.waiting import until

LIMITS = Thresholds(stalled_after=30, lag_limit=1000)


def row(**more: Any) -> PartitionReport:
    known = {"state": "reading", "place": "0A:1", "lag": 0, "lag_unit": "changes", **more}
    return PartitionReport(**known)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with Board(tmp_path / "board") as found:
        yield found


def arrived(board: Board, backend: str, count: int) -> dict[str, Entry[PartitionReport]]:
    until(lambda: len(board.snapshot().rows(PartitionReport, backend)) >= count)
    return board.snapshot().rows(PartitionReport, backend)


def test_counts_are_sums_and_the_longest_lag_is_the_lag() -> None:
    found = summed(
        {
            "p0": row(buffered_events=2, buffered_bytes=5, lag=7, lag_seconds=1.5),
            "p1": row(buffered_events=3, buffered_bytes=6, lag=1, lag_seconds=9.0),
            "p2": row(state="ended"),
            "p3": row(lag=100, lag_unit="bytes"),
        },
        {},
    )
    assert (found.buffered_events, found.buffered_bytes) == (5, 11)
    assert (found.lag, found.lag_bytes) == ({"changes": 8, "bytes": 100}, 100)
    assert found.lag_seconds == 9.0
    assert (found.partition_count, found.partition_states) == (4, {"reading": 3, "ended": 1})


def test_what_is_not_known_is_no_sum() -> None:
    found = summed({"p0": PartitionReport(), "p1": PartitionReport(lag=None)}, {})
    assert (found.lag, found.lag_bytes, found.lag_seconds) == ({}, None, None)


@pytest.mark.parametrize(
    ("states", "connected"),
    [
        ((), False),
        (("reading",), True),
        (("disconnected",), False),
        (("disconnected", "reading"), True),
        (("disconnected", "waiting", "ended"), False),
        (("ended", "waiting"), True),
    ],
)
def test_a_backend_is_disconnected_when_none_of_its_partitions_is_read(
    states: tuple[str, ...], connected: bool
) -> None:
    rows = {f"p{number}": row(state=state) for number, state in enumerate(states)}
    assert summed(rows, {}).connected is connected


def test_a_backend_of_one_partition_speaks_as_it_does() -> None:
    one = row(confirmed="0/1", reader="77", details={"slot": "s"}, last_error="refused")
    found = summed({"s": one}, {})
    assert (found.confirmed, found.reader) == ("0/1", "77")
    assert (found.details, found.last_error) == ({"slot": "s"}, "refused")
    found = summed({"s": one, "t": row()}, {})
    assert found.details == {}
    assert found.last_error == "s: refused"


def test_a_thousand_rows_cross_whole(board: Board) -> None:
    reports = PartitionReports(Reporter(board.path), "shop")
    rows = {f"shard-{number:04}": row(place=f"{number:040}:0") for number in range(1000)}
    for _ in range(10):
        reports.send(rows)
    found = arrived(board, "shop", 1000)
    assert {name: entry.report for name, entry in found.items()} == rows
    assert board.ignored == 0


class Sent(Reporter):
    """Keeps what it is told to send."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.rounds: list[list[str]] = []

    def report_rows(self, name: str, rows: Any) -> None:
        self.rounds.append(list(rows))


def test_a_round_is_bounded_and_leaves_out_nobody() -> None:
    board = Sent()
    reports = PartitionReports(board, "shop")
    rows: dict[str, PartitionReport] = {f"p{number}": row() for number in range(10_000)}
    for number in range(40):
        # All but one change all the time.
        rows = {name: row(place=f"{number}:0") if name != "p7" else row() for name in rows}
        reports.send(rows)
    assert {len(names) for names in board.rounds} == {1000}
    assert set().union(*board.rounds[:10]) == rows.keys()
    last = [number for number, names in enumerate(board.rounds) if "p7" in names]
    assert len(last) > 1, "who changes nothing was never sent again"


def test_what_changed_is_sent_in_the_next_round() -> None:
    board = Sent()
    reports = PartitionReports(board, "shop")
    rows = {f"p{number}": row() for number in range(1000)}
    for _ in range(10):
        reports.send(rows)
    reports.send({**rows, "p500": row(place="0B:1")})
    assert "p500" in board.rounds[-1]


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
    names = [each.partition for each in shown(found, 1.0)]
    assert names == ["gone", "failing", "later", "late", "many", "idle"]
    assert [each.partition for each in shown(found, 1.0, 2)] == ["gone", "failing"]
    assert len(shown(found, 1.0, None)) == 6


def test_the_status_of_the_source_as_a_whole_is_beside_that_of_its_partitions() -> None:
    rows = {"p0": row(), "p1": row(throttled=True)}
    assert summed(rows, {}).source_state == "throttled"
    found = summed(rows, {"state": "disabled", "message": "no stream", "at_risk": "soon"})
    assert (found.source_state, found.source_message) == ("disabled", "no stream")
    assert found.at_risk == "soon"


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
