"""The shop in MongoDB: a writer of actions, on documents that have what a document can.

An action writes by itself, or in a transaction; it returns what it wrote, in order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from bson import Decimal128, Int64, ObjectId
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.database import Database

from penstock.demo.ledger import Ledger, Written
from penstock.demo.workload import Shop, Writer

# One action in so many is a transaction, one in so many is rolled back.
_TRANSACTION_EVERY = 3
_ROLLBACK_EVERY = 17

KEYS: dict[str, tuple[str, ...]] = {
    "customers": ("_id",),
    "orders": ("_id",),
    "carts": ("_id",),
}

Documents = Database[dict[str, Any]]
Session = ClientSession | None


DocumentAction = Callable[[Shop, Documents, Session], list[Written]]


def sign_up(shop: Shop, documents: Documents, session: Session) -> list[Written]:
    """One to five new customers, in one command."""
    made = [_customer(shop) for _ in range(shop.random.randint(1, 5))]
    documents.customers.insert_many(made, session=session)
    return [Written("INSERT", "customers", (str(each["_id"]),)) for each in made]


def place_order(shop: Shop, documents: Documents, session: Session) -> list[Written]:
    """An order with its lines inside, and the customer's credit."""
    customer, order = _customer_of(shop), shop.next_number()
    documents.orders.insert_one(
        {
            "_id": order,
            "customer": customer,
            "status": "new",
            "total": Decimal128(Decimal(shop.random.randint(1, 10**8)).scaleb(-2)),
            "lines": [
                {"sku": f"sku-{line}", "quantity": line, "price": line * 1.25}
                for line in range(1, shop.random.randint(2, 6))
            ],
            "address": {"street": "Müllerstraße 1", "floor": None},
            "placed_at": _now(),
        },
        session=session,
    )
    credit = {"$inc": {"credit": -125}, "$set": {"seen.last": _now()}}
    documents.customers.update_one({"_id": customer}, credit, session=session)
    return [Written("INSERT", "orders", (order,)), Written("UPDATE", "customers", (str(customer),))]


def ship(shop: Shop, documents: Documents, session: Session) -> list[Written]:
    """A document of an array changes, and a field goes."""
    (order,) = shop.some("orders")
    documents.orders.update_one(
        {"_id": order},
        {"$set": {"status": "shipped", "lines.0.shipped": _now()}, "$unset": {"address": ""},
         "$inc": {"steps": 1}},
        session=session,
    )  # fmt: skip
    return [Written("UPDATE", "orders", (order,))]


def write_letter(shop: Shop, documents: Documents, session: Session) -> list[Written]:
    """A customer's letters: the newest three are kept."""
    customer = _customer_of(shop)
    letter = {"at": _now(), "text": "Ünïque 🛒 " * shop.random.randint(1, 50)}
    push = {"$push": {"letters": {"$each": [letter], "$slice": -3}}}
    documents.customers.update_one({"_id": customer}, push, session=session)
    return [Written("UPDATE", "customers", (str(customer),))]


def fill_cart(shop: Shop, documents: Documents, session: Session) -> list[Written]:
    """A cart is made, or replaced as a whole."""
    cart = shop.random.randint(1, 40)
    document = {"_id": cart, "items": [shop.random.random(), None, "x"], "touched_at": _now()}
    there = (cart,) in shop.rows["carts"]
    documents.carts.replace_one({"_id": cart}, document, upsert=True, session=session)
    return [Written("REPLACE" if there else "INSERT", "carts", (cart,))]


def cancel(shop: Shop, documents: Documents, session: Session) -> list[Written]:
    """An order is deleted."""
    (order,) = shop.some("orders")
    documents.orders.delete_one({"_id": order}, session=session)
    return [Written("DELETE", "orders", (order,))]


def clean_up(shop: Shop, documents: Documents, session: Session) -> list[Written]:
    """Three kinds of writes in one command, in order."""
    (old,), new = shop.some("orders"), shop.next_number()
    operations: list[InsertOne[dict[str, Any]] | UpdateOne | DeleteOne] = [
        InsertOne({"_id": new, "customer": None, "steps": Int64(2**60)}),
        UpdateOne({"_id": new}, {"$set": {"status": "made"}}),
        DeleteOne({"_id": old}),
    ]
    documents.orders.bulk_write(operations, session=session)
    kinds = ("INSERT", new), ("UPDATE", new), ("DELETE", old)
    return [Written(operation, "orders", (id,)) for operation, id in kinds]


def abandon(shop: Shop, documents: Documents, session: Session) -> list[Written]:
    """What a transaction that is rolled back would have written."""
    return [*sign_up(shop, documents, session), *place_order(shop, documents, session)]


# action -> how often, relative to the others
ACTIONS: dict[DocumentAction, int] = {
    sign_up: 10,
    place_order: 30,
    ship: 15,
    write_letter: 10,
    fill_cart: 8,
    cancel: 5,
    clean_up: 3,
}


class MongoWriter(Writer):
    """Runs the actions, inside `connected`."""

    def __init__(self, url: str, database: str, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._url = url
        self._database = database

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
        self._written(sign_up(self._shop, self._documents, None))

    def turn(self, number: int) -> None:
        if number % _ROLLBACK_EVERY == 0:
            self._rolled_back()
        action = self._chosen(ACTIONS, place_order)
        if number % _TRANSACTION_EVERY:
            self._written(action(self._shop, self._documents, None))
            return
        with self._session.start_transaction():
            made = action(self._shop, self._documents, self._session)
        self._ledger.commit(_transaction_id(self._session), made)
        self._shop.remember(made)

    def _rolled_back(self) -> None:
        self._session.start_transaction()
        abandon(self._shop, self._documents, self._session)
        name = _transaction_id(self._session)
        self._session.abort_transaction()
        self._ledger.roll_back(name)


def _customer_of(shop: Shop) -> ObjectId:
    return ObjectId(shop.some("customers")[0])


def _customer(shop: Shop) -> dict[str, Any]:
    number = shop.random.getrandbits(64)
    return {
        "_id": ObjectId(),
        "name": f"Ünïque {number} O'Neill",
        "vip": number % 10 == 0,
        "credit": 0,
        "score": None if number % 7 == 0 else number / 3,
        "tags": ["new", None, 'a "quoted", one', ""],
        "preferences": {"size": number % 50, "nested": [1, None, {"a": 2.5}]},
        "photo": number.to_bytes(8, "big"),
        "token": UUID(int=number),
        "joined_at": _now(),
    }


def _now() -> datetime:
    """As MongoDB stores it: milliseconds."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def _transaction_id(session: ClientSession) -> str:
    # PyMongo has no public name for the number.
    number = session._server_session.transaction_id
    return f"{UUID(bytes=bytes(session.session_id['id']))}/{number}"
