"""Another list of collections after a crash: nothing is lost, nothing is doubled, whatever the sink
had stored after the saved position."""

import json
import random
from typing import Any

import pytest

from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.feeds.mongodb.feed import PARTITION
from penstock.feeds.mongodb.filters import Filter, either
from penstock.model.position import Bookmark, Place
from tests.mongo import Shop, follow, pages, rows
from tests.mongodb.history import inserted
from tests.mongodb.reading import Read, feed_of
from tests.mongodb.server import ScriptedMongod

NAMES = ("users", "orders", "logs")
LISTS: dict[str, dict[str, Any]] = {
    "all": {},
    "users": {"collections": ["users"]},
    "users, orders": {"collections": ["users", "orders"]},
    "orders": {"collections": ["orders"]},
    "not users": {"exclude_collections": ["users"]},
}


def settings(**given: Any) -> MongoSettings:
    return MongoSettings.model_validate({"connection": "mongodb://h", "database": "shop", **given})


def write(shop: Shop, seed: int) -> None:
    """Changes of three collections, alone and in transactions, whose changes have one time."""
    chance = random.Random(seed)
    for name in NAMES:
        shop.db.create_collection(name)
    number = 0
    for size in (1, 5, 1, 7, 1, 4):
        with shop.client.start_session() as session, session.start_transaction():
            for _ in range(size):
                name = chance.choice(NAMES)
                shop.db[name].insert_one({"_id": f"{name}-{number}"}, session=session)
                number += 1


def passes(given: dict[str, Any], row: dict[str, Any]) -> bool:
    name = row["collection"]
    if "collections" in given:
        return name in given["collections"]
    return name not in given.get("exclude_collections", ())


def place(row: dict[str, Any]) -> Place:
    return Place(row["cursor"], row["ordinal"])


def stored(row: dict[str, Any]) -> Bookmark:
    """What a sink says of itself whose last change this is."""
    return Bookmark(place(row), json.loads(row["mark"]))


def read(feed: MongoFeed, bookmark: Bookmark, count: int) -> list[dict[str, Any]]:
    with follow(feed, bookmark) as following:
        found = rows(feed, pages(following, count)) if count else []
        assert not following.read(0.05), "more than expected"
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("users, orders", "users"),
        ("users", "users, orders"),
        ("users", "orders"),
        ("all", "orders"),
        ("users", "all"),
        ("all", "not users"),
        ("not users", "users"),
    ],
)
def test_what_is_narrowed_widened_or_exchanged_is_read_once(
    shop: Shop, before: str, after: str, seed: int
) -> None:
    old, new = shop.feed(**LISTS[before]), shop.feed(**LISTS[after])
    begun = old.begin()[PARTITION]
    write(shop, seed)
    every = [row for row in _all(shop, begun) if row["operation"] == "INSERT"]
    was = [row for row in every if passes(LISTS[before], row)]
    sent = read(old, begun, len(was))
    assert [row["event_id"] for row in sent] == [row["event_id"] for row in was]
    for last in random.Random(seed).sample(range(len(sent)), min(3, len(sent))):
        had = {row["event_id"] for row in sent[: last + 1]}
        expected = [
            row["event_id"]
            for row in every
            if passes(LISTS[after], row) and row["event_id"] not in had
        ]
        moved = new.moved(begun, stored(sent[last]))
        assert moved is not None
        assert new.moved(moved, stored(sent[last])) is None, "once"
        again = read(new, moved, len(expected))
        assert [row["event_id"] for row in again] == expected
        # A sink that drops what is not after its last place drops none of it.
        places = [place(sent[last]), *map(place, again)]
        assert places == sorted(set(places))


def _all(shop: Shop, begun: Bookmark) -> list[dict[str, Any]]:
    feed = shop.feed()
    bare = Bookmark(begun.place, {k: v for k, v in (begun.mark or {}).items() if k != "filter"})
    with follow(feed, bare) as following:
        return rows(feed, pages(following, 19))


