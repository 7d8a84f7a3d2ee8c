"""How far what is durable is behind the server, by the server's own clock.

The clock is the newest operation time of any answer, and the time that has passed since: so the lag
grows while nothing is read. A server that is idle writes an entry every ten seconds, so that its
operation time is that much behind its wall clock at most.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.model.position import Bookmark, Mark

# A token of MongoDB's is a KeyString in hex that begins with a timestamp: 82, then cluster time
# (src/mongo/db/pipeline/resume_token.cpp). It is read here for what people see, never to resume.
_TIMED = re.compile(r"82([0-9A-Fa-f]{16})")
# Seconds after which an answer proves nothing any more: requests follow each other in less.
_FRESH = 5.0


def time_of_mark(mark: Mark | None) -> int:
    """The cluster time up to which a mark's stream was read (seconds * 2**32 + counter); 0 if it
    does not say."""
    mark = mark or {}
    if "time" in mark:
        seconds, counter = mark["time"]
        return int(seconds) << 32 | int(counter)
    token = mark.get("token")
    found = _TIMED.match(str(token.get("_data", ""))) if isinstance(token, Mapping) else None
    return int(found[1], 16) if found else 0


class Lag:
    """The lag of one following, by what its replies say; times are cluster times. `durable`: the
    one up to which everything is durable at the beginning, 0 if it is not known. `clock`: monotonic
    seconds."""

    def __init__(self, durable: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._durable = durable
        self._clock = clock
        self._before = 0  # the operation time of the reply before
        self._ahead: float | None = None  # the server's clock minus ours
        # When it was last proven that the server has nothing after what is durable.
        self._proven_at: float | None = None

    def answered(self, time: int, mark: Mark | None, *, is_empty: bool, is_stored: bool) -> None:
        """A reply came: with the server's operation time, the mark after it, and whether it had no
        events; `is_stored`: everything that was read before is durable.

        An empty reply alone proves nothing: mongos also sends one while a shard has not answered.
        It must reach to where the server was when it was asked for.
        """
        now = self._clock()
        if time:
            ahead = (time >> 32) - now
            self._ahead = ahead if self._ahead is None else max(ahead, self._ahead)
        self._proven_at = None
        if is_empty and is_stored:
            reached = time_of_mark(mark) or self._before
            self._durable = max(self._durable, reached)
            if reached and reached >= self._before:
                self._proven_at = now
        self._before = time

    @property
    def server_clock(self) -> int | None:
        """The server's clock at its last answer, in seconds; None: it did not say."""
        return self._before >> 32 if self._before else None

    def seconds(self, confirmed: int, *, is_stored: bool) -> int | None:
        """The server's clock minus the time of what is durable, `confirmed` at least. 0 only where
        it is proven that the server has nothing after that; None: it is not known."""
        now, durable = self._clock(), max(self._durable, confirmed)
        proven = self._proven_at
        if is_stored and proven is not None and now - proven < _FRESH:
            return 0
        if self._ahead is None or not durable:
            return None
        return max(1, int(now + self._ahead) - (durable >> 32))

    def window(self, oldest: int, lag: int | None) -> Mapping[str, Any]:
        """The status fields about the oplog, whose oldest entry is of this cluster time (0: not
        known), for what is durable with this lag."""
        if not oldest or self._ahead is None:
            return {"window_seconds": None, "window_left_seconds": None}
        window = max(0, int(self._clock() + self._ahead) - (oldest >> 32))
        left = None if lag is None else max(0, window - lag)
        return {"window_seconds": window, "window_left_seconds": left}


def durable_time(bookmark: Bookmark, place_time: int) -> int:
    """Up to which cluster time a bookmark says that all is durable; `place_time` is its place's."""
    return max(time_of_mark(bookmark.mark), place_time)
