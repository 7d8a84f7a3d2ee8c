"""A writer's actions at a rate, in a thread; and what was committed, recorded by the writer itself.

Nothing here comes from the pipeline: the verdict compares the stream with the ledger.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from typing import Any, NamedTuple, TypeVar

from penstock.model.errors import Unavailable
from penstock.process.closing import Closes

# The values of a table's key columns, in order; empty for TRUNCATE.
Key = tuple[object, ...]
Action = TypeVar("Action")


class Written(NamedTuple):
    """One row change inside a transaction; `key` is the new one when it changed."""

    operation: str
    table: str
    key: Key

    def __str__(self) -> str:
        return f"{self.operation} {self.alone}"

    @property
    def alone(self) -> str:
        """The name under which the changes of its key are entered that are in no transaction."""
        return f"{self.table}({','.join(map(str, self.key))})"


class Ledger:
    """Transaction id -> its changes in order. One thread writes, others may read `count`. A change
    without a transaction is in the one that `alone` names: the history of its key."""

    def __init__(self) -> None:
        self.committed: dict[str, tuple[Written, ...]] = {}
        self.rolled_back: set[str] = set()
        self.count = 0

    def enter(self, transaction: str, changes: Sequence[Written]) -> None:
        self.committed[transaction] = (*self.committed.get(transaction, ()), *changes)
        self.count += len(changes)


class Writer(Closes):
    """A shop, which writes into a source inside its context, and enters what was committed in the
    ledger. Used by one thread at a time. The keys of the rows that exist, in any order, outlast its
    connections. `scale` multiplies the rows of an action."""

    def __init__(self, *, seed: int = 1, scale: int = 1) -> None:
        self.ledger = Ledger()
        self.random = Random(seed)  # noqa: S311 - a demo
        self.scale = scale
        self.rows: dict[str, list[Any]] = defaultdict(list)
        self._places: dict[tuple[str, Key], int] = {}
        self._last = 0

    def close(self) -> None:
        """Ends its connections, if it has any."""

    @abstractmethod
    def first(self) -> None:
        """One transaction, after which every other action is possible."""

    @abstractmethod
    def turn(self, number: int) -> None:
        """One action; numbers count from 1."""

    def finish(self) -> None:
        """Commits what is open, if a writer leaves something open."""

    def some(self, table: str) -> Any:
        """The key of a row that exists."""
        return self.random.choice(self.rows[table])

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def chosen(self, actions: Mapping[Action, int], order: Action) -> Action:
        """One of the actions, each as often as its number says; `order` where there is none yet."""
        chosen = self.random.choices(list(actions), list(actions.values()))[0]
        return chosen if self.rows["orders"] else order

    def committed(self, changes: Sequence[Written], transaction: str = "") -> None:
        """Enters what was committed, in a transaction or each change alone."""
        if transaction:
            self.ledger.enter(transaction, changes)
        for change in changes:
            if not transaction:
                self.ledger.enter(change.alone, [change])
            self._remember(*change)

    def _remember(self, operation: str, table: str, key: Key) -> None:
        rows, place = self.rows[table], self._places.get((table, key))
        if operation == "INSERT" and place is None:
            self._places[table, key] = len(rows)
            rows.append(key)
        elif operation == "DELETE" and place is not None:
            # The last one takes its place: a list of many thousands is not moved.
            rows[place] = rows[-1]
            self._places[table, rows.pop()] = place
            del self._places[table, key]


class Background(ABC):
    """Runs in a thread, from `start` on."""

    def __init__(self, name: str) -> None:
        self._stop, self._finish = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self.running:
            self._thread.join()

    def finish(self, timeout: float) -> None:
        """Does what is there to be done now, and stops; after `timeout` in any case."""
        self._finish.set()
        if self.running:
            self._thread.join(timeout)
        self.stop()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @abstractmethod
    def _run(self) -> None: ...


class Workload(Background):
    """About `rate` changes a second until stopped."""

    def __init__(self, writer: Writer, rate: float) -> None:
        super().__init__("workload")
        self.ledger = writer.ledger
        self._writer, self._rate = writer, rate
        self._error: Exception | None = None

    def open(self) -> None:
        """Writes the first transaction, the only one until `start`."""
        with self._writer:
            self._writer.first()

    def stop(self) -> None:
        """Commits what is open and stops; raises Unavailable if the writer had failed."""
        super().stop()
        if self._error is not None:
            raise Unavailable(f"the shop could not write: {self._error}", "demo") from self._error

    def _run(self) -> None:
        try:
            with self._writer as writer:
                if not self.ledger.count:
                    writer.first()
                started, before = time.monotonic(), self.ledger.count
                for turn in count(1):
                    if self._stop.is_set():
                        break
                    writer.turn(turn)
                    due = started + (self.ledger.count - before) / self._rate
                    self._stop.wait(max(0.0, due - time.monotonic()))
                writer.finish()
        except Exception as error:
            self._error = error
