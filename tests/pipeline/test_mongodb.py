"""`penstock run` from MongoDB into JetStream: real servers, and kill -9 of each."""

import json
import random
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo.errors import PyMongoError, WriteError

from penstock.ops.announce import BACK, LOST
from tests.chaos.proxy import Proxy, Weather
from tests.pipeline.running import Message, Run, eventually, messages, running
from tests.servers import Nats, Secantus

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(900)]

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


def pipeline(folder: Path, nats: Nats, stream: str, *servers: Secantus) -> dict[str, Any]:
    """One backend for each server, called `default`, `b1` and so on."""
    return {
        "name": "test",
        "backends": [
            {
                "name": f"b{number}" if number else "default",
                "type": "mongodb",
                "connection": server.url,
                "database": "shop",
                "connect_timeout": "2s",
            }
            for number, server in enumerate(servers)
        ],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{backend}}.{{collection}}.{{operation}}",
        },
        "state": str(folder / "state"),
        "ops": {"port": 0},
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
    for backend in {message.body["backend"] for message in found}:
        places = [
            (cursor, int(ordinal))
            for message in found
            if message.body["backend"] == backend
            for cursor, _, ordinal in [message.body["position"].rpartition(":")]
        ]
        assert places == sorted(set(places))


def wait_until_ready(run: Run) -> None:
    eventually(lambda: run.get("/ready")[0] == 200, run=run, seconds=300)


@contextmanager
def mongo() -> Iterator[Secantus]:
    """What it acknowledged survives a kill."""
    with Secantus() as server:
        yield server


def test_a_pipeline_that_is_killed_at_random_makes_an_equal_copy(
    nats: Nats, stream: str, tmp_path: Path
) -> None:
    """In the end its positions store is gone, too: it goes on after the last stored event."""
    pick = random.Random(7)
    with mongo() as server:
        file = pipeline(tmp_path, nats, stream, server)
        with running(tmp_path, file) as run:
            wait_until_ready(run)
            with Writer(server.url, 1) as writer:
                count = writer.written + pick.randrange(50, 150)
                eventually(lambda: writer.written > count, run=run)
                eventually(lambda: messages(nats, stream), run=run)
                run.kill()
                done = writer.written + 30
                eventually(lambda: writer.written > done)
        stored = len(messages(nats, stream))
        with running(tmp_path, file) as run, Writer(server.url, 2) as writer:
            eventually(lambda: len(messages(nats, stream)) > stored, run=run)
            count = writer.written + pick.randrange(50, 150)
            eventually(lambda: writer.written > count, run=run)
            run.kill()
        shutil.rmtree(tmp_path / "state")
        with running(tmp_path, file) as run:
            with Writer(server.url, 3) as writer:
                wait_until_ready(run)
                eventually(lambda: writer.written > 50, run=run)
            expected = collections_of(server)
            eventually(lambda: copy_of(messages(nats, stream)) == expected, run=run)
            assert run.stop() == 0
        assert "the sink has changes" in run.log, "it began without a stored position"
        found = messages(nats, stream)
        assert_once_and_in_order(found)
        assert copy_of(found) == expected


@pytest.mark.thorough  # tests/service/test_moved_bookmarks.py has it without Spark
def test_another_list_of_collections_after_a_kill_loses_and_doubles_nothing(
    nats: Nats, stream: str, tmp_path: Path
) -> None:
    """Widened, then exchanged for another list, each time after a kill that left the saved position
    far behind the stream: in transactions, whose changes share one cluster time."""

    def write(server: Secantus, number: int) -> None:
        client: pymongo.MongoClient[dict[str, Any]]
        with pymongo.MongoClient(server.url) as client, client.start_session() as session:
            for each in range(3):
                with session.start_transaction():
                    for name in ("users", "orders", "users", "logs", "orders"):
                        document = {"_id": f"{name}-{number}-{each}-{ObjectId()}"}
                        client.shop[name].insert_one(document, session=session)

    def delivered(*collections: str) -> int:
        found = messages(nats, stream)
        return sum(each.body["collection"] in collections for each in found)

    with mongo() as server:
        file = pipeline(tmp_path, nats, stream, server)
        file["checkpoint"] = {"interval": "1h", "event_count": 1_000_000}
        backend = file["backends"][0]
        backend["collections"] = ["users"]
        with running(tmp_path, file) as run:
            wait_until_ready(run)
            write(server, 0)
            eventually(lambda: delivered("users") == 6, run=run)
            run.kill_and_wait()
        write(server, 1)
        backend["collections"] = ["users", "orders"]
        with running(tmp_path, file) as run:
            eventually(lambda: delivered("users", "orders") == 24, run=run)
            write(server, 2)
            eventually(lambda: delivered("users", "orders") == 36, run=run)
            run.kill_and_wait()
        write(server, 3)
        backend["collections"] = ["logs", "orders"]
        with running(tmp_path, file) as run:
            eventually(lambda: delivered("orders") == 24 and delivered("logs"), run=run)
            write(server, 4)
            eventually(lambda: delivered("orders") == 30, run=run)
            eventually(lambda: delivered("logs") == 15, run=run)
            assert run.stop() == 0
        assert "reading does not go on at the saved position" in run.log
    found = messages(nats, stream)
    assert_once_and_in_order(found)
    assert delivered("users") == 18, "those of the last two rounds are not followed"


