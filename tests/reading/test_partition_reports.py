"""Rows of partitions: their sums, and how they cross to the board."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.board import Board, Entry
from penstock.ops.reporter import Reporter
from penstock.ops.reports import PartitionReport
from penstock.reading.partition_reports import PartitionReports, summed
from tests.waiting import until


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_the_status_of_the_source_as_a_whole_is_beside_that_of_its_partitions() -> None:
    rows = {"p0": row(), "p1": row(throttled=True)}
    assert summed(rows, {}).source_state == "throttled"
    found = summed(rows, {"state": "disabled", "message": "no stream", "at_risk": "soon"})
    assert (found.source_state, found.source_message) == ("disabled", "no stream")
    assert found.at_risk == "soon"
