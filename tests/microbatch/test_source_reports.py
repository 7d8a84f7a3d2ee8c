"""When a reader process reports."""

from typing import Any

import pytest

from penstock.microbatch import source_reports
from penstock.microbatch.source_reports import SourceReports
from penstock.ops.reports import StatusReport
from penstock.reading.remaining import Remaining
from penstock.reading.silences import Silences
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.microbatch.opened import Opened
from tests.reading.made import P0, Made, place, positions_of
from tests.waiting import until


class Sent:
    """In place of a `Reporter`."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def report(self, name: str, report: StatusReport) -> None:
        """Notes it."""
        self.kinds.append(report.kind)

    def report_rows(self, *_: Any) -> None:
        """Of partitions and gaps."""


def test_what_does_not_move_is_reported_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_reports, "REPORT", 0.0)
    monkeypatch.setattr(source_reports, "SAME", 3600.0)
    made = Made(StagedFeed(StagedSettings(changes=2, page=1, unit=1)), positions=positions_of())
    epochs = made.epochs()
    reading, sent = Opened(epochs), Sent()
    board: Any = sent
    reports = SourceReports(board, made.feed)
    reports.show(reading, made.gaps, Silences(made.gaps, None), Remaining(made.feed, reading))

    def reported() -> int:
        before = len(sent.kinds)
        for _ in range(3):
            reports.report()
        return len(sent.kinds) - before

    until(lambda: made.reservoir.counts["events"] == 2)
    reports.report()
    assert reported() == 0
    epochs.stored({P0: place(1)})
    assert reported() == 1
    reports.batches += 1
    assert reported() == 1
    made.reservoir.close(P0)
    assert reported() == 1
    monkeypatch.setattr(source_reports, "SAME", 0.0)
    assert reported() == 3
    reading.stop(5.0)
