"""MongoDB: its embedded stand-in, and a shop whose documents cover what a change can contain."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from bson import Decimal128, Int64, ObjectId
from pymongo import MongoClient

from penstock.demo.ledger import Ledger
from penstock.demo.secantus import Secantus
from penstock.demo.sources import DemoSource
from penstock.demo.sources.mongodb.shop import KEYS, MongoWriter
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer

_DATABASE = "shop"
# Beyond it, a number of JSON is not exact everywhere.
_EXACT = 2**53


class MongoDemo(DemoSource):
    """MongoDB's stand-in."""

    title = "SecantusDB"
    notice = (
        "The database is SecantusDB, a stand-in for a MongoDB replica set: it speaks MongoDB's"
        " protocol, and is not MongoDB."
    )
    keys = KEYS
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

    def writer(self, ledger: Ledger, rate: float) -> Callable[[], AbstractContextManager[Writer]]:
        return MongoWriter(self._server.url, _DATABASE, ledger).connected

    def tables(self) -> Mapping[str, TableRows]:
        with MongoClient[dict[str, Any]](
            self._server.url, uuidRepresentation="standard", tz_aware=True
        ) as client:
            return {
                name: {(_plain(each["_id"]),): _plain(each) for each in client.shop[name].find()}
                for name in KEYS
            }

    def hints(self) -> Sequence[str]:
        return (f"mongosh {self._server.url}/{_DATABASE}",)


def _plain(value: Any) -> Any:
    """The values of BSON that Python has no type for, as the message format writes them."""
    match value:
        case ObjectId():
            return str(value)
        case Decimal128():
            return value.to_decimal()
        case Int64():
            return int(value) if abs(value) < _EXACT else str(value)
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


DEMO = MongoDemo
