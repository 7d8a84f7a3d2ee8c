"""When a shard may be read again: never more often than allowed, slower where nothing comes, and
slower still where the service asks for it. Pure: the caller owns the clock (monotonic seconds).
"""

from collections import deque

from penstock.backoff import delays

# Empty pages, counted from the shard's beginning, after which its tip is assumed: before that an
# empty page says nothing about the next one.
TO_THE_TIP = 5
_WINDOW = 1.0


class ShardPace:
    """Of one shard. `reads` a second at most; `pause` seconds after an empty page at the tip."""

    def __init__(self, reads: int, pause: float) -> None:
        self._recent: deque[float] = deque(maxlen=reads)
        self._pause = pause
        self._not_before = 0.0
        self._empty_pages = 0
        self._waits = delays(first=0.5)
        self.is_tip_reached = self.is_throttled = False

    @property
    def seeks_the_tip(self) -> bool:
        """Whether an empty page is followed by another read at once."""
        return self._empty_pages < TO_THE_TIP

    def due(self) -> float:
        """When the next read may be."""
        full = len(self._recent) == self._recent.maxlen
        return max(self._not_before, self._recent[0] + _WINDOW if full else 0.0)

    def reads(self, now: float) -> None:
        """A call is made."""
        self._recent.append(now)

    def found(self, count: int, now: float) -> None:
        """The call brought so many records."""
        self.is_throttled = False
        self._waits = delays(first=0.5)
        self._empty_pages += not count
        self.is_tip_reached = not count and not self.seeks_the_tip
        self._not_before = now + self._pause if self.is_tip_reached else 0.0

    def throttled(self, now: float) -> None:
        """The service refused the call: fewer, for a while."""
        self.is_throttled = True
        self._not_before = now + next(self._waits)
