"""The shop in DynamoDB: one table of customers' orders, whose items have every type."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from penstock.demo.ledger import Key, Ledger, Written
from penstock.demo.workload import Shop, Writer

TABLE = "orders"
KEYS: dict[str, tuple[str, ...]] = {TABLE: ("customer", "number")}

_CUSTOMERS = 50

# The table is a resource of boto3, which is made at run time and has no type.
ItemAction = Callable[[Shop, Any], list[Written]]


def place_order(shop: Shop, table: Any) -> list[Written]:
    """A new item."""
    key = _next_key(shop)
    table.put_item(Item=_item(shop, key))
    return [_written("INSERT", key)]


def place_orders(shop: Shop, table: Any) -> list[Written]:
    """Several new items in one request."""
    keys = [_next_key(shop) for _ in range(shop.random.randint(5, 25))]
    with table.batch_writer() as batch:
        for key in keys:
            batch.put_item(Item=_item(shop, key))
    return [_written("INSERT", key) for key in keys]


def replace(shop: Shop, table: Any) -> list[Written]:
    """An item that exists is put again."""
    key = shop.some(TABLE)
    table.put_item(Item=_item(shop, key))
    return [_written("UPDATE", key)]


def pay(shop: Shop, table: Any) -> list[Written]:
    """A number is added to, and an attribute is set."""
    key = shop.some(TABLE)
    table.update_item(
        Key=_key(key),
        UpdateExpression="SET paid = :t ADD steps :n",
        ExpressionAttributeValues={":t": shop.random.random() < 0.5, ":n": 1},
    )
    return [_written("UPDATE", key)]


def cancel(shop: Shop, table: Any) -> list[Written]:
    """An item is deleted."""
    key = shop.some(TABLE)
    table.delete_item(Key=_key(key))
    return [_written("DELETE", key)]


# action -> how often, relative to the others
ACTIONS: dict[ItemAction, int] = {place_order: 10, place_orders: 3, replace: 5, pay: 15, cancel: 5}


class DynamoWriter(Writer):
    """Runs the actions, inside `connected`; `table` is boto3's resource. The stream marks no
    transactions, so there are none here."""

    def __init__(self, table: Any, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._table = table

    @contextmanager
    def connected(self) -> Iterator["DynamoWriter"]:
        """The writer."""
        yield self

    def first(self) -> None:
        self._written(place_order(self._shop, self._table))

    def turn(self, number: int) -> None:
        self._written(self._chosen(ACTIONS, place_order)(self._shop, self._table))


def _next_key(shop: Shop) -> Key:
    return f"customer-{shop.random.randint(1, _CUSTOMERS)}", shop.next_number()


def _key(key: Key) -> dict[str, Any]:
    return {"customer": key[0], "number": key[1]}


def _written(operation: str, key: Key) -> Written:
    return Written(operation, TABLE, key)


def _item(shop: Shop, key: Key) -> dict[str, Any]:
    number = shop.random.getrandbits(62)
    return {
        **_key(key),
        "name": f"Ünïque {number} O'Neill 🛒",
        "total": Decimal(number | 1).scaleb(-2),  # never whole, whose zeros a server may keep
        "gift": number % 2 == 0,
        "nothing": None,
        "photo": number.to_bytes(16, "big"),
        "tags": {"new", f"tag {number % 7}"},
        "sizes": {1, Decimal("2.5"), number % 100 + 3},
        "lines": [{"sku": f"sku-{line}", "price": Decimal(line) / 4} for line in range(1, 4)],
        "address": {"street": "Müllerstraße 1", "floor": None},
    }
