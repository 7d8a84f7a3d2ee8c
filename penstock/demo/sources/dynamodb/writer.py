"""Runs the shop's actions on DynamoDB, and enters in the ledger what was written."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from penstock.demo.ledger import Ledger
from penstock.demo.sources.dynamodb.shop import ACTIONS, ItemAction, ItemShop, place_order

__all__ = ["DynamoWriter"]


class DynamoWriter:
    """A `Writer`, inside `connected`; `table` is boto3's resource. The stream marks no
    transactions, so there are none here."""

    def __init__(self, table: Any, ledger: Ledger, *, seed: int = 1) -> None:
        self._table = table
        self._ledger = ledger
        self._shop = ItemShop(random=Random(seed))  # noqa: S311 - a demo

    @contextmanager
    def connected(self) -> Iterator["DynamoWriter"]:
        """The writer."""
        yield self

    def first(self) -> None:
        """See `Writer`."""
        self._act(place_order)

    def turn(self, number: int) -> None:
        """See `Writer`."""
        random = self._shop.random
        action = random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self._act(action if self._shop.orders else place_order)

    def finish(self) -> None:
        """See `Writer`: nothing stays open."""

    def _act(self, action: ItemAction) -> None:
        for change in action(self._shop, self._table):
            self._ledger.write(change)
