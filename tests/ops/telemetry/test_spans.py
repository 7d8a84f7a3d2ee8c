"""One span for each batch, of what tasks and readers report."""

from pathlib import Path
from typing import Any

import pytest

from penstock.ops.board import Board
from penstock.ops.reporter import Reporter
from penstock.ops.reports import SpansReport, StoredBatch
from penstock.ops.telemetry import telemetry
from penstock.ops.telemetry.spans import WAITING
from tests.servers.otlp import Collector, attributes
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("log")
T = 1_700_000_000_000_000_000


@pytest.fixture
def traced(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Collector:
    """One that gets spans alone."""
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    return collector


def stored(*cursors: int, partition: str = "p") -> SpansReport:
    return SpansReport(stored=[
        list(StoredBatch(
            partition=partition, place=f"{cursor:08}:2", changes=3,
            captured=T, handed=T + 10, decoded=T + 20, stored=T + 30,
        )) for cursor in cursors
    ])  # fmt: skip


def saved(cursor: int, partition: str = "p") -> SpansReport:
    return SpansReport(saved={partition: f"{cursor:08}:9"}, began=T + 40, ended=T + 50)


def of(collector: Collector) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for span in collector.spans:
        found.setdefault(span.name, []).append(span)
    return found


def times(span: Any) -> tuple[int, int]:
    return span.start_time_unix_nano - T, span.end_time_unix_nano - T


def test_a_batch_is_one_trace_of_what_was_done_with_it(
    board: Board, traced: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    reporter = Reporter(tmp_path / "board")
    with telemetry(board, list, {}):
        reporter.report("shop", stored(1))
        reporter.report("shop", saved(1))
        until(lambda: "batch" in of(traced))
        board.post("shop", stored(2))
        board.post("shop", saved(2, partition="another"))
        board.post("bills", saved(2))
    assert not board.snapshot().of(SpansReport)
    found = of(traced)
    first, second = sorted(found["batch"], key=lambda span: attributes(span)["penstock.place"])
    assert attributes(first) == {
        "penstock.backend": "shop", "penstock.partition": "p",
        "penstock.place": "00000001:2", "penstock.changes": 3,
    }  # fmt: skip
    assert times(first) == (0, 50)
    assert times(second) == (0, 30), "no save covered it"
    within = {
        span.name: times(span) for span in traced.spans
        if span.trace_id == first.trace_id and span.parent_span_id == first.span_id
    }  # fmt: skip
    assert within == {"read": (0, 10), "decode": (10, 20), "store": (20, 30), "save": (40, 50)}
    assert first.trace_id != second.trace_id


def test_the_sampler_that_is_set_decides(
    board: Board, traced: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.2")
    with telemetry(board, list, {}):
        for cursor in range(300):
            board.post("shop", stored(cursor))
        board.post("shop", saved(300))
    found = of(traced)
    assert 20 < len(found["batch"]) < 120
    assert len(found["store"]) == len(found["batch"])


def test_what_waits_for_a_save_is_bounded(
    board: Board, traced: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with telemetry(board, list, {}):
        board.post("shop", stored(*range(WAITING + 5)))
        until(lambda: len(of(traced).get("batch", ())) == 5)


def test_a_micro_batch_of_rows_is_one_span_however_often_it_is_reported(
    board: Board, traced: Collector
) -> None:
    timings = {"latestOffset": 5, "addBatch": 30, "queryPlanning": 2, "triggerExecution": 40}
    with telemetry(board, list, {}):
        for number in (0, 0, 1):
            board.post("shop", SpansReport(micro_batch={"id": number, "timings": timings}))
        idle = {"id": 2, "timings": {"latestOffset": 1, "triggerExecution": 1}}
        board.post("shop", SpansReport(micro_batch=idle))
    found = of(traced)
    assert [attributes(span)["penstock.micro_batch"] for span in found["batch"]] == [0, 1]
    assert len(found["read"]) == len(found["store"]) == 2


def test_without_telemetry_the_board_drops_times_of_batches(board: Board) -> None:
    board.post("shop", stored(1))
    assert not board.snapshot().of(SpansReport)
