"""MongoDB for the bench: SecantusDB, a backlog of inserts, and PyMongo's bare getMore loop."""

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pymongo
from bson import Int64
from bson.raw_bson import RawBSONDocument

from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.mongodb.stream import stages
from penstock.process.closing import Closes
from tests.servers import Secantus

_DATABASE, _COLLECTION = "bench", "bench"


class MongoDB(Closes):
    """A `Source`."""

    baseline = "PyMongo's raw batches of the same stream, not decoded"

    def __init__(self, rows: int) -> None:
        options = {"sync-on-commit": False, "oplog-max-entries": 2 * rows + 100_000}
        self._server = Secantus(options=options)
        self._client: pymongo.MongoClient[Any]
        self._next = 0

    def __enter__(self) -> "MongoDB":
        self._server.__enter__()
        self._client = pymongo.MongoClient(self._server.url)
        return self

    def close(self) -> None:
        """Ends the server."""
        self._client.close()
        self._server.close()

    @property
    def pid(self) -> int:
        """See `Source`."""
        return self._server.pid

    @property
    def backend(self) -> Mapping[str, Any]:
        """See `Source`."""
        return {"type": "mongodb", **self._settings, "start": "beginning"}

    @property
    def _settings(self) -> Mapping[str, Any]:
        return {
            "connection": self._server.url,
            "database": _DATABASE,
            "collections": [_COLLECTION],
        }

    def write(self, rows: int, size: int = 1000) -> None:
        """See `Source`."""
        collection = self._client[_DATABASE][_COLLECTION]
        for first in range(self._next, self._next + rows, size):
            last = min(first + size, self._next + rows)
            collection.insert_many([_document(number) for number in range(first, last)])
        self._next += rows

    def read(self, rows: int) -> float:
        """See `Source`."""
        with closing(pymongo.MongoClient(self._server.url, document_class=RawBSONDocument)) as own:
            database = own[_DATABASE]
            settings = MongoSettings.model_validate(self._settings)
            pipeline = stages(settings, {"time": self._first()}, split=True)
            with own.start_session() as session:
                started, found = time.perf_counter(), 0
                reply = database.command(
                    {
                        "aggregate": 1,
                        "pipeline": pipeline,
                        "cursor": {"batchSize": 1000},
                    },
                    session=session,
                )
                cursor, batch = reply["cursor"], reply["cursor"]["firstBatch"]
                while (found := found + len(batch)) < rows:
                    more = {
                        "getMore": Int64(cursor["id"]),
                        "collection": cursor["ns"].partition(".")[2],
                        "batchSize": 1000,
                        "maxTimeMS": 1000,
                    }
                    batch = database.command(more, session=session)["cursor"]["nextBatch"]
                return time.perf_counter() - started

    def _first(self) -> list[int]:
        """The cluster time of the first change."""
        oldest: Any = self._client.local["oplog.rs"].find_one(sort=[("$natural", 1)])
        return [oldest["ts"].time, oldest["ts"].inc]


def _document(number: int) -> dict[str, Any]:
    return {
        "_id": number,
        "name": f"name {number}",
        "text": "twenty characters xx" * 3,
        "number": number * 3,
        "big": Int64(2**40 + number),
        "price": number / 4,
        "active": number % 2 == 0,
        "tags": ["a", "b"],
        "nested": {"a": 1, "b": None},
        "none": None,
    }
