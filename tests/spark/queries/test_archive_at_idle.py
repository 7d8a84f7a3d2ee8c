"""When the class archive is made."""

from pathlib import Path

import pytest

from penstock.ops.board import Board
from penstock.ops.reports import SinkReport, SourceReport
from penstock.spark.queries import archive_at_idle
from penstock.spark.queries.archive_at_idle import LITTLE, QUIET, ArchiveAtIdle
from tests.waiting import Clock


def test_it_is_made_once_when_little_was_stored_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, clock = list[float](), Clock()
    monkeypatch.setattr(archive_at_idle, "archive_at_idle", lambda: made.append(clock()))
    board = Board(tmp_path / "board", clock=clock)
    part, total = ArchiveAtIdle(board), 0

    def run(seconds: float, stored: float = 0.0) -> None:
        nonlocal total
        for _ in range(int(seconds)):
            clock.now += 1.0
            total += int(stored)
            board.post("s", SinkReport(acknowledged=total), sender="task")
            part.tick(clock())

    run(2 * QUIET)
    assert not made, "no source is connected"
    board.post("a", SourceReport(connected=True))
    run(2 * QUIET, stored=10 * LITTLE)
    assert not made, "it has much to do"
    run(QUIET, stored=LITTLE / 10)  # the rate is of the last ten seconds
    assert not made, "it has had little to do for less than that"
    run(10 * QUIET, stored=LITTLE / 10)
    assert len(made) == 1
