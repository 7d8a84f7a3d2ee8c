"""The writer: runs the shop's actions at a rate, and enters in the ledger what was committed."""

import threading
import time
from random import Random

import psycopg

from penstock.demo.actions import ACTIONS, Action, Shop, abandon, place_order, sign_up
from penstock.demo.ledger import Ledger, Written
from penstock.errors import Unavailable

__all__ = ["Workload"]

# Above this many changes a second an action writes more rows, and not only more often.
_SCALE_AT = 1000
# One transaction in so many is rolled back, one in so many stays open while others commit.
_ROLLBACK_EVERY = 17
_INTERLEAVE_EVERY = 13
_OPEN_FOR = 4  # transactions of the other connection


class Workload:
    """Writes about `rate` changes a second into the shop until stopped. Starts on `start()`."""

    def __init__(self, url: str, ledger: Ledger, *, rate: float, seed: int = 1) -> None:
        self.ledger = ledger
        self._error: psycopg.Error | None = None
        self._url = url
        self._rate = rate
        self._shop = Shop(random=Random(seed), scale=max(1, int(rate / _SCALE_AT)))  # noqa: S311 - a demo
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)

    def open(self) -> None:
        """Writes the first transaction, the only one until `start`."""
        with psycopg.connect(self._url) as connection:
            self._transaction(connection, sign_up)

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
            with (
                psycopg.connect(self._url) as first,
                psycopg.connect(self._url) as second,
            ):
                for connection in (first, second):
                    connection.execute("SET lock_timeout = '10s'")
                    connection.commit()
                self._write(first, second)
        except psycopg.Error as error:
            self._error = error

    def _write(self, first: psycopg.Connection, second: psycopg.Connection) -> None:
        choose, actions, weights = self._shop.random, list(ACTIONS), list(ACTIONS.values())
        if not self._shop.customers:
            self._transaction(first, sign_up)
        started, turn, before = time.monotonic(), 0, self.ledger.count
        pending: tuple[int, list[Written]] | None = None
        while not self._stop.is_set():
            turn += 1
            if pending is None and turn % _INTERLEAVE_EVERY == 0:
                # New rows only, so that it holds no lock that the other connection waits for.
                pending = turn + _OPEN_FOR, sign_up(self._shop, second.cursor())
            if turn % _ROLLBACK_EVERY == 0 and self._shop.orders:
                self._rolled_back(first)
            action = choose.choices(actions, weights)[0] if self._shop.orders else place_order
            self._transaction(first, action)
            if pending is not None and turn >= pending[0]:
                self._commit(second, pending[1])
                pending = None
            due = started + (self.ledger.count - before) / self._rate
            self._stop.wait(max(0.0, due - time.monotonic()))
        if pending is not None:
            self._commit(second, pending[1])

    def _transaction(self, connection: psycopg.Connection, action: Action) -> None:
        self._commit(connection, action(self._shop, connection.cursor()))

    def _commit(self, connection: psycopg.Connection, changes: list[Written]) -> None:
        transaction = _transaction_id(connection)
        connection.commit()
        self.ledger.commit(transaction, changes)
        self._shop.remember(changes)

    def _rolled_back(self, connection: psycopg.Connection) -> None:
        abandon(self._shop, connection.cursor())
        transaction = _transaction_id(connection)
        connection.rollback()
        self.ledger.roll_back(transaction)


def _transaction_id(connection: psycopg.Connection) -> str:
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])
