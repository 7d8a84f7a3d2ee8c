"""What the log says of a sink: each change once, the usual not at all."""

from typing import Any

from structlog.testing import capture_logs

from penstock.ops.announce import Announcer, announcements
from penstock.ops.board import Board


def board_of(*reports: dict[str, Any]) -> Board:
    board = Board("/nowhere")
    for fields in reports:
        board.post("sink", "jetstream", fields)
    return board


def test_the_delivery_is_told_with_its_reason() -> None:
    (told,) = announcements({}, board_of({"delivery": "deduplicated", "reason": "old"}).snapshot())
    assert told.level == "info"
    assert told.fields == {"sink": "jetstream", "delivery": "deduplicated", "reason": "old"}


def test_what_a_start_begins_with_is_no_news() -> None:
    usual = board_of({"pressure": "normal", "breaker": "closed"})
    assert not list(announcements({}, usual.snapshot()))


def test_alarms_have_their_level_and_their_reason() -> None:
    strained = board_of({"pressure": "critical", "breaker": "open", "breaker_reason": "no route"})
    told = {one.event: one for one in announcements({}, strained.snapshot())}
    assert [one.level for one in told.values()] == ["error", "error"]
    assert told["the sink's circuit breaker changed"].fields["breaker_reason"] == "no route"


def test_each_change_is_said_once() -> None:
    board, announcer = board_of({"pressure": "slow"}), Announcer()
    with capture_logs() as logs:
        for state in ("slow", "slow", "normal", "normal", "slow"):
            board.post("sink", "jetstream", {"pressure": state})
            announcer.announce(board.snapshot())
    assert [(line["log_level"], line["pressure"]) for line in logs] == [
        ("warning", "slow"),
        ("info", "normal"),
        ("warning", "slow"),
    ]


def test_only_sinks_are_announced() -> None:
    board = Board("/nowhere")
    board.post("source", "a", {"delivery": "x", "pressure": "slow"})
    assert not list(announcements({}, board.snapshot()))
