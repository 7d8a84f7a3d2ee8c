"""The states of a run and what holds in all of them, its status, and its pace; without servers."""

from dataclasses import replace
from itertools import product

import pytest

from penstock.config import SnapshotSettings
from penstock.snapshots.job import TABLE, RunControl, RunEvent, RunProgress, RunState, SnapshotPace
from penstock.snapshots.records import RunRecord, SnapshotTotals
from tests.snapshots.conftest import StatedPipeline


def control_of(*events: RunEvent) -> RunControl:
    made = RunControl(StatedPipeline(), SnapshotPace(SnapshotSettings()))
    for event in events:
        made.on(event)
    return made


def test_every_state_can_be_cancelled_and_stays_so() -> None:
    cancelled = {RunState.CANCELLED, RunState.WITHDRAWN}
    for state in RunState:
        assert TABLE[state, RunEvent.CANCEL] in cancelled
    for state, event in product(cancelled, RunEvent):
        assert TABLE.get((state, event), state) is state


def test_once_the_meta_was_sent_it_may_be_stored_whatever_happens() -> None:
    """So that no chunk is deleted."""
    sent = {RunState.SENT, RunState.DOUBTFUL, RunState.WITHDRAWN}
    for (state, _), found in TABLE.items():
        assert state not in sent or found in sent


def test_a_run_that_is_cancelled_sends_no_meta() -> None:
    control = control_of(RunEvent.FINISH, RunEvent.CANCEL)
    assert control.on(RunEvent.SEND) is RunState.CANCELLED


def test_only_a_run_that_still_reads_goes_on_under_another_snapshot() -> None:
    assert control_of(RunEvent.FAIL).may_go_on
    assert not control_of(RunEvent.FINISH).may_go_on
    assert not control_of(RunEvent.CANCEL).may_go_on
    with pytest.raises(KeyError, match="RunState that is read cannot have go on"):
        control_of(RunEvent.FINISH).go_on()


def test_threads_end_after_a_failure_and_begin_again_with_the_next_snapshot() -> None:
    control = control_of()
    control.fail(ValueError("first"))
    control.fail(ValueError("second"))
    assert (control.is_over(), str(control.failure)) == (True, "first")
    control.go_on()
    assert (control.is_over(), control.failure) == (False, None)


def test_threads_end_once_the_pipeline_is_not_ours() -> None:
    pipeline = StatedPipeline()
    control = RunControl(pipeline, SnapshotPace(SnapshotSettings()))
    pipeline.is_ours = False
    assert (control.is_over(), control.may_go_on) == (True, False)


RECORD = RunRecord(
    snapshot_id="snap-1", pipeline="p", backend="shop", schema="public", table="t", name=("t",),
    state="running",
)  # fmt: skip


def test_time_left_is_of_the_ranges_that_were_read_since_the_beginning() -> None:
    progress = RunProgress(ranges=10, done=4, done_before=2, chunks=8, rows=80, bytes=8000)
    progress.begun_at = 100.0
    (found,) = SnapshotTotals().status([(RECORD, progress)], 120.0)["current"]
    assert (found["bytes_per_second"], found["seconds_left"]) == (400, 60.0)
    assert (found["table"], found["ranges"], found["done"]) == ("t", 10, 4)


def test_a_run_that_has_not_begun_has_no_speed() -> None:
    (found,) = SnapshotTotals().status([(RECORD, RunProgress())], 120.0)["current"]
    assert (found["bytes_per_second"], found["seconds_left"]) == (None, None)


def test_what_ended_counts_on() -> None:
    totals = SnapshotTotals()
    totals.ended(replace(RECORD, state="done", chunks=2, rows=20, bytes=200))
    totals.ended(replace(RECORD, state="failed"))
    progress = RunProgress(ranges=1, chunks=1, rows=5, bytes=50)
    found = totals.status([(RECORD, progress)], 1.0)
    assert found["runs"] == {"done": 1, "failed": 1}
    assert (found["chunks"], found["rows"], found["bytes"]) == (3, 25, 250)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_bytes_are_let_through_at_the_rate() -> None:
    clock = Clock()
    pace = SnapshotPace(SnapshotSettings(rate=1000), clock=lambda: clock.now, sleep=clock.sleep)
    passed = []
    for _ in range(4):
        pace.wait(0, 500, lambda: False)
        passed.append(round(clock.now, 6))
    assert passed == [100.0, 100.5, 101.0, 101.5]


def test_rows_are_let_through_at_the_slower_of_two_rates() -> None:
    clock = Clock()
    settings = SnapshotSettings(rate=1000, row_rate=10)
    pace = SnapshotPace(settings, clock=lambda: clock.now, sleep=clock.sleep)
    passed = []
    for rows, size in ((10, 500), (1, 2000), (1, 1)):
        pace.wait(rows, size, lambda: False)
        passed.append(round(clock.now, 6))
    assert passed == [100.0, 101.0, 103.0]


def test_time_without_chunks_is_not_saved_up() -> None:
    clock = Clock()
    pace = SnapshotPace(SnapshotSettings(rate=1000), clock=lambda: clock.now, sleep=clock.sleep)
    pace.wait(0, 500, lambda: False)
    clock.now += 60
    for _ in range(2):
        pace.wait(0, 1000, lambda: False)
    assert round(clock.now, 6) == 161.0


def test_what_is_over_does_not_wait_and_without_a_rate_nothing_does() -> None:
    clock = Clock()
    pace = SnapshotPace(SnapshotSettings(rate=1), clock=lambda: clock.now, sleep=clock.sleep)
    pace.wait(0, 500, lambda: True)
    pace.wait(0, 500, lambda: True)
    SnapshotPace(SnapshotSettings(), sleep=clock.sleep).wait(0, 10**9, lambda: False)
    assert clock.now == 100.0
