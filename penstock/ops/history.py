"""What charts show of the last 15 minutes, by the second, and of 24 hours, by the minute.

In arrays: 19 KB for each number, five of a backend and three of a sink, however many partitions.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.ops.board import Snapshot
from penstock.ops.reports import SinkReport, SourceReport, described

# Of each range the seconds between two values, and how many there are.
RANGES: Mapping[str, tuple[int, int]] = {"15m": (1, 900), "24h": (60, 1440)}
_MINUTE = 60


class _Ring:
    """The latest values of some series, each at the time `at` or `size` steps before, at most."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, -1
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

    def latest(self, count: int) -> dict[str, NDArray[np.float64]]:
        slots = np.arange(self.at - count + 1, self.at + 1) % self.size
        return {name: values[slots] for name, values in self.values.items()}


class History:
    """`record` is called more often than each second. Any thread may ask."""

    def __init__(self) -> None:
        self._rings = {name: _Ring(size) for name, (_, size) in RANGES.items()}
        self._counts: dict[str, tuple[float, float]] = {}  # when it was, and how much
        self._lock = threading.Lock()

    def record(self, snapshot: Snapshot, now: float) -> None:
        """What is known at `now`, in seconds of Unix time. A clock that is set back waits."""
        row: dict[str, float] = {}
        with self._lock:
            seconds, minutes = self._rings.values()
            if int(now) <= seconds.at:
                return
            for kind in (SourceReport, SinkReport):
                for name, entry in snapshot.of(kind).items():
                    for field, about in described(kind).items():
                        value = getattr(entry.report, field) if about.chart else None
                        if value is not None:
                            series = f"{about.chart}/{name}"
                            row[series] = self._rate(series, value, now) if about.rated else value
            seconds.put(int(now), row)
            if (minute := int(now) // _MINUTE - 1) > minutes.at:
                self._sum_up(seconds, minutes, minute, int(now) % _MINUTE)

    def _rate(self, series: str, count: float, now: float) -> float:
        at, before = self._counts.get(series, (now, count))
        self._counts[series] = now, count
        return max(0.0, count - before) / (now - at) if now > at else np.nan

    @staticmethod
    def _sum_up(seconds: _Ring, minutes: _Ring, minute: int, since: int) -> None:
        """A minute that is over: the mean of rates, and the worst of what else there is."""
        row: dict[str, float] = {}
        for name, values in seconds.latest(_MINUTE + since + 1).items():
            known = values[:_MINUTE][~np.isnan(values[:_MINUTE])]
            if len(known):
                row[name] = float(_SUMMARIES.get(name.partition("/")[0], np.max)(known))
        minutes.put(minute, row)
        for ring in (seconds, minutes):  # what has left
            for name in [name for name, v in ring.values.items() if np.isnan(v).all()]:
                del ring.values[name]

    def shown(self, name: str) -> dict[str, Any]:
        """One of RANGES as JSON: `step`, `times` (Unix, in seconds), and `series`, CHART/OWNER to
        values; NaN where nothing is known. The oldest first, from the first that is known on."""
        step, size = RANGES[name]
        with self._lock:
            ring = self._rings[name]
            found, at = ring.latest(size), ring.at
        known = [int(np.argmax(~np.isnan(v))) for v in found.values() if not np.isnan(v).all()]
        first = min(known, default=size)
        times = [(at - size + 1 + number) * step for number in range(first, size)]
        series = {key: np.round(v[first:], 3).tolist() for key, v in sorted(found.items())}
        return {"step": step, "times": times, "series": series}


_SUMMARIES: Mapping[str, Callable[[NDArray[np.float64]], Any]] = {
    "read": np.mean, "stored": np.mean, "window_left_seconds": np.min,
}  # fmt: skip
