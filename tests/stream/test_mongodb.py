"""The iterator on a MongoDB change stream."""

import time
from datetime import UTC, datetime
from typing import Any

import penstock
from penstock.model.errors import Unavailable
from penstock.stream import Stream
from tests.mongo import Shop
from tests.stream.taking import PATIENCE, ids, saved, some


def opened(shop: Shop, at: Any = "latest", **more: Any) -> Stream:
    return penstock.stream("mongodb", at=at, connection=shop.url, database=shop.name, **more)


def test_records_have_what_mongodb_has(shop: Shop) -> None:
    shop.db.items.insert_one({"_id": 0})
    with opened(shop) as stream:
        shop.db.items.insert_one({"_id": 1, "name": "one", "data": b"\x00\xff"})
        shop.db.items.update_one({"_id": 1}, {"$set": {"name": "two"}})
        shop.db.items.delete_one({"_id": 1})
        inserted, updated, deleted = some(stream, 3, through=Unavailable)
    assert inserted["new"]["name"] == "one"
    assert [each["meta"]["event"]["type"] for each in (inserted, updated, deleted)] == [
        "insert", "modify", "remove",
    ]  # fmt: skip
    assert updated["meta"]["delta"]["updated"] == {"name": "two"}
    assert (deleted["key"], deleted["new"], deleted["old"]) == ({"_id": 1}, None, None)
    assert inserted["meta"]["table"] == "items"
    age = datetime.now(UTC) - inserted["meta"]["created_at"]
    assert -60 < age.total_seconds() < 600


def test_resume_from_every_token_gives_exactly_the_rest(shop: Shop) -> None:
    shop.db.items.insert_one({"_id": 0})
    with opened(shop) as stream:
        tokens = [saved(stream)]
        shop.db.items.insert_many([{"_id": number} for number in range(1, 9)])
        for number in range(1, 9):
            assert ids(some(stream, 1, through=Unavailable)) == [number]
            tokens.append(saved(stream))
        for done, token in enumerate(tokens):
            stream.move_to(token)
            rest = list(range(done + 1, 9))
            assert ids(some(stream, len(rest), through=Unavailable)) == rest
            assert next(stream) is None


def test_latest_is_pinned_when_asked_for_and_a_table_is_a_collection(shop: Shop) -> None:
    shop.db.items.insert_one({"_id": 0})
    with opened(shop, table="items") as stream:
        token = saved(stream)
    shop.db.other.insert_one({"_id": 1})
    shop.db.items.insert_one({"_id": 2})
    with opened(shop, at=token, table="items") as stream:
        assert ids(some(stream, 1, through=Unavailable)) == [2]
        assert next(stream) is None


def test_an_idle_token_advances_and_loses_nothing(shop: Shop) -> None:
    shop.db.items.insert_one({"_id": 0})
    with opened(shop, table="items") as stream:
        first = stream.token
        deadline = time.monotonic() + PATIENCE
        while stream.token == first:
            assert time.monotonic() < deadline
            shop.db.other.insert_one({})
            assert next(stream) is None
        token = saved(stream)
        shop.db.items.insert_one({"_id": 1})
    with opened(shop, at=token, table="items") as stream:
        assert ids(some(stream, 1, through=Unavailable)) == [1]
