"""Losses are told once each, and until they were."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.config import Pipeline
from penstock.leases.gaps import Gaps
from penstock.leases.sqlite import SqliteStore
from penstock.ops.board import Board
from penstock.ops.reports import GapReport
from penstock.service.notices import BoardLog, GapAnnouncements
from tests.pipeline.running import messages
from tests.servers import Nats
from tests.service.pipelines import pipeline_of

GAP = {
    "id": "1", "cause": "slot_missing", "from": "0A:1", "to": "0B", "policy": "continue",
    "detail": "gone", "at": "2026-11-21T10:00:00Z",
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[Nats]:
    with Nats() as made:
        yield made


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with Board(tmp_path / "board") as made:
        yield made


@pytest.fixture
def pipeline(server: Nats, tmp_path: Path) -> Pipeline:
    sink = {"type": "jetstream", "url": server.url, "timeout": "20s"}
    return pipeline_of({"name": "default", "type": "memory"}, sink=sink, folder=tmp_path)


def gaps_of(folder: Path) -> Gaps:
    return Gaps(SqliteStore(folder / "positions.db"), "shop/default")


def shown(board: Board, folder: Path) -> None:
    """What the planner reports."""
    for partition, row in gaps_of(folder).rows().items():
        board.post(f"default/{partition}", GapReport(**row))


def told(server: Nats) -> list[Any]:
    return [message.body for message in messages(server, "PENSTOCK_EVENTS")]


def test_a_gap_is_told_once_by_all_the_services_that_ever_see_it(
    pipeline: Pipeline, server: Nats, board: Board, tmp_path: Path
) -> None:
    gaps_of(tmp_path).record("slot", GAP)
    for _ in range(2):
        notices = GapAnnouncements(pipeline)
        for now in range(3):
            shown(board, tmp_path)
            notices.tick(board.snapshot(), float(now))
    assert told(server) == [{"pipeline": "shop", "backend": "default", "partition": "slot", **GAP}]
    assert gaps_of(tmp_path).rows()["slot"]["gaps"][0]["announced"]


@pytest.mark.parametrize(("policy", "count"), [("continue", 0), ("fail", 1)])
def test_a_gap_whose_end_is_not_known_yet_is_told_when_there_will_be_none(
    pipeline: Pipeline, server: Nats, board: Board, tmp_path: Path, policy: str, count: int
) -> None:
    gaps_of(tmp_path).record("slot", {**GAP, "to": "", "policy": policy})
    shown(board, tmp_path)
    GapAnnouncements(pipeline).tick(board.snapshot(), 0.0)
    assert len(told(server)) == count


def test_a_gap_before_which_we_stood_still_is_told_again_when_we_go_on(
    pipeline: Pipeline, server: Nats, board: Board, tmp_path: Path
) -> None:
    notices = GapAnnouncements(pipeline)
    for policy, end in (("fail", ""), ("continue", ""), ("continue", "0B"), ("continue", "0B")):
        gaps_of(tmp_path).record("slot", {**GAP, "policy": policy, "to": end})
        shown(board, tmp_path)
        notices.tick(board.snapshot(), 0.0)
    found = [(each["policy"], each["to"]) for each in told(server)]
    assert found == [("fail", ""), ("continue", "0B")]


def test_what_could_not_be_told_is_told_later(
    pipeline: Pipeline, server: Nats, board: Board, tmp_path: Path
) -> None:
    gaps_of(tmp_path).record("slot", GAP)
    shown(board, tmp_path)
    notices = GapAnnouncements(pipeline)
    server.stop()
    notices.tick(board.snapshot(), 0.0)
    assert not gaps_of(tmp_path).rows()["slot"]["gaps"][0]["announced"]
    server.start()
    notices.tick(board.snapshot(), 0.0)  # not so soon
    assert told(server) == []
    notices.tick(board.snapshot(), 60.0)
    assert len(told(server)) == 1


def test_a_stop_logs_what_was_lost_and_leaves_the_announcement_to_the_next_start(
    pipeline: Pipeline, server: Nats, board: Board, tmp_path: Path
) -> None:
    gaps_of(tmp_path).record("slot", GAP)
    shown(board, tmp_path)
    lines = BoardLog()
    with capture_logs() as logged:
        lines.write(board.snapshot())
        lines.write(board.snapshot())
    assert [(line["event"], line["cause"]) for line in logged] == [("history lost", "slot_missing")]
    assert not gaps_of(tmp_path).rows()["slot"]["gaps"][0]["announced"]
