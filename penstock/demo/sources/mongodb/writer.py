"""Runs the shop's actions on MongoDB, and enters in the ledger what was committed."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from uuid import UUID

from pymongo import MongoClient
from pymongo.client_session import ClientSession

from penstock.demo.ledger import Ledger
from penstock.demo.sources.mongodb.shop import (
    ACTIONS,
    Documents,
    DocumentShop,
    abandon,
    place_order,
    sign_up,
)

__all__ = ["MongoWriter"]

# One action in so many is a transaction, one in so many is rolled back.
_TRANSACTION_EVERY = 3
_ROLLBACK_EVERY = 17


class MongoWriter:
    """A `Writer`, inside `connected`. The ids that it knows outlast its connections."""

    def __init__(self, url: str, database: str, ledger: Ledger, *, seed: int = 1) -> None:
        self._url = url
        self._database = database
        self._ledger = ledger
        self._shop = DocumentShop(random=Random(seed))  # noqa: S311 - a demo

    @contextmanager
    def connected(self) -> Iterator["MongoWriter"]:
        """The writer, with a connection."""
        with (
            MongoClient[dict[str, Any]](
                self._url, uuidRepresentation="standard", tz_aware=True
            ) as client,
            client.start_session() as self._session,
        ):
            self._documents: Documents = client[self._database]
            yield self

    def first(self) -> None:
        """See `Writer`."""
        for change in (made := sign_up(self._shop, self._documents, None)):
            self._ledger.write(change)
        self._shop.remember(made)

    def turn(self, number: int) -> None:
        """See `Writer`."""
        shop = self._shop
        if number % _ROLLBACK_EVERY == 0:
            self._rolled_back()
        action = shop.random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        action = action if shop.orders else place_order
        if number % _TRANSACTION_EVERY:
            made = action(shop, self._documents, None)
            for change in made:
                self._ledger.write(change)
        else:
            with self._session.start_transaction():
                made = action(shop, self._documents, self._session)
            self._ledger.commit(_transaction_id(self._session), made)
        shop.remember(made)

    def finish(self) -> None:
        """See `Writer`: nothing stays open."""

    def _rolled_back(self) -> None:
        self._session.start_transaction()
        abandon(self._shop, self._documents, self._session)
        name = _transaction_id(self._session)
        self._session.abort_transaction()
        self._ledger.roll_back(name)


def _transaction_id(session: ClientSession) -> str:
    # PyMongo has no public name for the number.
    number = session._server_session.transaction_id
    return f"{UUID(bytes=bytes(session.session_id['id']))}/{number}"