@pytest.mark.thorough
def test_one_of_two_servers_is_killed_and_comes_back(
    nats: Nats, stream: str, tmp_path: Path
) -> None:
    with mongo() as one, mongo() as two:
        file = pipeline(tmp_path, nats, stream, one, two)
        with running(tmp_path, file) as run:
            wait_until_ready(run)
            insert(one, "one-0")
            insert(two, "two-0")
            eventually(lambda: names(nats, stream) == {"one-0", "two-0"}, run=run)
            two.kill()
            insert(one, "one-1")
            eventually(lambda: "one-1" in names(nats, stream), run=run)
            eventually(lambda: not run.status()["backends"][1]["connected"], run=run)
            two.start()
            insert(two, "two-1")
            eventually(lambda: "two-1" in names(nats, stream), run=run)
            assert run.stop() == 0
        assert_once_and_in_order(messages(nats, stream))
        assert names(nats, stream) == {"one-0", "two-0", "one-1", "two-1"}


@pytest.mark.thorough  # of test_alone.py, with MongoDB
def test_one_of_two_backends_has_every_trouble_and_the_other_none(
    nats: Nats, stream: str, tmp_path: Path
) -> None:
    """Its network is cut, collections are dropped and renamed, and its history is lost twice: at
    first that ends this backend, then it is told to go on."""
    with mongo() as fine, Secantus(options={"enable-test-commands": True}) as troubled:
        host, port = troubled.url.removeprefix("mongodb://").split("/")[0].split(":")
        proxy = Proxy(host, int(port))
        file = pipeline(tmp_path, nats, stream, fine, troubled)
        backend = file["backends"][1]
        backend["connection"] = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"

        def goes_on(run: Run, round_: int) -> None:
            insert(fine, f"fine-{round_}")
            eventually(lambda: f"fine-{round_}" in names(nats, stream), run=run)

        with running(tmp_path, file) as run:
            wait_until_ready(run)
            insert(troubled, "first")
            eventually(lambda: "first" in names(nats, stream), run=run)
            for round_, weather in enumerate((Weather(refused=True), Weather(lost="all"))):
                proxy.weather = weather
                proxy.reset()
                insert(troubled, f"cut-{round_}")
                goes_on(run, round_)
                eventually(lambda: not run.status()["backends"][1]["connected"], run=run)
                proxy.weather = Weather()
                proxy.reset()
                eventually(lambda n=round_: f"cut-{n}" in names(nats, stream), run=run)
                # A reset may find the connection that was just made.
                eventually(lambda n=round_: run.log.count(BACK) > n, run=run)
                eventually(lambda: run.log.count(BACK) == run.log.count(LOST), run=run)
                assert re.search(rf'"{BACK}" backend=b1 away=\d', run.log)
            with pymongo.MongoClient(troubled.url) as client:
                client.shop.users.rename("people")
                client.shop.people.insert_one({"_id": "renamed"})
                client.shop.people.drop()
            insert(troubled, "dropped")
            eventually(lambda: "dropped" in names(nats, stream), run=run)
            eventually(
                lambda: run.status()["backends"][0]["window_left_seconds"] is not None, run=run
            )
            health = json.loads(run.get("/health")[1])
            (shown,) = health["backends"][0]["partitions"]
            assert shown["window_left_seconds"] <= shown["window_seconds"]
            assert "penstock_window_left_seconds{" in run.get("/metrics")[1]
            with lost_history(troubled, "alwaysOn"):
                insert(troubled, "kept")
                status = eventually(
                    lambda: run.status() if run.status()["backends"][1]["blocked"] else 0, run=run
                )
                assert run.get("/health")[0] == 503
                assert [each["blocked"] == "" for each in status["backends"]] == [True, False]
                goes_on(run, 2)
            assert run.stop() == 0
        backend["on_gap"] = "continue"
        insert(troubled, "meanwhile")
        with running(tmp_path, file) as run:
            eventually(lambda: "meanwhile" in names(nats, stream), run=run)
            with lost_history(troubled, {"times": 2}):
                eventually(lambda: 'event="history lost"' in run.log, run=run)
                insert(troubled, "after")
                eventually(lambda: "after" in names(nats, stream), run=run)
            goes_on(run, 3)
            assert run.stop() == 0
        proxy.close()
    found = messages(nats, stream)
    assert_once_and_in_order(found)
    told = [
        (each.body["operation"], each.body["collection"], each.body["document_id"])
        for each in found
        if each.body["backend"] == "b1"
    ]
    assert told == [
        ("INSERT", "users", "first"),
        ("INSERT", "users", "cut-0"),
        ("INSERT", "users", "cut-1"),
        ("RENAME", "users", None),
        ("INSERT", "people", "renamed"),
        ("DROP", "people", None),
        ("INSERT", "users", "dropped"),
        ("INSERT", "users", "kept"),
        ("INSERT", "users", "meanwhile"),
        ("INSERT", "users", "after"),
    ]


@contextmanager
def lost_history(server: Secantus, mode: Any) -> Iterator[None]:
    """The server says, with a getMore as a real one does, that the resume point is no longer in
    its oplog."""
    data = {"errorCode": 286, "failCommands": ["getMore"]}
    with pymongo.MongoClient(server.url) as client:
        client.admin.command({"configureFailPoint": "failCommand", "mode": mode, "data": data})
        try:
            yield
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def insert(server: Secantus, name: str) -> None:
    with pymongo.MongoClient(server.url) as client:

        def inserted() -> bool:
            try:
                client.shop.users.replace_one({"_id": name}, {}, upsert=True)
            except PyMongoError:
                return False
            return True

        eventually(inserted, seconds=60)


def names(nats: Nats, stream: str) -> set[str]:
    return {message.body["document_id"] for message in messages(nats, stream)}
