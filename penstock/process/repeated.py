"""A step that a thread of its own repeats."""

import logging
import threading
from collections.abc import Callable
from typing import Self

from penstock.process.closing import Closes

log = logging.getLogger("penstock")


class Repeated(Closes):
    """Does a step every `interval` seconds in a daemon thread until closed; logs one that fails."""

    def __init__(self, step: Callable[[], object], *, interval: float, name: str) -> None:
        self._step, self._interval = step, interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def __enter__(self) -> Self:
        return self.start()

    def start(self) -> Self:
        self._thread.start()
        return self

    @property
    def is_closed(self) -> bool:
        """Whether the thread is to end: long steps ask."""
        return self._stop.is_set()

    def close(self, patience: float = 0.0) -> None:
        """Ends the thread after its present step, for which it waits so many seconds at most."""
        self._stop.set()
        if patience:
            self._thread.join(patience)

    def run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._step()
            except Exception:
                log.exception("a step of the thread %s failed", self._thread.name)
