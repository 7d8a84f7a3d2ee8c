"""Each loss of a source's connection and each recovery is one line of the log."""

from typing import Any

import pytest

from penstock.ops.announce import Announcement
from penstock.ops.board import Board
from penstock.ops.source_connections import BACK, LOST, SourceConnections

FINE = {"connected": True, "reconnects": 0, "last_error": "", "partition_count": 1}
GONE = FINE | {"connected": False, "last_error": "refused", "reconnects": 1}


def lines(*reports: tuple[float, dict[str, Any]]) -> list[Announcement]:
    """What is logged of these reports, (time, fields), each of which is looked at twice."""
    now = 0.0
    board, connections = Board("/nowhere", clock=lambda: now), SourceConnections()
    found: list[Announcement] = []
    for now, fields in reports:  # noqa: B007 - the clock
        board.post("source", "shop", fields, sender="reader")
        for _ in range(2):
            found += connections.changes(board.snapshot())
    return found


def test_a_loss_and_a_recovery_are_a_line_each_with_the_time_between() -> None:
    found = lines((0, FINE), (5, GONE), (9, GONE), (47.5, FINE | {"reconnects": 3}))
    assert found == [
        ("warning", LOST, {"backend": "shop", "error": "refused"}),
        ("info", BACK, {"backend": "shop", "away": 42.5}),
    ]


def test_a_loss_that_is_over_before_the_next_report_is_in_the_log_too() -> None:
    found = lines((0, FINE), (0.5, FINE | {"reconnects": 1}), (1, FINE | {"reconnects": 1}))
    assert [(line.event, line.fields.get("away")) for line in found] == [(LOST, None), (BACK, 0.5)]


def test_one_of_many_partitions_is_not_the_source() -> None:
    many = FINE | {"partition_count": 9}
    assert lines((0, many), (1, many | {"reconnects": 7, "last_error": "p1: refused"})) == []


@pytest.mark.parametrize(
    "reports",
    [
        [(0, FINE | {"connected": False}), (1, FINE)],  # a start
        [(0, FINE), (1, FINE | {"connected": False, "stopped": True})],  # a stop
        [(0, FINE | {"reconnects": 4})],
    ],
)
def test_what_is_no_loss(reports: list[tuple[float, dict[str, Any]]]) -> None:
    assert lines(*reports) == []


def test_a_source_that_is_away_at_the_start_is_a_loss() -> None:
    found = lines((0, GONE), (3, FINE))
    assert [line.event for line in found] == [LOST, BACK]
