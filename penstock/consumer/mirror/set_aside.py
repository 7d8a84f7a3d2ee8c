"""Tables that cannot be had for now: each is loaded anew later, and leaves the others running."""

import math
import time

import structlog

from penstock.consumer.mirror.targets import TableRefused
from penstock.model.errors import Malformed, PenstockError, SettingsError

_REFUSED, _LONGEST = 60.0, 3600.0  # seconds until a table that failed is asked for again

log = structlog.get_logger("penstock")


class SetAside:
    """Each is due after a minute, and after twice the time where another snapshot did not help,
    either. `errors`: of those that are set aside."""

    def __init__(self) -> None:
        self.errors: dict[str, PenstockError] = {}
        # When each table failed last (monotonic seconds), and after how many it is due.
        self._failures: dict[str, tuple[float, float]] = {}

    def add(self, name: str, error: Exception) -> PenstockError:
        """Sets a table aside, and returns the error as one of ours."""
        ours = error if isinstance(error, PenstockError) else Malformed(type(error).__name__)
        pause = _REFUSED
        if needs_another(error) and self.has_failed(name):
            pause = max(pause, min(2 * self._failures[name][1], _LONGEST))
        self.errors[name], self._failures[name] = ours, (time.monotonic(), pause)
        log.warning("a table is set aside", table=name, error=str(ours), again_in=pause)
        return ours

    def note(self, name: str) -> None:
        """The table failed, and is loaded again at once."""
        self._failures[name] = time.monotonic(), 0.0

    def has_failed(self, name: str) -> bool:
        """Whether it failed lately."""
        at, pause = self._failures.get(name, (-math.inf, 0.0))
        return time.monotonic() - at < 2 * pause + _REFUSED

    def is_due(self, name: str) -> bool:
        """Whether a table that is set aside is to be loaded now."""
        at, pause = self._failures[name]
        return time.monotonic() - at >= pause


def needs_another(error: Exception) -> bool:
    """Whether another snapshot may help; else the same one will do, once the target is mended."""
    return isinstance(error, TableRefused) or not isinstance(error, SettingsError)
