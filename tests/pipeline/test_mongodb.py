"""`penstock run` from MongoDB into JetStream: real servers, and kill -9 of each."""

import random
import shutil
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo.errors import WriteError

from tests.pipeline.running import Message, Run, eventually, messages, running
from tests.servers import Nats, Secantus

pytestmark = pytest.mark.timeout(900)

COLLECTIONS = ("users", "orders", "tmp")

# Operators that the writer has no special case for.
UPDATES: tuple[Any, ...] = (
    {"$min": {"n": 1}},
    {"$max": {"n": 9}},
    {"$bit": {"n": {"xor": 5}}},
    {"$currentDate": {"at": True}},
    {"$setOnInsert": {"made": True}},
    {"$addToSet": {"list": 3}},
    {"$pull": {"list": 3}},
    {"$pullAll": {"list": [1, 2]}},
    {"$push": {"list": {"$each": [5, 4, 6], "$slice": -4, "$sort": 1}}},
    {"$set": {"a.b.c": 1, "list.1": 7}},
    [{"$set": {"sum": {"$add": ["$n", 1]}}}, {"$unset": "made"}],
)


def pipeline(nats: Nats, stream: str, server: Secantus) -> dict[str, Any]:
    return {
        "backends": [{"type": "mongodb", "connection": server.url, "database": "shop"}],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{backend}}.{{collection}}.{{operation}}",
        },
    }


class Writer:
    """Writes at random, in a thread, everything that a collection can take."""

    def __init__(self, url: str, seed: int) -> None:
        self.written = 0
        self.error: BaseException | None = None
        self._client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(url)
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._client.close()
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.02):
                self._write()
                self.written += 1
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        db, pick = self._client.shop, self._random
        one, number = db[pick.choice(COLLECTIONS[:2])], pick.randrange(40)
        choice = pick.randrange(14)
        if choice < 3:
            one.update_one(
                {"_id": number},
                {"$set": {"name": f"n{pick.random()}"}, "$inc": {"n": 1}},
                upsert=True,
            )
        elif choice == 3:
            one.update_one(
                {"_id": number}, {"$push": {"list": pick.randrange(9)}, "$unset": {"x": 1}}
            )
        elif choice == 4:
            one.replace_one({"_id": number}, {"x": {"y": [number, None, True]}}, upsert=True)
        elif choice == 5:
            one.delete_one({"_id": number})
        elif choice == 6:
            one.update_one({"_id": number}, {"$pop": {"list": 1}, "$rename": {"name": "title"}})
        elif choice == 7:
            self._in_a_transaction(number)
        elif choice == 8:
            one.bulk_write(
                [
                    pymongo.UpdateOne({"_id": number + 1}, {"$mul": {"n": 2}}),
                    pymongo.ReplaceOne({"_id": number + 2}, {"bulk": 1.5}, upsert=True),
                    pymongo.DeleteOne({"_id": number + 3}),
                ]
            )
        elif choice == 9:
            one.update_many({"n": {"$gt": 3}}, {"$inc": {"n": -3}})
        elif choice == 10:
            one.update_one(
                {"_id": number, "list": {"$type": "array"}},
                {"$set": {"list.$[each]": 0}},
                array_filters=[{"each": {"$gt": 4}}],
            )
        elif choice in (11, 12):
            self._update(one, number)
        else:
            db.tmp.insert_many([{"text": "t"} for _ in range(3)])
            if pick.random() < 0.2:
                db.tmp.drop()

    def _update(self, one: Any, number: int) -> None:
        update = self._random.choice(UPDATES)
        kept = {"list": {"$type": "array"}, "n": {"$type": "int"}}
        with suppress(WriteError):  # a field of another type: the server refuses it
            one.update_one({"_id": number, **kept}, update)

    def _in_a_transaction(self, number: int) -> None:
        with self._client.start_session() as session:
            session.start_transaction()
            for name in COLLECTIONS[:2]:
                self._client.shop[name].replace_one(
                    {"_id": number}, {"both": self._random.random()}, upsert=True, session=session
                )
            if self._random.random() < 0.3:
                session.abort_transaction()
            else:
                session.commit_transaction()


def copy_of(found: list[Message]) -> dict[str, dict[Any, Any]]:
    """The collections, made from the stream alone."""
    copy: dict[str, dict[Any, Any]] = {name: {} for name in COLLECTIONS}
    for message in found:
        body = message.body
        documents = copy[body["collection"]]
        if body["operation"] == "DROP":
            documents.clear()
            continue
        key = str(body["key"]["_id"])
        if body["operation"] == "DELETE":
            documents.pop(key, None)
        elif body["data"] is not None:  # else it is gone by then, and its delete follows
            documents[key] = body["data"]
    return copy


def collections_of(server: Secantus) -> dict[str, dict[Any, Any]]:
    with pymongo.MongoClient(server.url) as client:
        return {
            name: {
                _key(each["_id"]): {name: _plain(value) for name, value in each.items()}
                for each in client.shop[name].find()
            }
            for name in COLLECTIONS
        }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value.isoformat(timespec='milliseconds')}Z"
    return str(value) if isinstance(value, ObjectId) else value


def _key(value: Any) -> str:
    return str(value if isinstance(value, int) else {"$oid": str(value)})


def assert_once_and_in_order(found: list[Message]) -> None:
    ids = [message.id for message in found]
    assert len(set(ids)) == len(ids)
    places = [
        (cursor, int(ordinal))
        for message in found
        for cursor, _, ordinal in [message.body["position"].rpartition(":")]
    ]
    assert places == sorted(set(places))


def wait_until_ready(run: Run) -> None:
    eventually(lambda: run.get("/ready")[0] == 200, run=run, seconds=300)


def test_a_pipeline_that_is_killed_at_random_makes_an_equal_copy(
    nats: Nats, stream: str, tmp_path: Path
) -> None:
    """And whose positions store is gone, too: it goes on after the last stored event."""
    with Secantus() as server:
        file = pipeline(nats, stream, server)
        with running(tmp_path, file) as run:
            wait_until_ready(run)
            with Writer(server.url, 1) as writer:
                count = writer.written + random.Random(7).randrange(50, 150)
                eventually(lambda: writer.written > count, run=run)
                eventually(lambda: messages(nats, stream), run=run)
                run.kill()
                done = writer.written + 30
                eventually(lambda: writer.written > done)
        shutil.rmtree(tmp_path / "state")
        with running(tmp_path, file) as run:
            with Writer(server.url, 2) as writer:
                wait_until_ready(run)
                eventually(lambda: writer.written > 50, run=run)
            expected = collections_of(server)
            eventually(lambda: copy_of(messages(nats, stream)) == expected, run=run)
            assert run.stop() == 0
        assert "the sink has changes" in run.log, "it began without a stored position"
        found = messages(nats, stream)
        assert_once_and_in_order(found)
        assert copy_of(found) == expected