def test_a_kill_at_any_change_repeats_the_same_places(shop: Shop) -> None:
    """Also between the saved position and the sink's, where what was added is read."""
    old, new = shop.feed(**LISTS["users"]), shop.feed(**LISTS["users, orders"])
    begun = old.begin()[PARTITION]
    write(shop, 5)
    was = [row for row in _all(shop, begun) if passes(LISTS["users"], row)]
    sent = read(old, begun, len(was))
    moved = new.moved(begun, stored(sent[-2]))
    assert moved
    with follow(new, moved) as following:
        expected = [row for row in _all(shop, begun) if passes(LISTS["users, orders"], row)]
        whole = rows(new, pages(following, len(expected) - len(sent) + 1))
        marks = [following.bookmark(place(row)) for row in whole]
    assert len(whole) > 3
    for number, bookmark in enumerate(marks):
        assert bookmark is not None
        found = read(new, bookmark, len(whole) - number - 1)
        assert found == [
            {**row, "captured_at": here["captured_at"]}
            for row, here in zip(whole[number + 1 :], found, strict=True)
        ]
        # And a third list, while the second was not through yet.
        third = shop.feed(**LISTS["orders"])
        once_more = third.moved(moved, stored(whole[number]))
        assert once_more
        left = read(third, once_more, sum(r["collection"] == "orders" for r in found))
        wanted = [row["event_id"] for row in found if row["collection"] == "orders"]
        assert [row["event_id"] for row in left] == wanted


def test_a_sink_that_does_not_say_what_it_has_gets_everything_again(shop: Shop) -> None:
    old, new = shop.feed(**LISTS["users, orders"]), shop.feed(**LISTS["users"])
    begun = old.begin()[PARTITION]
    write(shop, 1)
    wanted = [row["event_id"] for row in _all(shop, begun) if passes(LISTS["users"], row)]
    moved = new.moved(begun, None)
    assert moved
    assert [row["event_id"] for row in read(new, moved, len(wanted))] == wanted
    # In a Spark job of one's own nobody asks: new places come after all that were given before.
    unasked = read(new, begun, len(wanted))
    assert {row["cursor"][:6] for row in unasked} == {"e0001-"}


def test_a_sink_that_has_more_and_no_token_of_it_gets_later_places(shop: Shop) -> None:
    """One that drops what is not after its last place drops nothing that comes now."""
    old, new = shop.feed(**LISTS["users"]), shop.feed(**LISTS["users, orders"])
    begun = old.begin()[PARTITION]
    write(shop, 1)
    every = [row for row in _all(shop, begun) if row["operation"] == "INSERT"]
    sent = read(old, begun, sum(passes(LISTS["users"], row) for row in every))
    last = place(sent[-1])
    for had in (None, {}, {"cluster": "rs0/"}):
        moved = new.moved(begun, Bookmark(last, had))
        assert moved is not None
        wanted = [row["document_id"] for row in every if passes(LISTS["users, orders"], row)]
        again = read(new, moved, len(wanted))
        assert [row["document_id"] for row in again] == wanted
        assert all(place(row) > last for row in again)
    assert new.moved(begun, Bookmark(None, None)).mark.get("era") is None  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("lasts", [0, 1, 2])
def test_a_split_event_is_found_by_the_token_of_its_last_fragment(
    lasts: int, server: ScriptedMongod, reading: Read
) -> None:
    """The sink's last change is one that the server split, or one beside it."""
    server.split_over = 400
    old = feed_of(server, collections=["users"])
    begun = old.begin()[PARTITION]
    large = {"text": "x" * 500, "more": "y" * 300}
    server.history.write(
        inserted("u0"), inserted("o0", "orders", **large), inserted("u1", **large),
        inserted("o1", "orders"), inserted("u2", **large),
    )  # fmt: skip
    server.history.insert("o2", collection="orders")
    there = reading(old, begun)
    assert there.read(3) == ["u0", "u1", "u2"]
    new = feed_of(server, collections=["users", "orders"])
    moved = new.moved(begun, stored(there.rows[lasts]))
    again = reading(new, moved)
    expected = (
        ["o0", "u1", "o1", "u2", "o2"], ["o0", "o1", "u2", "o2"], ["o0", "o1", "o2"],
    )[lasts]  # fmt: skip
    assert again.read(len(expected)) == expected
    assert again.places == sorted(set(again.places))
    assert again.places[0] > stored(there.rows[lasts]).place
    assert not again.causes
    again.step()
    assert server.cursors == 2, "the cursor of the stretch is closed"


