"""What charts show: of the last 15 minutes by the second, of the last hour by ten seconds, of a day
by the minute, of a week by the hour; and what happened to the pipeline since the service started.

In arrays: 23 KB for each number, six of a backend and three of a sink, however many partitions.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.ops.board import Snapshot, is_idle
from penstock.ops.reports import SinkReport, SourceReport, described
from penstock.ops.status import Status

# Of each range the seconds between two values, and how many there are. Each is summed up from the
# one before, which has all values of a step of it.
RANGES: Mapping[str, tuple[int, int]] = {
    "15m": (1, 900), "1h": (10, 360), "24h": (60, 1440), "7d": (3600, 168),
}  # fmt: skip
_MARKS = 500  # that are kept


class _Ring:
    """The latest values of some series, each at the time `at` or `size` steps before, at most."""

    def __init__(self, step: int, size: int) -> None:
        self.step, self.size, self.at = step, size, -1
        self.values: dict[str, NDArray[np.float64]] = {}

    def put(self, at: int, row: Mapping[str, float]) -> None:
        """The values at a time; what has none there or in between is not known."""
        missed = np.arange(max(self.at + 1, at - self.size + 1), at + 1) % self.size
        self.at = at
        for name in row.keys() - self.values.keys():
            self.values[name] = np.full(self.size, np.nan)
        for name, values in [*self.values.items()]:
            values[missed] = np.nan
            values[at % self.size] = row.get(name, np.nan)
            if np.isnan(values).all():
                del self.values[name]  # it has left

    def latest(self, count: int, end: int) -> dict[str, NDArray[np.float64]]:
        """So many values, the last one at `end`."""
        slots = np.arange(end - count + 1, end + 1) % self.size
        return {name: values[slots] for name, values in self.values.items()}

    def sum_up(self, into: "_Ring", now: int) -> None:
        """Steps of `into` that are over: the mean of rates, and the worst of what else there is."""
        count, over = into.step // self.step, now // into.step
        for step in range(max(into.at + 1, over + 1 - self.size // count), over):
            row: dict[str, float] = {}
            for name, values in self.latest(count, (step + 1) * count - 1).items():
                known = values[~np.isnan(values)]
                if len(known):
                    row[name] = float(_SUMMARIES.get(name.partition("/")[0], np.max)(known))
            into.put(step, row)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, `at` a Unix time. `kind`: start, health, pause, resume, restart,
    gap, snapshot. `level`: as of health."""

    at: float
    kind: str
    text: str
    level: str = ""


class History:
    """`record` is called more often than each second, `notice` about as often. Any thread may
    ask."""

    def __init__(self) -> None:
        self._rings = {name: _Ring(step, size) for name, (step, size) in RANGES.items()}
        self._counts: dict[str, tuple[float, float]] = {}  # when it was, and how much
        self._marks: deque[Mark] = deque([Mark(time.time(), "start", "started")], _MARKS)
        self._seen: dict[tuple[str, ...], Any] = {}
        self._lock = threading.Lock()

    def record(self, snapshot: Snapshot, now: float) -> None:
        """What is known at `now`, in seconds of Unix time. A clock that is set back waits."""
        row: dict[str, float] = {}
        with self._lock:
            rings = [*self._rings.values()]
            if int(now) <= rings[0].at:
                return
            for kind in (SourceReport, SinkReport):
                for name, entry in snapshot.of(kind).items():
                    idle = kind is SinkReport and is_idle(entry, time.monotonic())
                    for field, about in described(kind).items():
                        value = getattr(entry.report, field) if about.chart else None
                        if value is not None and not (idle and field.startswith("latency")):
                            series = f"{about.chart}/{name}"
                            row[series] = self._rate(series, value, now) if about.rated else value
            rings[0].put(int(now), row)
            for finer, coarser in pairwise(rings):
                finer.sum_up(coarser, int(now))

    def _rate(self, series: str, count: float, now: float) -> float:
        at, before = self._counts.get(series, (now, count))
        self._counts[series] = now, count
        return max(0.0, count - before) / (now - at) if now > at else np.nan

    def notice(self, status: Status, now: float) -> None:
        """Marks what is new in it, at Unix time `now`."""
        with self._lock:
            marks = sorted(self._new(status, now), key=lambda mark: mark.at)
            self._marks.extend(marks)

    def _new(self, status: Status, now: float) -> Iterator[Mark]:
        starts = status.starting and ("health",) not in self._seen
        if not starts and self._is_new(status.health, "health"):
            reasons = f": {'; '.join(status.reasons)}" if status.reasons else ""
            yield Mark(now, "health", f"{status.health}{reasons}", status.health)
        for each in status.backends:
            name, before = each.name, self._seen.get(("pause", each.name))
            if self._is_new(each.paused, "pause", name):
                if each.paused:
                    yield Mark(now, "pause", f"{name} is paused by {each.paused['by']}", "degraded")
                elif before:
                    yield Mark(now, "resume", f"{name} goes on")
            if self._is_new(each.restarts, "restart", name) and each.restarts:
                why = f": {each.last_error}" if each.last_error else ""
                yield Mark(now, "restart", f"{name} begins anew{why}", "degraded")
            for partition, report in each.gaps.items():
                for gap in report.gaps:
                    if self._is_new(True, "gap", name, partition, str(gap["at"])):
                        what = f"{name}, {partition}: {gap['cause']}, {gap['detail']}"
                        yield Mark(_unix(gap["at"], now), "gap", what, "unhealthy")
            for table, last in each.snapshots.last.items():
                if self._is_new(last["snapshot_id"], "snapshot", name, table):
                    what = f"of {table}: {last['state']}, {last['rows']:,} rows"
                    level = "" if last["state"] == "done" else "degraded"
                    yield Mark(_unix(last["at"], now), "snapshot", what, level)

    def _is_new(self, value: Any, *key: str) -> bool:
        if self._seen.get(key) == value:
            return False
        self._seen[key] = value
        return True

    def shown(self, name: str) -> dict[str, Any]:
        """One of RANGES as JSON: `step`, `times` (Unix, in seconds), and `series`, CHART/OWNER to
        values; NaN where nothing is known. The oldest first, from the first that is known on.
        `marks`: what happened, all that is known."""
        step, size = RANGES[name]
        with self._lock:
            ring = self._rings[name]
            found, at, marks = ring.latest(size, ring.at), ring.at, [*self._marks]
        known = [int(np.argmax(~np.isnan(v))) for v in found.values() if not np.isnan(v).all()]
        first = min(known, default=size)
        times = [(at - size + 1 + number) * step for number in range(first, size)]
        series = {key: np.round(v[first:], 3).tolist() for key, v in sorted(found.items())}
        return {"step": step, "times": times, "series": series, "marks": [*map(asdict, marks)]}


def _unix(text: Any, otherwise: float) -> float:
    """Of a time as a report has it."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return otherwise


_SUMMARIES: Mapping[str, Callable[[NDArray[np.float64]], Any]] = {
    "read": np.mean, "stored": np.mean, "window_left_seconds": np.min, "window_left_bytes": np.min,
}  # fmt: skip
