"""When a call may be made again: never more often than allowed, slower where nothing comes, and
slower still where the service asks for it. Pure: the caller owns the clock (monotonic seconds).
"""

import threading
from collections import deque
from dataclasses import dataclass

from penstock.process.backoff import delays

# Empty pages of one walk after which a shard is read at the pace of its tip. That they are the tip
# is a guess, for the pace alone: an empty page says nothing about the next one.
TO_THE_TIP = 5
_WINDOW = 1.0


class CallPace:
    """Of one operation: `most` calls in any second; less than one is one in several seconds."""

    def __init__(self, most: float) -> None:
        self._recent: deque[float] = deque(maxlen=max(1, int(most)))
        self._window = _WINDOW / min(1.0, most)

    def due(self) -> float:
        """When the next call may be made."""
        full = len(self._recent) == self._recent.maxlen
        return self._recent[0] + self._window if full else 0.0

    def reserve(self, now: float) -> float:
        """A call is made as soon as it may be; returns when that is."""
        at = max(now, self.due())
        self._recent.append(at)
        return at


@dataclass(frozen=True, slots=True)
class Tip:
    """Of one walk through a shard: how many empty pages it had, and not before when the next page
    is asked for, because there is nothing new."""

    empty_pages: int = 0
    not_before: float = 0.0

    @property
    def is_sought(self) -> bool:
        """Whether an empty page is followed by another read at once."""
        return self.empty_pages < TO_THE_TIP

    def found(self, count: int, asked: float, pause: float) -> "Tip":
        """After a page of so many records, that was asked for then; at the tip one is asked for
        every `pause` seconds."""
        after = Tip(self.empty_pages + (not count))
        return Tip(after.empty_pages, asked + pause) if not count and not after.is_sought else after


class ShardPace:
    """Of one shard, whoever reads it in this process: its calls of the last second, and whether
    there are too many. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: list[float] = []
        self._not_before = 0.0
        self._waits = delays(first=0.5)
        self.is_throttled = False

    def due(self, reads: int) -> float:
        """When the next read may be, of at most `reads` a second."""
        recent = self._recent
        full = len(recent) >= reads
        return max(self._not_before, recent[-reads] + _WINDOW if full else 0.0)

    def reads(self, now: float) -> None:
        """A call was made, and answered or not."""
        with self._lock:
            self._recent = [each for each in self._recent if each > now - _WINDOW] + [now]

    def answered(self) -> None:
        """The service took the call."""
        self.is_throttled = False
        self._not_before = 0.0
        self._waits = delays(first=0.5)

    def throttled(self, now: float) -> None:
        """The service refused the call because they are too many: fewer, for a while."""
        self.is_throttled = True
        self._not_before = now + next(self._waits)
