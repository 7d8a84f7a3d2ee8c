"""MongoDB for the bench: a mongod that replays prepared replies, or SecantusDB, with a backlog of
inserts; and PyMongo's bare getMore loop."""

import multiprocessing
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any, Self

import pymongo
from bson import Int64

from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.mongodb.stream import stages
from penstock.process.closing import Closes
from penstock.wire.changestream.events import RAW
from tests.servers import Secantus
from tests.work.scenarios import inserted as event_of

from .replay import Replay, inserted

_DATABASE, _COLLECTION = "bench", "bench"


class _ChangeStream(Closes):
    """What a `Source` of a change stream needs no certain server for."""

    baseline = "PyMongo's raw batches of the same stream, not decoded"
    url: str

    @property
    def backend(self) -> Mapping[str, Any]:
        """See `Source`."""
        return {"type": "mongodb", **self._settings, "start": "beginning"}

    @property
    def _settings(self) -> Mapping[str, Any]:
        return {"connection": self.url, "database": _DATABASE, "collections": [_COLLECTION]}

    @abstractmethod
    def _first(self) -> list[int]:
        """The cluster time of the first change."""

    def read(self, rows: int) -> float:
        """See `Source`."""
        with closing(pymongo.MongoClient(self.url)) as own:
            database = own[_DATABASE]
            settings = MongoSettings.model_validate(self._settings)
            pipeline = stages(settings, {"time": self._first()}, split=True)
            with own.start_session() as session:
                started, found = time.perf_counter(), 0
                reply = database.command(
                    {"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 0}},
                    session=session,
                    codec_options=RAW,
                )
                cursor, batch = reply["cursor"], reply["cursor"]["firstBatch"]
                while (found := found + len(batch)) < rows:
                    more = {
                        "getMore": Int64(cursor["id"]),
                        "collection": cursor["ns"].partition(".")[2],
                        "batchSize": 1000,
                        "maxTimeMS": 1000,
                    }
                    reply = database.command(more, session=session, codec_options=RAW)
                    batch = reply["cursor"]["nextBatch"]
                return time.perf_counter() - started


class MongoDB(_ChangeStream):
    """A `Source`: `Replay` in a process of its own, with documents of 0.85 KB."""

    def __init__(self, rows: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, rows), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self.url = self._control.recv()
        return self

    def close(self) -> None:
        """Ends the server."""
        self._process.terminate()
        self._process.join()

    @property
    def pid(self) -> int:
        """See `Source`."""
        assert self._process.pid is not None
        return self._process.pid

    def write(self, rows: int, size: int = 1000) -> None:
        """See `Source`."""
        self._control.send(rows)
        self._control.recv()

    def _first(self) -> list[int]:
        return [0, 1]


def _serve(control: Connection, rows: int) -> None:
    """The server's process: commits as many events as it is asked to."""
    found = (event_of(number)["fullDocument"] for number in range(rows))
    with Replay([inserted(_DATABASE, _COLLECTION, each) for each in found]) as server:
        control.send(server.url)
        while True:
            server.commit(control.recv())
            control.send(None)


class SecantusDB(_ChangeStream):
    """A `Source`: a stand-in for a replica set, with documents of ten fields."""

    def __init__(self, rows: int) -> None:
        options = {"sync-on-commit": False, "oplog-max-entries": 2 * rows + 100_000}
        self._server = Secantus(options=options)
        self._client: pymongo.MongoClient[Any]
        self._next = 0

    def __enter__(self) -> Self:
        self._server.__enter__()
        self.url = self._server.url
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

    def write(self, rows: int, size: int = 1000) -> None:
        """See `Source`."""
        collection = self._client[_DATABASE][_COLLECTION]
        for first in range(self._next, self._next + rows, size):
            last = min(first + size, self._next + rows)
            collection.insert_many([_document(number) for number in range(first, last)])
        self._next += rows

    def _first(self) -> list[int]:
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
