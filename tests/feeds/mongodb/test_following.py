"""A change stream of a real server: what is read, from where, and what is kept of it."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psutil
import pymongo
import pytest

from penstock.feeds.mongodb import MongoFeed
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.errors import PenstockError, SettingsError
from penstock.model.position import START, Bookmark, PartitionId, Place
from tests.mongo import REAL, Shop, follow, mongodb, pages, rows, shop_on
from tests.mongodb.reading import Read, feed_of
from tests.mongodb.server import ScriptedMongod
from tests.waiting import until


def begun(feed: MongoFeed, at: Any = None) -> Bookmark:
    return feed.begin(at)[PARTITION]


def read(feed: MongoFeed, bookmark: Bookmark, count: int) -> list[dict[str, Any]]:
    with follow(feed, bookmark) as following:
        return rows(feed, pages(following, count))


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [row["document_id"] for row in found]


def test_it_begins_at_a_time(server: ScriptedMongod, reading: Read) -> None:
    server.history.insert("before")
    server.history.advance(5)
    at = datetime.fromtimestamp(server.history.seconds, UTC)
    server.history.insert("after")
    assert reading(feed_of(server, start=at.isoformat())).read(1) == ["after"]


def test_it_begins_at_a_token(shop: Shop) -> None:
    feed = shop.feed()
    bookmark = begun(feed)
    shop.db.users.insert_many([{"_id": number} for number in range(3)])
    mark = json.loads(read(feed, bookmark, 3)[1]["mark"])
    again = shop.feed(start=mark["token"]["_data"])
    assert ids(read(again, begun(again), 1)) == ["2"]


@pytest.mark.parametrize(
    ("partition", "bookmark", "said"),
    [
        (PARTITION, START, "resume token"),
        (PARTITION, Bookmark(Place("00000001/00000001", 0), {}), "resume token"),
        (PartitionId("other"), Bookmark(mark={"time": [1, 0]}), "no partition"),
    ],
)
def test_a_place_alone_and_another_partition_are_refused(
    shop: Shop, partition: PartitionId, bookmark: Bookmark, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        shop.feed().follow(partition, bookmark)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"collections": ["new"]}, [("RENAME", "old"), ("INSERT", "new")]),
        (
            {"exclude_collections": ["old", "log", "gone"]},
            [("RENAME", "old"), ("RENAME", "fine"), ("INSERT", "new")],
        ),
    ],
)
def test_a_renamed_collection_is_told_under_either_name(
    shop: Shop, settings: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    feed = shop.feed(**settings)
    shop.db.old.insert_one({"_id": 1})
    shop.db.fine.insert_one({"_id": 1})
    bookmark = begun(feed)
    shop.db.old.rename("new")
    shop.db.log.insert_one({"_id": 2})
    shop.db.fine.rename("old")
    shop.db.old.rename("gone")
    shop.db.new.insert_one({"_id": 3})
    found = [(row["operation"], row["collection"]) for row in read(feed, bookmark, len(expected))]
    assert found == expected


def test_the_clock_and_the_token_of_an_idle_stream_move(shop: Shop) -> None:
    """Also with events that the filter leaves out."""
    feed = shop.feed(collections=["users"])
    with follow(feed, begun(feed)) as following:
        following.read(0.1)
        status = following.status()
        shop.db.other.insert_many([{} for _ in range(20)])

        def moved() -> bool:
            assert not following.read(0.1)
            return bool(following.status()["token"] != status["token"])

        until(moved)
        assert following.status()["clock"] >= status["clock"] > 1_700_000_000


def test_all_databases_are_one_stream(mongo: str) -> None:
    with shop_on(mongo) as one, shop_on(mongo) as two:
        names = [f"{one.name}.users", f"{two.name}.users"]
        feed = MongoFeed(one.settings(database="*", collections=names))
        bookmark = begun(feed)
        for shop in (one, two):
            shop.db.other.insert_one({})
            shop.db.users.insert_one({"_id": shop.name})
        found = read(feed, bookmark, 2)
        assert [row["namespace"] for row in found] == ids(found) == [one.name, two.name]
        assert feed.tables() == sorted((shop.name, "users") for shop in (one, two))


def test_a_dropped_database_ends_nothing(shop: Shop) -> None:
    """The server invalidates the stream, which goes on after that."""
    feed = shop.feed()
    bookmark = begun(feed)
    with follow(feed, bookmark) as following:
        shop.db.users.insert_one({"_id": 1})
        shop.client.drop_database(shop.name)
        found = pages(following, 4)
        shop.db.users.insert_one({"_id": 2})
        found += pages(following, 1)
        assert following.status()["details"]["invalidations"] == 1
    read_once = rows(feed, found)
    assert [row["operation"] for row in read_once] == [
        "INSERT", "DROP", "DROP_DATABASE", "INVALIDATE", "INSERT",
    ]  # fmt: skip
    # A start after any of them goes on with the next.
    for number, row in enumerate(read_once[:-1], start=1):
        if row["operation"] == "DROP_DATABASE" and not REAL:
            continue  # the stand-in then leaves the invalidation out
        place = Place(row["cursor"], row["ordinal"])
        rest = read(feed, Bookmark(place, json.loads(row["mark"])), 5 - number)
        assert [each["event_id"] for each in rest] == [
            each["event_id"] for each in read_once[number:]
        ]


def test_a_place_that_was_saved_with_an_older_mark_gives_exactly_the_rest(shop: Shop) -> None:
    """While the stream was not connected: its token comes before changes that are stored."""
    feed = shop.feed()
    bookmark = begun(feed)
    for name in ("users", "orders"):
        shop.db.create_collection(name)
    with shop.client.start_session() as session, session.start_transaction():
        for number in range(4):
            shop.db.users.insert_one({"_id": number}, session=session)
    shop.db.orders.insert_many([{"_id": number} for number in range(4, 8)])
    with follow(feed, bookmark) as following:
        found = pages(following, 8)
        read_once = rows(feed, found)
        marks = [bookmark.mark, *(json.loads(row["mark"]) for row in read_once)]
        places = [Place(row["cursor"], row["ordinal"]) for row in read_once]
        known = [following.bookmark(place) for place in places]
    kept = [bookmark, *(each for each in known if each is not None)]
    assert len(kept) == len(marks) == 9
    for stored, place in enumerate(places[:-1], start=1):
        for older in kept[:stored]:
            rest = read(feed, Bookmark(place, older.mark), 8 - stored)
            assert [row["event_id"] for row in rest] == [
                row["event_id"] for row in read_once[stored:]
            ]
            assert [Place(row["cursor"], row["ordinal"]) for row in rest] == places[stored:]


def test_pre_images_come_where_they_are_kept(shop: Shop) -> None:
    feed = shop.feed(before="when_available")
    shop.db.create_collection("kept", changeStreamPreAndPostImages={"enabled": True})
    shop.db.create_collection("other")
    bookmark = begun(feed)
    for name in ("kept", "other"):
        shop.db[name].insert_one({"_id": 1, "a": 1})
        shop.db[name].update_one({"_id": 1}, {"$set": {"a": 2}})
        shop.db[name].delete_one({"_id": 1})
    found = read(feed, bookmark, 6)
    assert [row["before"] for row in found] == [
        None, '{"_id":1,"a":1}', '{"_id":1,"a":2}', None, None, None,
    ]  # fmt: skip


def test_an_image_that_is_required_and_not_there_is_an_error(shop: Shop) -> None:
    feed = shop.feed(before="required")
    shop.db.users.insert_one({"_id": 1, "secret": "x"})
    bookmark = begun(feed)
    shop.db.users.update_one({"_id": 1}, {"$set": {"secret": "y"}})
    with pytest.raises(SettingsError, match="not there") as caught:
        read(feed, bookmark, 1)
    assert "changeStreamPreAndPostImages" in caught.value.hint


def test_an_event_of_more_than_16_mb_is_one_change(shop: Shop) -> None:
    big = "x" * (9 * 2**20)
    shop.db.create_collection("users", changeStreamPreAndPostImages={"enabled": True})
    feed = shop.feed(before="when_available")
    shop.db.users.insert_one({"_id": 1, "a": big})
    bookmark = begun(feed)
    shop.db.users.replace_one({"_id": 1}, {"b": big})
    shop.db.users.insert_one({"_id": 2})
    replaced, after = read(feed, bookmark, 2)
    assert len(replaced["before"]) > 9 * 2**20 < len(replaced["after"])
    assert after["document_id"] == "2"
    place = Place(replaced["cursor"], replaced["ordinal"])
    assert ids(read(feed, Bookmark(place, json.loads(replaced["mark"])), 1)) == ["2"]


def test_replies_that_are_too_large_for_the_driver_are_asked_for_in_parts(shop: Shop) -> None:
    """The stand-in fills replies past any limit; a real server ends them at 16 MB."""
    feed = shop.feed()
    bookmark = begun(feed)
    big = "x" * (10 * 2**20)
    for number in range(6):
        shop.db.users.insert_one({"_id": number, "a": big})
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 120
    while len(found) < 6:
        assert time.monotonic() < deadline
        try:
            with follow(feed, bookmark) as following:
                while len(found) < 6:
                    new = following.read(0.5)
                    found += rows(feed, list(new))
                    bookmark = (following.bookmark(new[-1].last) if new else None) or bookmark
        except PenstockError as error:
            assert "larger" in error.message or "length" in error.message.lower()
    assert ids(found) == list("012345")


def test_there_is_one_cursor_and_one_connection(mongo: str) -> None:
    """As the server counts cursors, and this process its sockets; the driver's watch on the server
    is the other connection."""
    if REAL:
        pytest.skip("others use a real server, too")
    with mongodb() as url, shop_on(url) as shop:
        port = int(url.rpartition(":")[2])
        feed = shop.feed()

        def cursors() -> int:
            status = shop.client.admin.command("serverStatus")
            return int(status["metrics"]["cursor"]["open"]["total"])

        def connections() -> int:
            return sum(
                each.raddr[1:] == (port,) and each.status == "ESTABLISHED"
                for each in psutil.Process().net_connections("tcp")
            )

        own = 2  # of the test's client: one, and its watch
        before = cursors()
        bookmark = begun(feed)
        until(lambda: (cursors(), connections()) == (before, own))
        with follow(feed, bookmark) as following:
            for number in range(50):
                shop.db.users.insert_one({"_id": number})
                following.read(0.01)
            until(lambda: (cursors() - before, connections() - own) == (1, 2))
        assert until(lambda: cursors() == before)
        assert until(lambda: connections() == own)


@pytest.fixture
def roles() -> Iterator[tuple[str, Shop]]:
    """A server with logins, and the URL of a user without any role."""
    if REAL:
        pytest.skip("a real server has its own users")
    with mongodb() as url, pymongo.MongoClient(url) as client:
        client.admin.command("createUser", "reader", pwd="p", roles=[])
        with shop_on(url) as shop:
            yield url.replace("mongodb://", "mongodb://reader:wrong@"), shop


def test_a_wrong_password_is_named_and_not_shown(roles: tuple[str, Shop]) -> None:
    url, shop = roles
    with pytest.raises(PenstockError) as caught:
        MongoFeed(shop.settings(connection=url)).begin()
    assert isinstance(caught.value, SettingsError)
    assert "wrong" not in str(caught.value)
    assert "password" in caught.value.hint
