"""MongoDB: SecantusDB, a stand-in for a replica set of one member, and a shop whose documents cover
what a change can contain.

SecantusDB is GPL, so it is always a process of its own, and nothing of it is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from typing import Any, Self
from uuid import UUID

from bson import Decimal128, ObjectId
from pymongo import DeleteOne, InsertOne, MongoClient, ReplaceOne, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError

from penstock.demo.servers import EmbeddedServer, beside_python
from penstock.demo.sources import DemoSource, plain
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer, Written

_DATABASE = "shop"
# One action in so many is a transaction, one in so many is rolled back.
_TRANSACTION_EVERY = 3
_ROLLBACK_EVERY = 17

_FORMS: dict[type, Callable[[Any], Any]] = {ObjectId: str, Decimal128: Decimal128.to_decimal}

Document = dict[str, Any]
Request = InsertOne[Document] | UpdateOne | ReplaceOne[Document] | DeleteOne
Write = tuple[Written, Request]  # what it will have written, and the request


class Secantus(EmbeddedServer):
    """A SecantusDB; `options` are its options without the dashes, on top of ours; change the
    mapping before the next `start`. True: an option without a value."""

    scheme = "mongodb"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.bin = beside_python("secantusd-py", extra="demo-mongodb")
        self.options: dict[str, object] = {"sync-on-commit": True, **(options or {})}
        super().__init__("secantus", None)

    def _command(self, *, again: bool) -> Sequence[str]:
        where = {"host": self.host, "port": self.port, "storage-path": self.folder / "data"}
        command = [str(self.bin)]
        for name, value in {**where, **self.options}.items():
            if value is not False:
                command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return command

    def _ready(self) -> bool:
        try:
            with MongoClient[Document](self.url, serverSelectionTimeoutMS=500) as client:
                client.admin.command("ping")
        except PyMongoError:
            return False
        return True


def sign_up(shop: Writer) -> list[Write]:
    """One to five new customers, in one command."""
    return [_insert("customers", _customer(shop)) for _ in range(shop.random.randint(1, 5))]


def place_order(shop: Writer) -> list[Write]:
    """An order with its lines inside, and the customer's credit."""
    customer = ObjectId(shop.some("customers")[0])
    order = {
        "_id": shop.next_number(),
        "customer": customer,
        "status": "new",
        "total": Decimal128(Decimal(shop.random.randint(1, 10**8)).scaleb(-2)),
        "lines": [
            {"sku": f"sku-{line}", "quantity": line, "price": line * 1.25}
            for line in range(1, shop.random.randint(2, 6))
        ],
        "address": {"street": "Müllerstraße 1", "floor": None},
        "placed_at": _now(),
    }
    credit = {"$inc": {"credit": -125}, "$set": {"seen.last": _now()}}
    return [_insert("orders", order), _update("customers", customer, credit)]


def ship(shop: Writer) -> list[Write]:
    """A document of an array changes, a field goes, and an array grows, up to three."""
    shipped = {"status": "shipped", "lines.0.shipped": _now()}
    push = {"notes": {"$each": ["Ünïque 🛒 " * shop.random.randint(1, 50)], "$slice": -3}}
    change = {"$set": shipped, "$unset": {"address": ""}, "$inc": {"steps": 1}, "$push": push}
    return [_update("orders", shop.some("orders")[0], change)]


def fill_cart(shop: Writer) -> list[Write]:
    """A cart is made, or replaced as a whole."""
    cart = shop.random.randint(1, 40)
    document = {"_id": cart, "items": [shop.random.random(), None, "x"], "touched_at": _now()}
    operation = "REPLACE" if (cart,) in shop.rows["carts"] else "INSERT"
    request = ReplaceOne({"_id": cart}, document, upsert=True)
    return [(Written(operation, "carts", (cart,)), request)]


def cancel(shop: Writer) -> list[Write]:
    order = shop.some("orders")[0]
    return [(Written("DELETE", "orders", (order,)), DeleteOne({"_id": order}))]


# action -> how often, relative to the others
ACTIONS: dict[Callable[[Writer], list[Write]], int] = {
    sign_up: 10,
    place_order: 30,
    ship: 15,
    fill_cart: 8,
    cancel: 5,
}


class MongoWriter(Writer):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def __enter__(self) -> Self:
        self._client = _connected(self._url)
        self._session = self._client.start_session()
        return self

    def close(self) -> None:
        self._session.end_session()
        self._client.close()

    def first(self) -> None:
        self.committed(self._write(sign_up(self), None))

    def turn(self, number: int) -> None:
        if number % _ROLLBACK_EVERY == 0:
            self._roll_back()
        writes = self.chosen(ACTIONS, place_order)(self)
        if number % _TRANSACTION_EVERY:
            self.committed(self._write(writes, None))
            return
        with self._session.start_transaction():
            made = self._write(writes, self._session)
        self.committed(made, _transaction_id(self._session))

    def _roll_back(self) -> None:
        self._session.start_transaction()
        self._write([*sign_up(self), *place_order(self)], self._session)
        self.ledger.rolled_back.add(_transaction_id(self._session))
        self._session.abort_transaction()

    def _write(self, writes: list[Write], session: ClientSession | None) -> list[Written]:
        """One command for what one collection gets in a row."""
        for name, group in groupby(writes, key=lambda write: write[0].table):
            requests = [request for _, request in group]
            self._client[_DATABASE][name].bulk_write(requests, session=session)
        return [written for written, _ in writes]


def _connected(url: str) -> MongoClient[Document]:
    return MongoClient[Document](url, uuidRepresentation="standard", tz_aware=True)


def _insert(table: str, document: Document) -> Write:
    return Written("INSERT", table, (plain(document["_id"], _FORMS),)), InsertOne(document)


def _update(table: str, id: object, change: Document) -> Write:
    return Written("UPDATE", table, (plain(id, _FORMS),)), UpdateOne({"_id": id}, change)


def _customer(shop: Writer) -> Document:
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


class MongoDemo(DemoSource):
    title = "SecantusDB"
    notice = (
        "The database is SecantusDB, a stand-in for a MongoDB replica set: it speaks MongoDB's"
        " protocol, and is not MongoDB."
    )
    keys: Mapping[str, tuple[str, ...]] = dict.fromkeys(("customers", "orders", "carts"), ("_id",))
    backend: Mapping[str, Any] = {
        "type": "mongodb",
        "connection": "${MONGO_URL}",
        "database": _DATABASE,
    }

    _server: Secantus

    def __init__(self) -> None:
        # As MongoDB's own default: a commit does not wait for the disk.
        self._server = Secantus(options={"sync-on-commit": False})

    @property
    def environment(self) -> Mapping[str, str]:
        return {"MONGO_URL": self._server.url}

    def writer(self, rate: float) -> Writer:
        return MongoWriter(self._server.url)

    def tables(self) -> Mapping[str, TableRows]:
        with _connected(self._server.url) as client:
            return {
                name: {(row["_id"],): row for row in plain(list(client.shop[name].find()), _FORMS)}
                for name in self.keys
            }

    def hints(self) -> Sequence[str]:
        return (f"mongosh {self._server.url}/{_DATABASE}",)


DEMO = MongoDemo
