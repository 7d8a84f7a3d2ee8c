"""The shop in Cosmos DB: one container of customers' orders."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.demo.ledger import Ledger, Written
from penstock.demo.workload import Writer

CONTAINER = "orders"
KEYS: dict[str, tuple[str, ...]] = {CONTAINER: ("customer", "id")}

_CUSTOMERS = 50
ItemKey = tuple[str, str]


@dataclass(slots=True)
class OrderShop:
    """The keys of the items that exist."""

    random: Random
    orders: list[ItemKey] = field(default_factory=list)
    last: int = 0

    def next_key(self) -> ItemKey:
        """The key of a new item."""
        self.last += 1
        return f"customer-{self.random.randint(1, _CUSTOMERS)}", f"order-{self.last}"

    def some(self) -> ItemKey:
        """The key of an item that exists."""
        return self.random.choice(self.orders)


# The container is the SDK's client of one.
OrderAction = Callable[[OrderShop, Any], Written]


def place_order(shop: OrderShop, container: Any) -> Written:
    """A new item."""
    key = shop.next_key()
    container.create_item(_item(shop, key))
    shop.orders.append(key)
    return Written("INSERT", CONTAINER, key)


def pay(shop: OrderShop, container: Any) -> Written:
    """An item that exists is replaced."""
    key = shop.some()
    container.replace_item(key[1], _item(shop, key))
    return Written("REPLACE", CONTAINER, key)


def upsert(shop: OrderShop, container: Any) -> Written:
    """An item that exists is written as if nobody knew that."""
    key = shop.some()
    container.upsert_item(_item(shop, key))
    return Written("REPLACE", CONTAINER, key)


def cancel(shop: OrderShop, container: Any) -> Written:
    """An item is deleted."""
    key = shop.some()
    container.delete_item(key[1], partition_key=key[0])
    shop.orders.remove(key)
    return Written("DELETE", CONTAINER, key)


# action -> how often, relative to the others
ACTIONS: dict[OrderAction, int] = {place_order: 10, pay: 10, upsert: 5, cancel: 5}


class CosmosWriter(Writer):
    """Runs the actions, inside `connected`; `container` is the SDK's."""

    def __init__(self, container: Any, ledger: Ledger, *, seed: int = 1) -> None:
        self._container = container
        self._ledger = ledger
        self._shop = OrderShop(random=Random(seed))  # noqa: S311 - a demo

    @contextmanager
    def connected(self) -> Iterator["CosmosWriter"]:
        """The writer."""
        yield self

    def first(self) -> None:
        self._act(place_order)

    def turn(self, number: int) -> None:
        random = self._shop.random
        action = random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self._act(action if self._shop.orders else place_order)

    def _act(self, action: OrderAction) -> None:
        self._ledger.write(action(self._shop, self._container))


def _item(shop: OrderShop, key: ItemKey) -> dict[str, Any]:
    number = shop.random.getrandbits(40)
    return {
        "customer": key[0],
        "id": key[1],
        "name": f"Ünïque {number} O'Neill 🛒",
        "total": number / 100,
        "gift": number % 2 == 0,
        "nothing": None,
        "lines": [{"sku": f"sku-{line}", "price": line / 4} for line in range(1, 4)],
        "address": {"street": "Müllerstraße 1", "floor": None},
    }
