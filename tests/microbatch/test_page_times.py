"""When pages of a task were decoded and stored: what is reported of them, for spans."""

from dataclasses import replace
from typing import Any

from penstock.microbatch.page_times import EVERY, WAITING, PageTimes
from penstock.model.position import PartitionId, Place
from penstock.ops.reporter import Reporter
from penstock.ops.reports import SpansReport, StatusReport, StoredBatch
from tests.microbatch.test_task import PAGE
from tests.work.scenarios import changes

BATCH = changes(100)
LAST = Place(BATCH.column("cursor")[-1].as_py(), BATCH.column("ordinal")[-1].as_py())
BEFORE = Place(LAST.cursor, LAST.ordinal - 1)


class Board(Reporter):
    def __init__(self) -> None:
        super().__init__("/nobody/listens")
        self.stored: list[StoredBatch] = []

    def report(self, name: str, report: StatusReport) -> None:
        assert isinstance(report, SpansReport)
        assert name == "default"
        self.stored += [StoredBatch(*each) for each in report.stored]


def noted(*pages: Any) -> tuple[Board, PageTimes]:
    """Pages that were handed over far enough from one another."""
    board = Board()
    times = PageTimes(board)
    for number, page in enumerate(pages, 1):
        times.decoded(page, [BATCH, BATCH.slice(0, 0)], number * EVERY)
    return board, times


def test_a_page_is_reported_once_when_its_last_change_is_stored() -> None:
    board, times = noted(PAGE)
    times.stored({PAGE.partition: BEFORE})
    times.stored({PartitionId("another"): LAST})
    assert board.stored == []
    times.stored({PAGE.partition: LAST})
    times.stored({PAGE.partition: LAST})
    (found,) = board.stored
    assert (found.partition, found.place, found.changes) == (PAGE.partition, str(LAST), 100)
    assert found.captured == PAGE.captured_at * 1000
    assert found.handed == EVERY
    assert EVERY < found.decoded <= found.stored


def test_a_partition_that_waits_does_not_keep_another_one() -> None:
    board, times = noted(PAGE, replace(PAGE, partition=PartitionId("another")))
    times.stored({PartitionId("another"): LAST})
    assert [each.partition for each in board.stored] == ["another"]


def test_a_page_without_changes_or_soon_after_another_is_not_noted() -> None:
    board, times = noted(PAGE)
    times.decoded(PAGE, [BATCH.slice(0, 0)], 9 * EVERY)
    times.decoded(PAGE, [BATCH], 2 * EVERY - 1)
    times.stored({PAGE.partition: LAST})
    assert len(board.stored) == 1


def test_what_waits_to_be_stored_is_bounded() -> None:
    board, times = noted(*[PAGE] * (WAITING + 5))
    times.stored({PAGE.partition: LAST})
    assert len(board.stored) == WAITING
    assert board.stored[0].handed == 6 * EVERY
