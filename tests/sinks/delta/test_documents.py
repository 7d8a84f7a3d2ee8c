"""Documents of MongoDB, DynamoDB and Cosmos DB are in Delta tables as their sources have them."""

import random
import shutil
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from bson import Decimal128, ObjectId

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


SCHEMA = (
    "_id BIGINT, name STRING, at TIMESTAMP, price DECIMAL(12,2), tags ARRAY<STRING>,"
    " address STRUCT<city: STRING, zip: INT>, _rest MAP<STRING, STRING>, _corrupt STRING"
)


def test_a_schema_makes_columns_of_documents(mongo_lake: MongoLake) -> None:
    users = mongo_lake.shop.db.users
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    users.insert_one({"_id": 1, "name": "ann", "at": at, "tags": ["a"], "more": {"x": 1}})
    table = {"users": {"schema": SCHEMA}}
    with mongo_lake.flow(table, sink={"on_misfit": "null"}) as flow:
        flow.loaded()
        users.insert_one({"_id": 2, "price": Decimal128("7.5"), "address": {"city": "Ulm"}})
        users.insert_one({"_id": 3, "name": "gone"})
        users.delete_one({"_id": 3})
        users.update_one({"_id": 1}, {"$set": {"address": {"zip": "none"}}})
        want = [
            (1, "ann", at, None, ["a"], {"city": None, "zip": None}),
            (2, None, None, Decimal("7.50"), None, {"city": "Ulm", "zip": None}),
        ]
        names = ["_id", "name", "at", "price", "tags", "address"]
        until(lambda: flow.check() or mongo_lake.lake.rows("users", names) == want, 60,
              problem=lambda: mongo_lake.lake.rows("users"))  # fmt: skip
    (one, two) = mongo_lake.lake.rows("users", ["_id", "_rest", "_corrupt"])
    assert dict(one[1]) == {"more": '{"x":1}', "address": '{"zip":"none"}'}
    assert orjson.loads(one[2])["address"] == {"zip": "none"}
    assert two[1:] == ([], None)
    assert mongo_lake.lake.by_duckdb("users", ["_id"]) == [(1,), (2,)]


def test_a_log_has_the_columns_of_a_schema(mongo_lake: MongoLake) -> None:
    users, table = mongo_lake.shop.db.users, {"schema": "n INT", "type": "log"}
    with mongo_lake.flow({"users": table}, initial=False) as flow:
        users.insert_one({"_id": "a", "n": 1})
        users.update_one({"_id": "a"}, {"$set": {"n": 2}})
        users.delete_one({"_id": "a"})
        until(lambda: flow.check() or len(mongo_lake.lake.rows("users")) == 3, 60)
    found = mongo_lake.lake.rows("users", ["_sequence", "_operation", "_id", "n", "_unsent"])
    assert [row[1:2] + row[2:3] for row in found] == [
        ("INSERT", "a"), ("UPDATE", "a"), ("DELETE", "a"),
    ]  # fmt: skip
    assert found[0][3:] == (1, [])
    assert found[2][3:] == (None, ["n"])


@pytest.mark.parametrize("at_first", [True, False])
def test_what_does_not_fit_is_a_letter_unless_it_may_be_null(
    mongo_lake: MongoLake, at_first: bool
) -> None:
    users, wrong = mongo_lake.shop.db.users, [{"_id": 1, "n": "x"}, {"_id": "x", "n": 1}]
    users.insert_many([*wrong, {"_id": 3, "n": 3}][0 if at_first else 2 :])
    table = {"schema": "_id INT, n INT"}
    with mongo_lake.flow({"users": table}, on_error="dead-letter") as flow:
        flow.loaded()
        if not at_first:
            users.insert_many([*wrong])
        users.insert_one({"_id": 4, "n": 4})
        until(lambda: flow.check() or mongo_lake.lake.rows("users") == [(3, 3), (4, 4)], 60,
              problem=lambda: mongo_lake.lake.rows("users"))  # fmt: skip
        letters = flow.letters()
    assert ["declares as int32" in each["error"] for each in letters] == [True, True]


