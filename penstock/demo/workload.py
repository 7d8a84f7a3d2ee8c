"""Runs a writer's actions at a rate, in a thread."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from penstock.demo.ledger import Ledger
from penstock.model.errors import Unavailable


class Writer(Protocol):
    """Writes into a source, and enters what was committed in the ledger. Used by one thread."""

    def first(self) -> None:
        """One transaction, after which every other action is possible."""
        ...

    def turn(self, number: int) -> None:
        """One action; numbers count from 1."""
        ...

    def finish(self) -> None:
        """Commits what is open, if a writer leaves something open."""
        return


class Workload:
    """About `rate` changes a second until stopped. Starts on `start()`."""

    def __init__(
        self, writer: Callable[[], AbstractContextManager[Writer]], ledger: Ledger, *, rate: float
    ) -> None:
        self.ledger = ledger
        self._writer = writer
        self._rate = rate
        self._error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)

    def open(self) -> None:
        """Writes the first transaction, the only one until `start`."""
        with self._writer() as writer:
            writer.first()

    def start(self) -> None:
        """Starts writing, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commits what is open and stops; raises Unavailable if the writer had failed."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise Unavailable(f"the shop could not write: {self._error}") from self._error

    @property
    def running(self) -> bool:
        """Whether it still writes."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._writer() as writer:
                self._write(writer)
        except Exception as error:
            self._error = error

    def _write(self, writer: Writer) -> None:
        if not self.ledger.count:
            writer.first()
        started, turn, before = time.monotonic(), 0, self.ledger.count
        while not self._stop.is_set():
            turn += 1
            writer.turn(turn)
            due = started + (self.ledger.count - before) / self._rate
            self._stop.wait(max(0.0, due - time.monotonic()))
        writer.finish()
