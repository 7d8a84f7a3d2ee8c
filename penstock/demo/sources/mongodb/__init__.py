"""MongoDB: its embedded stand-in, and a shop whose documents cover what a change can contain."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from bson import Decimal128, Int64, ObjectId
from pymongo import MongoClient

from penstock.closing import Closes
from penstock.demo.ledger import Ledger
from penstock.demo.secantus import Secantus
from penstock.demo.sources.mongodb.shop import KEYS
from penstock.demo.sources.mongodb.writer import MongoWriter
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer

__all__ = ["DEMO", "MongoDemo"]

_DATABASE = "shop"
# Beyond it, a number of JSON is not exact everywhere.
_EXACT = 2**53


class MongoDemo(Closes):
    """A `DemoSource`."""

    title = "SecantusDB"
    notice = (
        "The database is SecantusDB, a stand-in for a MongoDB replica set: it speaks MongoDB's"
        " protocol, and is not MongoDB."
    )
    keys = KEYS
    subject = "cdc.{collection}.{operation}"
    backend: Mapping[str, Any] = {
        "type": "mongodb",
        "connection": "${MONGO_URL}",
        "database": _DATABASE,
    }

    def __init__(self) -> None:
        # As MongoDB's own default: a commit does not wait for the disk.
        self._server = Secantus(options={"sync-on-commit": False})

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def close(self) -> None:
        """Ends the server and removes its files."""
        self._server.close()

    @property
    def environment(self) -> Mapping[str, str]:
        """See `DemoSource`."""
        return {"MONGO_URL": self._server.url}

    def writer(self, ledger: Ledger, rate: float) -> Callable[[], AbstractContextManager[Writer]]:
        """See `DemoSource`."""
        return MongoWriter(self._server.url, _DATABASE, ledger).connected

    def lag(self) -> str:
        """See `DemoSource`: MongoDB has no view of who reads its change streams."""
        return ""

    def tables(self) -> Mapping[str, TableRows]:
        """See `DemoSource`."""
        with MongoClient[dict[str, Any]](
            self._server.url, uuidRepresentation="standard", tz_aware=True
        ) as client:
            return {
                name: {(_plain(each["_id"]),): _plain(each) for each in client.shop[name].find()}
                for name in KEYS
            }

    def hints(self) -> Sequence[str]:
        """See `DemoSource`."""
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
