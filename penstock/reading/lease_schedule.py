"""When a host renews its leases, and when it looks at all of them. No thread and no clock of its
own."""

import logging
from collections.abc import Callable
from threading import Lock

from penstock.config import Sharing
from penstock.model.errors import PenstockError

# Seconds between two looks at what is asked for or lost.
LOOK = 1.0
# Seconds after a call of the store that failed.
RETRY = 2.0

log = logging.getLogger("penstock")


class LeaseSchedule:
    """`renew` and `acquire` are called when they are due; an error of theirs that is one of ours
    is in `error` until the next round succeeds. `clock` is monotonic seconds."""

    def __init__(
        self,
        sharing: Sharing,
        clock: Callable[[], float],
        *,
        renew: Callable[[], None],
        acquire: Callable[[], None],
    ) -> None:
        self.error = ""  # of the store
        self._sharing = sharing
        self._clock = clock
        self._renew = renew
        self._acquire = acquire
        self._renew_at = clock() + sharing.renew / 2
        self._acquire_at = clock()
        self._lock = Lock()  # of `_acquire_at`, which other threads bring forward

    def tick(self, *, acquires: bool) -> None:
        """Does what is due; with `acquires` false, leases are only renewed. One thread calls it."""
        now, sharing = self._clock(), self._sharing
        renews, looks = now >= self._renew_at, now >= self._acquire_at and acquires
        if not (renews or looks):
            return
        try:
            if renews:
                self._renew_at = now + sharing.renew
                self._renew()
            if looks:
                with self._lock:
                    self._acquire_at = now + sharing.acquire
                self._acquire()
            self.error = ""
        except PenstockError as error:
            self._renew_at = min(self._renew_at, now + RETRY)
            if not self.error:
                log.warning("the leases cannot be kept; trying again: %s", error)
            self.error = str(error)

    def look_by(self, at: float) -> None:
        """Looks at all leases then at the latest; from any thread."""
        with self._lock:
            self._acquire_at = min(self._acquire_at, at)

    def wait(self, *, acquires: bool) -> float:
        """Seconds until the next `tick`, at most `LOOK`."""
        now = self._clock()
        due = min(self._renew_at, self._acquire_at if acquires else now + LOOK)
        return max(0.0, min(due - now, LOOK))
