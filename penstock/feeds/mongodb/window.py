"""How far the oplog reaches back, asked for now and then, beside the reading."""

import threading
from collections.abc import Callable
from contextlib import suppress

from penstock.closing import Closes
from penstock.errors import PenstockError
from penstock.feeds.mongodb.oplog import reach
from penstock.feeds.mongodb.settings import MongoSettings

# Seconds between two questions: the oldest entry moves slowly, and each one makes a connection.
EVERY = 30.0
# So many times rarer where it may not be asked: an operator may grant the right.
_RARER = 10


class OplogWindow(Closes):
    """`oldest`: the cluster time of the oldest entry, 0 while it is not known; `unknown`: why it
    cannot be. Asks in a thread from `open` to `close`, because the answer may take its time."""

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

    def open(self) -> None:
        """Begins to ask; idempotent."""
        if not self._is_open:
            self._is_open = True
            threading.Thread(target=self._run, name="oplog-window", daemon=True).start()

    def close(self) -> None:
        """Asks no more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            with suppress(PenstockError):  # the reading says what is wrong with the server
                self.oldest, self.unknown = self._ask(self._settings)
            self._closed.wait(self._every * (_RARER if self.unknown else 1))
