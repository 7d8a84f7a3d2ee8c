"""Runs a writer's actions at a rate, in a thread."""

import threading
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from random import Random
from typing import Any, TypeVar

from penstock.demo.ledger import Key, Ledger, Written
from penstock.model.errors import Unavailable

Action = TypeVar("Action")


class Shop:
    """The keys of the rows that exist, in any order. `scale` multiplies the rows of an action."""

    def __init__(self, random: Random, scale: int = 1) -> None:
        self.random = random
        self.scale = scale
        self.rows: dict[str, list[Any]] = defaultdict(list)
        self._places: dict[tuple[str, Key], int] = {}
        self._last = 0

    def remember(self, changes: list[Written]) -> None:
        """Adds and removes what was committed."""
        for operation, table, key in changes:
            rows, place = self.rows[table], self._places.get((table, key))
            if operation == "INSERT" and place is None:
                self._places[table, key] = len(rows)
                rows.append(key)
            elif operation == "DELETE" and place is not None:
                # The last one takes its place: a list of many thousands is not moved.
                rows[place] = rows[-1]
                self._places[table, rows.pop()] = place
                del self._places[table, key]

    def some(self, table: str) -> Any:
        """The key of a row that exists."""
        return self.random.choice(self.rows[table])

    def next_number(self) -> int:
        """The number of a new row."""
        self._last += 1
        return self._last


class Writer:
    """Writes into a source, and enters what was committed in the ledger. Used by one thread; the
    keys that it knows outlast its connections."""

    def __init__(self, ledger: Ledger, *, seed: int = 1, scale: int = 1) -> None:
        self._ledger = ledger
        self._shop = Shop(Random(seed), scale)  # noqa: S311 - a demo

    @abstractmethod
    def first(self) -> None:
        """One transaction, after which every other action is possible."""

    @abstractmethod
    def turn(self, number: int) -> None:
        """One action; numbers count from 1."""

    def finish(self) -> None:
        """Commits what is open, if a writer leaves something open."""

    def _chosen(self, actions: Mapping[Action, int], order: Action) -> Action:
        """One of the actions, each as often as its number says; `order` where there is none yet."""
        chosen = self._shop.random.choices(list(actions), list(actions.values()))[0]
        return chosen if self._shop.rows["orders"] else order

    def _written(self, changes: list[Written]) -> None:
        """Enters changes that are in no transaction."""
        for change in changes:
            self._ledger.write(change)
        self._shop.remember(changes)


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
