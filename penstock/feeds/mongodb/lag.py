"""How far what is durable is behind the server, by the server's own clock; how far its oplog
reaches back; and a server that is itself behind what was saved.

The clock is the newest operation time of any answer, and the time that has passed since: so the lag
grows while nothing is read. While idle a server is late by ten seconds at most, its no-ops' period.
"""

import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from penstock.feeds.mongodb.cluster import reach
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.model.errors import PenstockError, Unavailable
from penstock.model.position import Mark
from penstock.process.closing import Closes
from penstock.wire.changestream.events import cursor_of

# A token of MongoDB's is a KeyString in hex that begins with a timestamp: 82, then cluster time
# (src/mongo/db/pipeline/resume_token.cpp). It is read here for what people see, never to resume.
_TIMED = re.compile(r"82([0-9A-Fa-f]{16})")
# Seconds after which an answer proves nothing any more: requests follow each other in less.
_FRESH = 5.0
_REPORTED_AFTER = 60  # seconds
# Seconds between two questions: the oldest entry moves slowly, and each one makes a connection.
EVERY = 30.0
# So many times rarer where it may not be asked: an operator may grant the right.
_RARER = 10
# Failures in a row after which it is not known any more.
FAILURES = 5
# The oldest entry and why it is not known, or what failed.
Answer = tuple[int, str] | PenstockError


def time_of_mark(mark: Mark | None) -> int:
    """The cluster time (seconds * 2**32 + counter) of a mark; 0 if it has none."""
    mark = mark or {}
    if "time" in mark:
        seconds, counter = mark["time"]
        return int(seconds) << 32 | int(counter)
    token = mark.get("token")
    found = _TIMED.match(str(token.get("_data", ""))) if isinstance(token, Mapping) else None
    return int(found[1], 16) if found else 0


class Lag:
    """The lag of one following, by what its replies say; times are cluster times. `durable`: up to
    which everything is durable at the beginning, 0 if it is not known. `clock`: monotonic."""

    def __init__(self, durable: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._durable = durable
        self._clock = clock
        self._before = 0  # the operation time of the reply before
        self._ahead: float | None = None  # the server's clock minus ours
        # When it was last proven that the server has nothing after what is durable.
        self._proven_at: float | None = None

    def answered(self, time: int, mark: Mark | None, *, is_empty: bool, is_stored: bool) -> None:
        """A reply came: with the server's operation time, the mark after it, and whether it had no
        events; `is_stored`: everything that was read before is durable. An empty reply proves
        something only if it reaches to where the server was when it was asked for: mongos also
        sends one while a shard has not answered."""
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


class CatchingUp:
    """Of one backend: whether its server has reached the saved position. A secondary that was cut
    off is behind, and a server whose clock was set back: that is no lost history, and is waited
    for. Other members of a replica set know of each operation by its time, before they have it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def expect(self, read: int, newest: int, server: str) -> None:
        """Raises Unavailable if the `newest` time of a server (0: unknown) is before `read`."""
        if newest >= read or not newest:
            self._since = None
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        waited = int(now - self._since)
        raise Unavailable(
            f"{server} is at {cursor_of(newest)}, before the saved position {cursor_of(read)}:"
            " waiting for it" + (f" for {waited} s so far" if waited >= _REPORTED_AFTER else ""),
            "mongodb.server-behind",
            hint="does this member replicate, and is its clock right?",
        )

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Feed.status`: reported after a minute."""
        waited = 0 if self._since is None else int(time.monotonic() - self._since)
        if waited < _REPORTED_AFTER:
            return {}
        message = f"the server has been before the saved position for {waited} s"
        return {"state": "behind", "message": message, "at_risk": ""}


class OplogWindow(Closes):
    """How far the oplog reaches back. `oldest`: the cluster time of the oldest entry, 0 while it is
    not known; `unknown`: why it cannot be. Asks in a thread, for an answer may take its time, from
    `open` to `close` or until nothing refers to it."""

    def __init__(self, settings: MongoSettings) -> None:
        self.oldest, self.unknown = 0, ""
        self._settings = settings
        self._closed = threading.Event()
        self._is_open, self._failures = False, 0

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            weakref.finalize(self, self._closed.set)
            given = weakref.ref(self), self._closed, self._settings
            threading.Thread(target=_ask, args=given, name="oplog-window", daemon=True).start()

    def take(self, found: Answer) -> float:
        """Takes an answer; returns the seconds until the next question."""
        if isinstance(found, PenstockError):  # the reading says what is wrong with the server
            self._failures += 1
            if self._failures >= FAILURES:
                self.oldest, self.unknown = 0, found.message
            return EVERY
        (self.oldest, self.unknown), self._failures = found, 0
        return EVERY * (_RARER if self.unknown else 1)

    def close(self) -> None:
        self._closed.set()


def _ask(
    window: "weakref.ref[OplogWindow]", closed: threading.Event, settings: MongoSettings
) -> None:
    while not closed.is_set():
        found: Answer
        try:
            found = reach(settings)
        except PenstockError as error:
            found = error
        there = window()
        if there is None:
            return
        wait = there.take(found)
        del there  # while it waits, it must not be what keeps the window
        closed.wait(wait)
