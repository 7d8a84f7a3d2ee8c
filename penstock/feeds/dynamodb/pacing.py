"""When a call may be made again: never more often than allowed, slower where nothing comes, and
slower still where the service asks for it. Pure: the caller owns the clock (monotonic seconds).
"""

from collections import deque

from penstock.backoff import delays

# Empty pages of one walk after which a shard is read at the pace of its tip. That they are the tip
# is a guess, for the pace alone: an empty page says nothing about the next one.
TO_THE_TIP = 5
_WINDOW = 1.0


class CallPace:
    """Of one operation: `most` calls in any second."""

    def __init__(self, most: int) -> None:
        self._recent: deque[float] = deque(maxlen=most)

    def due(self) -> float:
        """When the next call may be made."""
        full = len(self._recent) == self._recent.maxlen
        return self._recent[0] + _WINDOW if full else 0.0

    def reserve(self, now: float) -> float:
        """A call is made as soon as it may be; returns when that is."""
        at = max(now, self.due())
        self._recent.append(at)
        return at


class ShardPace:
    """Of one shard. `reads` a second at most; `pause` seconds after an empty page at the tip."""

    def __init__(self, reads: int, pause: float) -> None:
        self._calls = CallPace(reads)
        self._reads, self._pause = reads, pause
        self._not_before = 0.0
        self._empty_pages = 0
        self._waits = delays(first=0.5)
        self.is_throttled = False

    def adjust(self, reads: int, pause: float) -> None:
        """From now on with these settings."""
        if reads != self._reads:
            self._reads, self._calls = reads, CallPace(reads)
        self._pause = pause

    def walks(self) -> None:
        """A walk begins at another place: its tip is not known."""
        self._empty_pages = 0

    @property
    def seeks_the_tip(self) -> bool:
        """Whether an empty page is followed by another read at once."""
        return self._empty_pages < TO_THE_TIP

    def due(self) -> float:
        """When the next read may be."""
        return max(self._not_before, self._calls.due())

    def reads(self, now: float) -> None:
        """A call was made, and answered or not."""
        self._calls.reserve(now)

    def found(self, count: int, now: float) -> None:
        """The call brought so many records."""
        self.is_throttled = False
        self._waits = delays(first=0.5)
        self._empty_pages += not count
        at_the_tip = not count and not self.seeks_the_tip
        self._not_before = now + self._pause if at_the_tip else 0.0

    def throttled(self, now: float) -> None:
        """The service refused the call because they are too many: fewer, for a while."""
        self.is_throttled = True
        self._not_before = now + next(self._waits)