def test_a_schema_may_get_columns_and_no_other_types(mongo_lake: MongoLake) -> None:
    users, lake = mongo_lake.shop.db.users, mongo_lake.lake
    users.insert_one({"_id": 1, "n": 1, "m": "a"})
    with mongo_lake.flow({"users": {"schema": "n INT"}}) as flow:
        flow.loaded()
        assert lake.rows("users") == [("1", 1)]
    with mongo_lake.flow({"users": {"schema": "n INT, m STRING"}}) as flow:
        users.insert_one({"_id": 2, "n": 2, "m": "b"})
        until(lambda: flow.check() or lake.rows("users") == [("1", 1, None), ("2", 2, "b")], 60)
    with mongo_lake.flow({"users": {"schema": "n STRING"}}) as flow:
        users.insert_one({"_id": 3, "n": 3})
        until(lambda: flow.check() or "waiting" in dict(flow.states()), 60)
        assert "not the types that `schema` declares: n" in flow.states()[0][1]
        assert "delta.schema-changed" in {each.code for each in flow.findings()}


def test_a_collection_that_is_dropped_is_empty_and_one_that_is_renamed_is_a_letter(
    mongo_lake: MongoLake,
) -> None:
    db = mongo_lake.shop.db
    db.users.insert_many([{"_id": 1}, {"_id": 2}])
    with mongo_lake.flow({"users": None}, on_error="dead-letter") as flow:
        flow.loaded()
        mongo_lake.same(flow)
        db.users.drop()
        mongo_lake.same(flow)
        db.users.insert_one({"_id": 3})
        mongo_lake.same(flow)
        db.users.rename("people")
        until(lambda: flow.check() or flow.letters(), 60)
        assert "was renamed" in flow.letters()[0]["error"]


@pytest.mark.parametrize("saves", [True, False])
def test_a_change_of_the_map_repeats_nothing(mongo_lake: MongoLake, saves: bool) -> None:
    db, log = mongo_lake.shop.db, {"type": "log"}
    done, _ = Counter[str](), [each.insert_one({}) for each in (db.users, db.orders)]

    def is_there() -> bool:
        rows = mongo_lake.lake.rows("users", ["_operation"])
        return Counter(kind for (kind,) in rows if kind != "READ") == done

    with mongo_lake.flow({"users": log}, saves=saves) as flow:
        flow.loaded()
        done += change(db.users, 1, 30)
        until(lambda: flow.check() or is_there(), 60)
        until(lambda: flow.is_saved, 30)
    with mongo_lake.flow({"users": log, "orders": log}) as flow:
        flow.loaded()
        db.orders.insert_one({})
        done += change(db.users, 2, 30)
        until(lambda: flow.check() or is_there(), 60)
        until(lambda: len(mongo_lake.lake.rows("orders")) == 2, 60)
    assert is_there()


def test_a_lake_that_went_back_gets_again_what_it_lacks(
    mongo_lake: MongoLake, tmp_path: Path
) -> None:
    users, log = mongo_lake.shop.db.users, {"type": "log"}
    users.insert_one({})
    with mongo_lake.flow({"users": log}) as flow:
        flow.loaded()
        done = change(users, 1, 20) + Counter(READ=1)
        until(lambda: flow.check() or len(mongo_lake.lake.rows("users")) == done.total(), 60)
        until(lambda: flow.is_saved, 30)
    shutil.copytree(mongo_lake.folder, tmp_path / "then")
    with mongo_lake.flow({"users": log}) as flow:
        done += change(users, 2, 20)
        until(lambda: flow.check() or len(mongo_lake.lake.rows("users")) == done.total(), 60)
        until(lambda: flow.is_saved, 30)
    shutil.rmtree(mongo_lake.folder)
    (tmp_path / "then").rename(mongo_lake.folder)
    with mongo_lake.flow({"users": log}) as flow:
        until(lambda: flow.check() or len(mongo_lake.lake.rows("users")) == done.total(), 60,
              problem=lambda: len(mongo_lake.lake.rows("users")))  # fmt: skip
    found = Counter(kind for (kind,) in mongo_lake.lake.rows("users", ["_operation"]))
    assert found == done