@pytest.mark.slow
def test_a_failure_where_the_stretch_ends_repeats_nothing(
    server: ScriptedMongod, reading: Read
) -> None:
    """What is delivered is saved before it, and the stream cannot be opened again at once."""
    old = feed_of(server, collections=["users"])
    begun = old.begin()[PARTITION]
    for name in ("o0", "o1", "o2", "u0", "o3"):
        server.history.insert(name, collection="orders" if name[0] == "o" else "users")
    there = reading(old, begun)
    there.read(1)
    new = feed_of(server, collections=["users", "orders"], page_rows=2)
    again = reading(new, new.moved(begun, stored(there.rows[0])))
    assert again.read(2) == ["o0", "o1"]
    again.reader.acknowledge(again.bookmark())
    server.fail("aggregate", 91)
    assert again.read(4) == ["o0", "o1", "o2", "o3"]
    assert again.places == sorted(set(again.places))
    assert len(again.errors) == 1


@pytest.mark.slow
def test_a_sink_whose_last_change_the_server_does_not_find_is_told_as_a_gap(
    server: ScriptedMongod, reading: Read
) -> None:
    """Its token decides, and not a count: src/mongo/db/pipeline/
    document_source_change_stream_ensure_resume_token_present.cpp."""
    old = feed_of(server, collections=["users"])
    begun = old.begin()[PARTITION]
    server.history.insert("u0")
    time = server.history.insert("u1")
    server.history.insert("u2")
    there = reading(old, begun)
    there.read(3)
    last = stored(there.rows[1])
    unknown = Bookmark(last.place, {"token": {"_data": f"82{time:016X}4600FFFFFFFFFFFF"}})
    new = feed_of(server, collections=["users", "orders"])
    again = reading(new, new.moved(begun, unknown))
    for _ in range(5):
        again.step()
    assert again.rows == []
    assert again.causes == ["token_unknown"]


def test_the_same_list_in_another_order_is_the_same() -> None:
    feed = MongoFeed(settings(collections=["b", "a"]))
    mark = {"token": {"_data": "82"}, "filter": {"collections": ["a", "b"]}, "place": None}
    assert feed.moved(Bookmark(None, mark), None) is None
    assert feed.moved(Bookmark(None, {"token": {"_data": "82"}}), None) is None, "an older mark"


@pytest.mark.parametrize(
    ("given", "event", "passed"),
    [
        ({"collections": ["a"]}, {"operationType": "insert", "ns": {"coll": "a"}}, True),
        ({"collections": ["a"]}, {"operationType": "insert", "ns": {"coll": "b"}}, False),
        ({"collections": ["a"]}, {"operationType": "invalidate"}, True),
        ({"collections": ["a"]}, {"operationType": "dropDatabase", "ns": {"db": "d"}}, True),
        (
            {"collections": ["a"]},
            {"operationType": "rename", "ns": {"coll": "b"}, "to": {"coll": "a"}},
            True,
        ),
        (
            {"exclude_collections": ["a"]},
            {"operationType": "rename", "ns": {"coll": "a"}, "to": {"coll": "b"}},
            True,
        ),
        (
            {"exclude_collections": ["a", "b"]},
            {"operationType": "rename", "ns": {"coll": "a"}, "to": {"coll": "b"}},
            False,
        ),
        ({"exclude_collections": ["a"]}, {"operationType": "dropDatabase", "ns": {}}, True),
        (
            {"database": "*", "collections": ["d.a"]},
            {"operationType": "dropDatabase", "ns": {"db": "e"}},
            False,
        ),
        (
            {"database": "*", "collections": ["d.a"]},
            {"operationType": "update", "ns": {"db": "d", "coll": "a"}},
            True,
        ),
    ],
)
def test_an_event_passes_here_as_it_passes_the_server(
    given: dict[str, Any], event: dict[str, Any], passed: bool
) -> None:
    assert Filter.of(settings(**given)).passes(event) is passed


def test_everything_or_something_is_everything() -> None:
    some = Filter.of(settings(collections=["a"]))
    assert either([some, Filter.of(settings())]) == {}
    assert either([some]) == some.match()
    assert either([some, some]) == {"$or": [some.match(), some.match()]}
