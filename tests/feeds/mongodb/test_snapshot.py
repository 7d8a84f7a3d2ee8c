"""A collection's documents, by ranges of `_id`, after a place of the change stream."""

import datetime
import pickle
from functools import partial
from typing import Any

import bson
import orjson
import pytest
from bson import Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.monitoring import CommandListener, CommandStartedEvent

from penstock.feeds import SnapshotWait, TableSnapshot, TakesSnapshots
from penstock.feeds.mongodb import MongoFeed, snapshot
from penstock.feeds.mongodb.feed import PARTITION
from penstock.feeds.mongodb.snapshot import (
    DocumentPages,
    MongoSnapshot,
    documents,
    id_element,
    id_ranges,
)
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.model.position import Bookmark, Place
from tests.mongo import Shop, follow, pages

OID = ObjectId("6b059a83e48080e81b9ce5af")
# In the order in which MongoDB compares them (docs: "Comparison/Sort Order").
IDS = [
    MinKey(), None, 1, 2.5, Decimal128("7.5"), Int64(2**60), "a", "ab", {"a": 1}, b"xx", OID,
    False, True, datetime.datetime(2020, 1, 1), Timestamp(1, 1), MaxKey(),
]  # fmt: skip


def taken(feed: MongoFeed, shop: Shop, name: str, **more: Any) -> MongoSnapshot:
    known = more.pop("known", {PARTITION: Bookmark(mark={"token": {"_data": "82"}})})
    return feed.snapshot(shop.name, name, known, SnapshotWait(patience=5.0), **more)


def rows(feed: MongoFeed, found: TableSnapshot, **ranges: int) -> list[dict[str, Any]]:
    """Of all ranges: the keys and images, as the decoder of changes has them."""
    settings = {"rows": 1000, "size": 2**20, **ranges}
    decoder = feed.decoder("json")
    with pickle.loads(pickle.dumps(found.source)).opened(lambda: False) as read:
        return [
            {name: row[name] and orjson.loads(row[name]) for name in ("key", "after")}
            for part in found.plan(**settings)
            for page in read(orjson.loads(orjson.dumps(part)), 7, 2**20)
            for batch in decoder.decode(page)
            for row in batch.to_pylist()
        ]


def test_documents_are_typed_as_changes_are(shop: Shop) -> None:
    feed = shop.feed()
    assert isinstance(feed, TakesSnapshots)
    begin = feed.begin()[PARTITION]
    document = {"n": Decimal128("1.10"), "at": datetime.datetime(2026, 1, 2), "big": Int64(2**60),
                "nested": {"raw": b"\0", "list": [1, OID]}, "nan": float("nan")}  # fmt: skip
    shop.db.things.insert_many([{"_id": each, **document} for each in IDS])
    with follow(feed, begin) as following:
        found = [
            {name: row[name] and orjson.loads(row[name]) for name in ("key", "after")}
            for page in pages(following, len(IDS))
            for batch in feed.decoder("json").decode(page)
            for row in batch.to_pylist()
        ]
    with taken(feed, shop, "things") as snapshot:
        assert not snapshot.is_exact
        text = orjson.dumps
        assert sorted(map(text, rows(feed, snapshot))) == sorted(map(text, found))


@pytest.mark.parametrize("cut", range(1, len(IDS) - 1))
def test_ranges_end_between_any_types(shop: Shop, cut: int) -> None:
    """`$gt` would only find values of its bound's own type. (The stand-in's index does not compare
    documents of several fields as its sort does; MongoDB's is one order.)"""
    feed = shop.feed()
    shop.db.things.insert_many([{"_id": each} for each in reversed(IDS)])
    with taken(feed, shop, "things") as found:
        bound = snapshot._text({"_id": IDS[cut]})
        with found.source.opened(lambda: False) as read:
            parts = [
                [row for page in read(part, 100, 2**20)
                 for batch in feed.decoder("json").decode(page) for row in batch.to_pylist()]
                for part in ({"to": bound}, {"after": bound})
            ]  # fmt: skip
    assert [len(part) for part in parts] == [cut, len(IDS) - cut]


def test_a_large_collection_is_cut_by_a_sample(shop: Shop) -> None:
    feed = shop.feed()
    shop.db.things.insert_many([{"_id": n, "v": "x" * (n % 50)} for n in range(5000)])
    with taken(feed, shop, "things") as found:
        plan = found.plan(500, 2**20)
        assert 5 <= len(plan) <= 20
        assert sorted(row["key"]["_id"] for row in rows(feed, found, rows=500)) == [*range(5000)]
        assert len(found.plan(500, 2**10)) > len(plan)
        assert found.plan(10**6, 2**30) == [{}]


def test_ranges_of_a_sample() -> None:
    sample = [(str(n), 100) for n in range(10)]
    assert list(id_ranges(sample, count=1000, rows=400, size=10**9)) == [
        {"to": "4"}, {"after": "4", "to": "8"}, {"after": "8"},
    ]  # fmt: skip
    assert len(list(id_ranges(sample, count=1000, rows=10**9, size=10_000))) == 10
    assert list(id_ranges(sample, count=1000, rows=1000, size=10**9)) == [{}]
    assert list(id_ranges([], count=1000, rows=10, size=10)) == [{}]
    twice = [("1", 1), ("2", 1), ("2", 1), ("3", 1)]  # what a random cursor may give
    assert list(id_ranges(twice, count=4, rows=1, size=10)) == [
        {"to": "2"}, {"after": "2", "to": "3"}, {"after": "3"},
    ]  # fmt: skip


