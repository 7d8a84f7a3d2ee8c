"""Events a second and latency, over the last seconds and over everything. Time is an argument."""

from array import array
from collections import deque
from collections.abc import Sequence
from math import ceil


class Meter:
    """One thread adds, another reads. Latencies are seconds; `now` is any monotonic clock."""

    def __init__(self, *, window: float = 5.0, warm_up: float = 5.0) -> None:
        self._window = window
        self.warm_up = warm_up
        self._first: float | None = None
        self._recent: deque[tuple[float, float]] = deque()
        self._all = array("d")

    def add(self, now: float, latency: float) -> None:
        """One event arrived; what comes in the warm-up counts for the window only."""
        if self._first is None:
            self._first = now
        self._recent.append((now, latency))
        if now - self._first >= self.warm_up:
            self._all.append(latency)

    def rate(self, now: float) -> float:
        """Events a second over the window."""
        recent = self._fresh(now)
        if not recent or self._first is None:
            return 0.0
        return len(recent) / max(1.0, min(self._window, now - self._first))

    def recent(self, now: float, share: float) -> float | None:
        """The quantile of the latencies in the window; None when there are none."""
        return quantile([latency for _, latency in self._fresh(now)], share)

    def overall(self, share: float) -> float | None:
        """The quantile of all latencies after the warm-up; None when there are none."""
        return quantile(self._all, share)

    def _fresh(self, now: float) -> list[tuple[float, float]]:
        while self._recent and self._recent[0][0] < now - self._window:
            self._recent.popleft()
        return list(self._recent)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * share) - 1)]
