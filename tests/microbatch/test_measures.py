"""What a task measures: nothing of a page is lost, and nothing but numbers is kept of it."""

from collections import Counter

import pytest

from penstock.microbatch import task
from penstock.microbatch.task import Measures
from penstock.ops.reporter import Reporter
from penstock.ops.reports import MeasureReport, StatusReport
from penstock.process.histograms import histograms
from tests.microbatch.test_task import PAGE
from tests.work.scenarios import changes


class Board(Reporter):
    def __init__(self) -> None:
        super().__init__("/nobody/listens")
        self.counts: Counter[str] = Counter()
        self.reports = 0

    def add(self, name: str, report: StatusReport) -> None:
        assert isinstance(report, MeasureReport)
        assert name == "default"
        self.counts.update(report.histograms)
        self.reports += 1


def test_every_page_is_counted_once_whenever_it_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(task.time, "monotonic", lambda: now)
    board = Board()
    measured = Measures(board)
    for _ in range(5):
        measured.page(PAGE, [changes(100), changes(300).slice(0, 0)])
        measured.report()
        now += 0.2
    assert board.reports == 2  # at once, and after half a second
    measured.page(PAGE, [changes(100).slice(0, 0)])  # of which the filter left nothing
    measured.report_now()
    found = histograms(board.counts)
    assert found["batch"]["buckets"]["+Inf"] == found["ingest"]["buckets"]["+Inf"] == 5
    assert found["batch"]["sum"] == 500


def test_nobody_is_told_where_nobody_listens() -> None:
    measured = Measures(None)
    measured.page(PAGE, [changes(100)])
    measured.report()
    measured.report_now()
