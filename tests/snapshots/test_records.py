"""The status of snapshots, without servers."""

from dataclasses import replace

from penstock.snapshots.job import RunProgress
from penstock.snapshots.records import RunRecord, SnapshotTotals

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
