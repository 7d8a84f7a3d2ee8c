"""What the status page says of a backend's snapshots. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from penstock.snapshots.job import RunProgress
from penstock.snapshots.records import RunRecord

_COUNTED = "chunks", "rows", "bytes"


class SnapshotTotals:
    """Counts the runs of one backend that ended, and what was stored, since the service started."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()
        self._stored: Counter[str] = Counter()

    def ended(self, record: RunRecord) -> None:
        """Counts a run."""
        self._runs[record.state] += 1
        self._stored.update({key: getattr(record, key) for key in _COUNTED})

    def status(
        self, running: Iterable[tuple[RunRecord, RunProgress]], now: float
    ) -> dict[str, Any]:
        """The counts, with those of runs that have not ended; `now` is monotonic seconds."""
        current = [_of(record, progress, now) for record, progress in running]
        stored = {key: self._stored[key] + sum(one[key] for one in current) for key in _COUNTED}
        return {"runs": dict(self._runs), **stored, "current": current}


def _of(record: RunRecord, progress: RunProgress, now: float) -> dict[str, Any]:
    seconds = now - progress.begun_at if progress.begun_at else 0.0
    read = progress.done - progress.done_before
    left = None if not read else seconds / read * (progress.ranges - progress.done)
    return {
        "snapshot_id": record.snapshot_id,
        "table": ".".join(record.name),
        "state": record.state,
        "waiting": progress.waiting,
        "ranges": progress.ranges,
        "done": progress.done,
        "chunks": progress.chunks,
        "rows": progress.rows,
        "bytes": progress.bytes,
        "bytes_per_second": round(progress.bytes / seconds) if seconds else None,
        "seconds_left": None if left is None else round(left, 1),
    }
