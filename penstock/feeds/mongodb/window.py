"""How far the oplog reaches back, asked for now and then, beside the reading."""

import threading
import weakref
from collections.abc import Callable
from functools import partial

from penstock.feeds.mongodb.oplog import reach
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.model.errors import PenstockError
from penstock.process.closing import Closes

# Seconds between two questions: the oldest entry moves slowly, and each one makes a connection.
EVERY = 30.0
# So many times rarer where it may not be asked: an operator may grant the right.
_RARER = 10
# Failures in a row after which it is not known any more.
FAILURES = 5
# The oldest entry and why it is not known, or what failed.
Answer = tuple[int, str] | PenstockError


class OplogWindow(Closes):
    """`oldest`: the cluster time of the oldest entry, 0 while it is not known; `unknown`: why it
    cannot be. Asks in a thread from `open` on, because the answer may take its time, to `close` or
    until nothing refers to it."""

    def __init__(
        self,
        settings: MongoSettings,
        *,
        ask: Callable[[MongoSettings], tuple[int, str]] = reach,
        every: float = EVERY,
    ) -> None:
        self.oldest = 0
        self.unknown = ""
        self._settings, self._ask, self._every = settings, ask, every
        self._closed = threading.Event()
        self._is_open = False
        self._failures = 0

    def open(self) -> None:
        """Begins to ask; idempotent."""
        if not self._is_open:
            self._is_open = True
            weakref.finalize(self, self._closed.set)
            given = weakref.ref(self), self._closed, partial(self._ask, self._settings)
            threading.Thread(target=_run, args=given, name="oplog-window", daemon=True).start()

    def take(self, found: Answer) -> float:
        """Takes an answer; returns the seconds until the next question."""
        if isinstance(found, PenstockError):  # the reading says what is wrong with the server
            self._failures += 1
            if self._failures >= FAILURES:
                self.oldest, self.unknown = 0, found.message
            return self._every
        (self.oldest, self.unknown), self._failures = found, 0
        return self._every * (_RARER if self.unknown else 1)

    def close(self) -> None:
        """Asks no more."""
        self._closed.set()


def _run(
    window: "weakref.ref[OplogWindow]", closed: threading.Event, ask: Callable[[], tuple[int, str]]
) -> None:
    while not closed.is_set():
        found: Answer
        try:
            found = ask()
        except PenstockError as error:
            found = error
        there = window()
        if there is None:
            return
        wait = there.take(found)
        del there  # while it waits, it must not be what keeps the window
        closed.wait(wait)