def test_the_place_comes_first_and_reads_wait_for_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes from the position on are those that the rows may lack, and no read is older:
    `afterClusterTime` (mongodb/mongo, src/mongo/db/read_concern_mongod.cpp)."""
    sent: list[CommandStartedEvent] = []

    class Listener(CommandListener):
        def started(self, event: CommandStartedEvent) -> None:
            sent.append(event)

        def succeeded(self, event: object) -> None: ...

        def failed(self, event: object) -> None: ...

    feed = shop.feed()
    begin = feed.begin()[PARTITION]
    shop.db.things.insert_one({"_id": 1})
    listening = partial(MongoClient, event_listeners=[Listener()])
    monkeypatch.setattr("penstock.feeds.mongodb.connect.MongoClient", listening)
    with taken(feed, shop, "things") as found:
        shop.db.things.insert_one({"_id": 2})
        with found.source.opened(lambda: False) as read:
            assert sum(page.count for page in read({}, 10, 100)) == 2
    place = Place.parse(found.position)
    monkeypatch.undo()
    with follow(feed, begin) as following:
        found_places = [
            row["cursor"]
            for page in pages(following, 2)
            for batch in feed.decoder("json").decode(page)
            for row in batch.to_pylist()
        ]
    assert found_places[0] <= place.cursor < found_places[1]
    first, *others = [event for event in sent if event.command_name == "find"]
    assert first.command["readConcern"] == {"level": "linearizable"}
    time = int(found.lsn.replace("/", ""), 16)
    stamp = Timestamp(time >> 32, time & 0xFFFFFFFF)
    assert [event.command["readConcern"] for event in others] == [
        {"level": "majority", "afterClusterTime": stamp}
    ]


def test_what_cannot_be_taken_is_refused(shop: Shop) -> None:
    shop.db.things.insert_one({"_id": 1})
    for images in ("off", "when_available"):
        with (
            pytest.raises(SettingsError, match="no document"),
            taken(shop.feed(full_document=images), shop, "things"),
        ):
            pass
    with (
        pytest.raises(SettingsError, match="there is no collection"),
        taken(shop.feed(), shop, "others"),
    ):
        pass
    with (
        pytest.raises(Unavailable, match="no position is saved yet"),
        taken(shop.feed(), shop, "things", known={}),
    ):
        pass


def test_a_history_of_its_own_has_positions_of_its_own(shop: Shop) -> None:
    shop.db.things.insert_one({"_id": 1})
    feed, old = shop.feed(), {PARTITION: Bookmark(mark={"token": {"_data": "82"}})}
    new = {PARTITION: Bookmark(mark={"token": {"_data": "82"}, "era": "e0001-"})}
    with taken(feed, shop, "things", known=old) as first:
        first.verify(old)
        with pytest.raises(Unavailable, match="another history"):
            first.verify(new)
        with taken(feed, shop, "things", known=new) as second:
            assert second.position.startswith("e0001-")
            assert second.written_since([{}], first.mark) is None
        with taken(feed, shop, "things", known=old) as third:
            assert third.written_since([{}], first.mark) == ()


def test_one_that_is_stopped_ends(shop: Shop) -> None:
    shop.db.things.insert_many([{"_id": n} for n in range(10)])
    with (
        taken(shop.feed(), shop, "things") as found,
        found.source.opened(lambda: True) as read,
        pytest.raises(Unavailable, match="stopped before all ranges were read"),
    ):
        list(read({}, 2, 100))


def test_schemas_name_the_key(shop: Shop) -> None:
    shop.db.things.insert_one({"_id": 1})
    (schema,) = shop.feed().schemas()
    assert (schema.schema, schema.table, schema.name) == (shop.name, "things", ("things",))
    assert schema.is_of_documents
    assert [(one["name"], one["key"]) for one in schema.columns] == [("_id", True)]


@pytest.mark.parametrize("_id", IDS)
def test_the_id_is_found_wherever_it_is(_id: Any) -> None:
    element = bson.encode({"_id": _id})[4:-1]
    assert id_element(bson.encode({"_id": _id, "a": 1})) == element
    assert id_element(RawBSONDocument(bson.encode({"a": 1, "_id": _id})).raw) == element


def test_broken_documents_are_found() -> None:
    with pytest.raises(Malformed, match="no _id"):
        id_element(bson.encode({"a": 1}))
    for broken in (b"\x05\0\0", b"\xff\0\0\0\0", b"\x04\0\0\0\0"):
        with pytest.raises(Malformed, match="broken at byte 5"):
            list(documents(bson.encode({}) + broken))


def test_pages_are_of_at_most_so_many_rows_and_bytes() -> None:
    made = DocumentPages(
        partition=PARTITION, place=Place("00000001/00000001", 0), time=2**32 + 1, database="d",
        collection="c", taken_at=0,
    )  # fmt: skip
    batches = [bson.encode({"_id": n, "v": "x" * 90}) for n in range(10)]
    assert [page.count for page in made.pages(iter(batches), 4, 10**6)] == [4, 4, 2]
    assert [page.count for page in made.pages(iter(batches), 99, 250)] == [2] * 5
    assert [page.count for page in made.pages(iter(batches), 99, 1)] == [1] * 10
