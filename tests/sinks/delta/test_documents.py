"""Documents of MongoDB, DynamoDB and Cosmos DB are in Delta tables as their sources have them."""

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from bson import ObjectId

from tests.mongo import Shop
from tests.sinks.delta.lake import Lake
from tests.sinks.tables.kept import Kept
from tests.waiting import until

KEYS = [1, 2, 3, "1", "2", "x", "a b", 'q"uote', "tab\tand\\", 2.5, "2.5", ObjectId("a" * 24),
        "a" * 24, {"a": 1}, '{"a":1}', True, "true", "[", 2**60, str(2**60)]  # fmt: skip


class Documents(Lake):
    """A lake of one database."""

    def documents(self, name: str) -> list[Any]:
        """In order."""
        return sorted((orjson.loads(text) for (text,) in self.rows(name, ["document"])), key=repr)


class MongoLake:
    """A database, and what it is in a lake."""

    def __init__(self, shop: Shop, folder: Path) -> None:
        self.shop, self.folder = shop, folder
        self.lake = Documents(folder, shop.name)

    def flow(self, tables: Mapping[str, Any], **more: Any) -> Kept:
        given = {"type": "mongodb", "connection": self.shop.url, "database": self.shop.name}
        return Kept({}, self.folder, tables, self.folder.parent / "p.db", **{**given, **more})

    def documents(self, name: str = "users") -> list[Any]:
        """Those of a collection, as JSON has them."""
        return sorted(map(_plain, self.shop.db[name].find()), key=repr)

    def same(self, flow: Kept, name: str = "users") -> None:
        def are_same() -> bool:
            flow.check()
            return self.lake.documents(name) == self.documents(name)

        until(are_same, 60, problem=lambda: (
            self.lake.documents(name)[:5], self.documents(name)[:5], flow.states()
        ))  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    is_long = isinstance(value, int) and abs(value) > 2**53 - 1
    return str(value) if isinstance(value, ObjectId) or is_long else value


def change(collection: Any, seed: int, steps: int) -> Counter[str]:
    """Random writes; how many of each kind the log is to have."""
    chance, done = random.Random(seed), Counter[str]()
    for number in range(steps):
        key = chance.choice(KEYS)
        values = {"n": number, "s": f"line\n{number}\t\\N", "deep": {"a": [1, None, "é"]}}
        is_there = collection.find_one({"_id": key}) is not None
        kind = chance.choices("rud", [4, 3, 2])[0]
        if kind == "r":
            collection.replace_one({"_id": key}, values, upsert=True)
            done["REPLACE" if is_there else "INSERT"] += 1
        elif kind == "u":
            collection.update_one({"_id": key}, {"$set": {"n": number, "u": [number]}})
            done["UPDATE"] += is_there
        else:
            collection.delete_one({"_id": key})
            done["DELETE"] += is_there
    return done


@pytest.fixture
def mongo_lake(shop: Shop, tmp_path: Path) -> MongoLake:
    return MongoLake(shop, tmp_path / "lake")


@pytest.mark.parametrize("sink", [{}, {"buckets": 4}], ids=str)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_table_has_the_documents_of_its_collection(
    mongo_lake: MongoLake, sink: dict[str, Any], seed: int
) -> None:
    users = mongo_lake.shop.db.users
    change(users, seed, 30)
    with mongo_lake.flow({"users": None}, sink=sink) as flow:
        change(users, seed + 10, 40)
        flow.loaded()
        mongo_lake.same(flow)
        change(users, seed + 20, 40)
        mongo_lake.same(flow)
    keys = [key for (key,) in mongo_lake.lake.rows("users", ["_id"])]
    assert len({*keys}) == len(keys) == users.count_documents({})


def test_a_log_has_each_change_of_a_document_once(mongo_lake: MongoLake) -> None:
    users = mongo_lake.shop.db.users
    change(users, 1, 20)
    before = users.count_documents({})
    with mongo_lake.flow({"users": {"type": "log"}}) as flow:
        flow.loaded()
        done = change(users, 2, 60)
        want = {**done, "READ": before}

        def found() -> Mapping[str, int]:
            return Counter(kind for (kind,) in mongo_lake.lake.rows("users", ["_operation"]))

        until(lambda: flow.check() or found() == want, 60, problem=lambda: (found(), want))
    rows = mongo_lake.lake.rows("users", ["_sequence", "_id", "_operation", "document", "_unsent"])
    assert len({row[0] for row in rows if row[2] != "READ"}) == done.total()
    last = {row[1]: row for row in rows}
    now = [orjson.loads(row[3]) for row in last.values() if row[2] != "DELETE"]
    assert sorted(now, key=repr) == mongo_lake.documents()
    assert {(row[3], *row[4]) for row in rows if row[2] == "DELETE"} == {(None, "document")}
