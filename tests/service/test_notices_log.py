"""What the log says of the board's reports: each change once, the usual not at all."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.ops.board import Board
from penstock.ops.reports import SinkReport, SourceReport, StatusReport, TableStatus
from penstock.service.notices import BACK, LOST, BoardLog, LogLine

Made = tuple[str, StatusReport]

TABLE: dict[str, Any] = {"backend": "a", "table": "public.t", "reason": "no-key", "skipped": 3}
FINE = {"connected": True, "reconnects": 0, "last_error": "", "partition_count": 1}
GONE = FINE | {"connected": False, "last_error": "refused", "reconnects": 1}


def told(*reports: Made) -> list[LogLine]:
    """What is said after each report."""
    board, written, found = Board("/nowhere"), BoardLog(), list[LogLine]()
    for name, report in reports:
        board.add(name, report)
        found += written.changes(board.snapshot())
    return found


def sink(**fields: Any) -> Made:
    return "jetstream", SinkReport(**fields)


def table(state: str) -> Made:
    return "a/public.t", TableStatus(**TABLE, state=state)


def test_the_delivery_is_told_with_its_reason() -> None:
    (line,) = told(sink(delivery="deduplicated", details={"reason": "old"}))
    assert line.level == "info"
    assert line.fields == {"sink": "jetstream", "delivery": "deduplicated", "reason": "old"}


@pytest.mark.parametrize(
    "report",
    [
        sink(pressure="normal", breaker="closed"),  # what a start begins with
        table("following"),  # suspended long ago
        ("a", SourceReport()),
    ],
)
def test_what_is_no_news(report: Made) -> None:
    assert told(report) == []


def test_alarms_have_their_level_and_their_reason() -> None:
    found = told(sink(pressure="critical", breaker="open", breaker_reason="no route"))
    by_event = {one.event: one for one in found}
    assert [one.level for one in by_event.values()] == ["error", "error"]
    assert by_event["the sink's circuit breaker changed"].fields["breaker_reason"] == "no route"


def test_each_change_is_said_once() -> None:
    board, written = Board("/nowhere"), BoardLog()
    with capture_logs() as logs:
        for state in ("slow", "slow", "normal", "normal", "slow"):
            board.add(*sink(pressure=state))
            written.write(board.snapshot())
    assert [(line["log_level"], line["pressure"]) for line in logs] == [
        ("warning", "slow"),
        ("info", "normal"),
        ("warning", "slow"),
    ]


def test_each_state_of_a_table_is_said_once() -> None:
    found = told(table("suspended"), table("suspended"), table("resuming"), table("following"))
    assert [(one.level, one.event) for one in found] == [
        ("warning", "a table is suspended"),
        ("info", "a table resumes with its next change"),
        ("info", "a table is followed again"),
    ]
    assert found[0].fields["table"] == "public.t"


def test_dead_letters_are_said_as_they_come() -> None:
    found = told(
        sink(dead_letters={"too-large": 2}),
        sink(connected=True),
        sink(dead_letters={"too-large": 1, "no-key": 1}),
    )
    assert sorted((one.fields["reason"], one.fields["changes"]) for one in found) == [
        ("no-key", 1),
        ("too-large", 1),
        ("too-large", 2),
    ]


def lines(*reports: tuple[float, dict[str, Any]]) -> list[LogLine]:
    """What is logged of a source's reports, (time, fields), each of which is looked at twice."""
    now = 0.0
    board, written = Board("/nowhere", clock=lambda: now), BoardLog()
    found: list[LogLine] = []
    for now, fields in reports:  # noqa: B007 - the clock
        board.post("shop", SourceReport(**fields), sender="reader")
        for _ in range(2):
            found += written.changes(board.snapshot())
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


@pytest.mark.parametrize(
    "reports",
    [
        [(0, FINE | {"connected": False}), (1, FINE)],  # a start
        [(0, FINE), (1, FINE | {"connected": False, "stopped": True})],  # a stop
        [(0, FINE | {"reconnects": 4})],
        # One of many partitions is not the source.
        [(0, FINE | {"partition_count": 9}),
         (1, FINE | {"partition_count": 9, "reconnects": 7, "last_error": "p1: refused"})],
    ],
)  # fmt: skip
def test_what_is_no_loss(reports: list[tuple[float, dict[str, Any]]]) -> None:
    assert lines(*reports) == []


def test_a_source_that_is_away_at_the_start_is_a_loss() -> None:
    found = lines((0, GONE), (3, FINE))
    assert [line.event for line in found] == [LOST, BACK]
