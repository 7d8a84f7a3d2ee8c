"""Runs the shop's actions on PostgreSQL, and enters in the ledger what was committed."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from penstock.demo.ledger import Ledger, Written
from penstock.demo.sources.postgres.actions import ACTIONS, Action, abandon, place_order, sign_up
from penstock.demo.workload import Writer

# Above this many changes a second an action writes more rows, and not only more often.
_SCALE_AT = 1000
# One transaction in so many is rolled back, one in so many stays open while others commit.
_ROLLBACK_EVERY = 17
_INTERLEAVE_EVERY = 13
_OPEN_FOR = 4  # transactions of the other connection

Connection = psycopg.Connection


class PostgresWriter(Writer):
    """Runs the actions, inside `connected`."""

    def __init__(self, url: str, ledger: Ledger, *, rate: float, seed: int = 1) -> None:
        super().__init__(ledger, seed=seed, scale=max(1, int(rate / _SCALE_AT)))
        self._url = url
        self._pending: tuple[int, list[Written]] | None = None

    @contextmanager
    def connected(self) -> Iterator["PostgresWriter"]:
        """The writer, with connections."""
        with psycopg.connect(self._url) as self._first, psycopg.connect(self._url) as self._second:
            for connection in (self._first, self._second):
                connection.execute("SET lock_timeout = '10s'")
                connection.commit()
            yield self

    def first(self) -> None:
        self._transaction(sign_up)

    def turn(self, number: int) -> None:
        shop = self._shop
        if self._pending is None and number % _INTERLEAVE_EVERY == 0:
            # New rows only, so that it holds no lock that the other connection waits for.
            self._pending = number + _OPEN_FOR, sign_up(shop, self._second.cursor())
        if number % _ROLLBACK_EVERY == 0 and shop.rows["orders"]:
            self._rolled_back()
        self._transaction(self._chosen(ACTIONS, place_order))
        if self._pending is not None and number >= self._pending[0]:
            self.finish()

    def finish(self) -> None:
        if self._pending is not None:
            self._commit(self._second, self._pending[1])
            self._pending = None

    def _transaction(self, action: Action) -> None:
        self._commit(self._first, action(self._shop, self._first.cursor()))

    def _commit(self, connection: Connection, changes: list[Written]) -> None:
        transaction = _transaction_id(connection)
        connection.commit()
        self._ledger.commit(transaction, changes)
        self._shop.remember(changes)

    def _rolled_back(self) -> None:
        abandon(self._shop, self._first.cursor())
        transaction = _transaction_id(self._first)
        self._first.rollback()
        self._ledger.roll_back(transaction)


def _transaction_id(connection: Connection) -> str:
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])
