"""What the log has of a pipeline's health."""

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from penstock.config import build_pipeline
from penstock.ops.board import Board
from penstock.ops.reports import QueryReport, SinkReport, SourceReport
from penstock.service.operations import Operations


@pytest.fixture
def board() -> Board:
    return Board("/nowhere")


@pytest.fixture
def operations(board: Board, tmp_path: Path) -> Operations:
    structlog.reset_defaults()
    document = {
        "name": "shop", "backends": [{"name": "a", "type": "memory"}], "sink": {"type": "memory"},
        "state": str(tmp_path),
    }  # fmt: skip
    pipeline = build_pipeline(document, name="test", secrets=[])
    return Operations(pipeline, board, stop=lambda: None, standby=lambda: None)


def seen(operations: Operations) -> list[tuple[str, str]]:
    with capture_logs() as lines:
        operations._watch_health()
    return [(line["log_level"], line["health"]) for line in lines]


def test_a_start_is_one_line(operations: Operations, board: Board) -> None:
    assert seen(operations) == []
    board.post("a", QueryReport(begun=True))
    board.post("a", SourceReport(connected=False))
    assert seen(operations) == []
    board.post("a", SourceReport(connected=True))
    with capture_logs() as lines:
        operations._watch_health()
    (line,) = lines
    assert (line["health"], line["warming_up"]) == ("ok", True)
    board.post("memory", SinkReport(connected=True))
    assert seen(operations) == []


def test_what_fails_at_a_start_is_logged(operations: Operations, board: Board) -> None:
    board.post("a", QueryReport(begun=False, last_error="refused"))
    assert seen(operations) == [("info", "degraded")]
    board.post("a", QueryReport(begun=True, last_error=""))
    board.post("a", SourceReport(connected=True))
    assert seen(operations) == [("info", "ok")]
    board.post("a", SourceReport(connected=False))
    assert seen(operations) == [("warning", "degraded")]
