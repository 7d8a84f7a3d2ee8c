"""Cursors of a real server: how long a getMore may take, which server answers, what ends them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pymongo.errors import NetworkTimeout
from pymongo.server_description import ServerDescription

from penstock.feeds.mongodb.connect import OneServer
from penstock.feeds.mongodb.feed import PARTITION
from penstock.feeds.mongodb.stream import Limits, stages
from penstock.leases import Lease
from penstock.leases.mongodb import MongoStore
from penstock.model.errors import Unavailable
from tests.mongodb.cursors import EXPANDED, matches
from tests.mongodb.history import History, inserted
from tests.mongodb.reading import Read, feed_of, settings_of
from tests.mongodb.server import ScriptedMongod

# How long a getMore may take.


@pytest.mark.slow
def test_a_scan_that_takes_longer_than_silence_gets_through(
    server: ScriptedMongod, reading: Read
) -> None:
    """The limit is doubled, where a second try with the first would end as the first did."""
    there = reading(feed_of(server, silence=2))
    server.history.insert(1)
    server.scan = 3
    assert there.read(1) == ["1"]
    assert there.errors
    assert "did not answer in time" in there.errors[0].hint


def test_patience_doubles_up_to_ten_minutes_and_ends_with_an_answer() -> None:
    late = Unavailable("no answer")
    late.__cause__ = NetworkTimeout()
    limits, longest, found = Limits(30.0, 1), Limits(900.0, 1), []
    for _ in range(6):
        limits.failed(late)
        found.append(limits.seconds)
    assert found == [60, 120, 240, 480, 600, 600]
    limits.failed(Unavailable("the connection was closed"))
    assert limits.seconds == 600
    limits.answered()
    assert limits.seconds == 30
    longest.failed(late)
    assert longest.seconds == 900


@pytest.mark.slow
def test_a_hung_server_is_found_by_the_drivers_own_connection(server: ScriptedMongod) -> None:
    """Long before the limit of a getMore, which may be ten minutes by then."""
    url = f"{server.url}&heartbeatFrequencyMS=500"
    feed = feed_of(server, connection=url, connect_timeout=1, silence=60)
    following = feed.follow(PARTITION, feed.begin()[PARTITION])
    following.read(0.05)
    server.answers.clear()
    with pytest.raises(Unavailable) as caught:
        following.read(0.05)
    assert "did not answer in time" not in caught.value.hint, "no reason for more patience"
    server.answers.set()
    following.close()


def test_a_deadline_in_the_url_does_not_end_an_idle_stream(server: ScriptedMongod) -> None:
    feed = feed_of(server, connection=f"{server.url}&timeoutMS=100&socketTimeoutMS=50")
    following = feed.follow(PARTITION, feed.begin()[PARTITION])
    assert not following.read(0.4)
    following.close()


# Errors that nothing is known about.


@pytest.mark.slow
def test_a_getmore_that_succeeds_resets_the_count(server: ScriptedMongod, reading: Read) -> None:
    there = reading(feed_of(server))
    for number in range(4):
        server.fail("getMore", 77_777, times=4)
        server.history.insert(number)
        there.read(number + 1)
    assert len(there.errors) == 16


# Which server answers.


@contextmanager
def members(*kinds: str) -> Iterator[list[ScriptedMongod]]:
    """A replica set with these members, that share one history."""
    history = History()
    servers = [ScriptedMongod(history, kind).__enter__() for kind in kinds]  # type: ignore[arg-type]
    for each in servers:
        each.others = [other for other in servers if other is not each]
    try:
        yield servers
    finally:
        for each in servers:
            each.__exit__()


def test_a_secondary_is_read_without_a_primary(reading: Read) -> None:
    """buildInfo, the questions and killCursors go where the stream goes."""
    with members("secondary", "secondary") as (one, two):
        url = f"{one.url}&readPreference=secondary"
        there = reading(feed_of(one, connection=url))
        one.history.insert(1)
        assert there.read(1) == ["1"]
        there.close()
        assert one.cursors == two.cursors == 0
        asked = [each for each in (one, two) if each.asked("aggregate")]
        assert any(each.asked("killCursors") for each in asked)


@pytest.mark.slow
def test_everything_of_a_following_goes_to_one_secondary(reading: Read) -> None:
    with members("primary", "secondary", "secondary") as servers:
        primary = servers[0]
        url = f"{primary.url}&readPreference=secondary"
        there = reading(feed_of(primary, connection=url))
        there.until(lambda: there.reader.is_connected)
        for each in servers:
            each.commands.clear()
        for number in range(5):
            primary.history.insert(number)
        there.read(5)
        there.close()
        of_cursors = {"getMore", "killCursors"}
        asked = [{name for name, _ in each.commands} & of_cursors for each in servers]
        assert asked[0] == set()
        assert sorted(asked[1:], key=len) == [set(), of_cursors]
        assert not any(each.cursors for each in servers)


def test_the_nearest_server_is_chosen_and_kept() -> None:
    choose = OneServer()
    near = ServerDescription(("near", 1), round_trip_time=0.01)
    far = ServerDescription(("far", 1), round_trip_time=0.2)
    unknown = ServerDescription(("unknown", 1))
    assert choose([]) == []
    assert choose([unknown, far, near]) == [near]
    nearer = ServerDescription(("nearer", 1), round_trip_time=0.001)
    assert choose([nearer, far, near]) == [near], "its cursor is there"
    assert choose([far, nearer]) == [nearer], "it is gone"


def test_leases_are_read_from_the_primary() -> None:
    with members("primary", "secondary") as (primary, secondary):
        row = {"_id": "a", "owner": "me", "continuation": "{}", "revision": 7}
        primary.documents["shop.penstock_lease"] = [row]
        secondary.documents["shop.penstock_lease"] = [{**row, "revision": 6}]
        url = primary.url.replace("/?", "/shop?") + "&readPreference=secondaryPreferred"
        store = MongoStore(url)
        lease = store.get("a")
        assert lease == replace(Lease(name="a", owner="me", continuation="{}"), revision="7")
        assert [each.revision for each in store.list("a")] == ["7"]
        store.close()


# What is never followed.


@pytest.mark.slow
def test_saved_positions_are_never_followed(server: ScriptedMongod, reading: Read) -> None:
    """Each save would be a change, and be saved."""
    for more in ({}, {"database": "*"}, {"exclude_collections": ["other"]}):
        there = reading(feed_of(server, **more))
        for _ in range(3):
            server.history.insert("lease", collection="penstock_lease")
            server.history.insert("user")
        assert there.read(3) == ["user"] * 3
        there.close()
    assert feed_of(server).tables() == [("shop", "users")]


@pytest.mark.parametrize("more", [{}, {"collections": ["users"]}, {"exclude_collections": ["x"]}])
def test_events_of_no_collection_are_followed(server: ScriptedMongod, more: dict[str, str]) -> None:
    pipeline = stages(settings_of(server, **more), None, split=False)
    (wanted,) = [each["$match"] for each in pipeline if "$match" in each]
    assert matches({"operationType": "dropDatabase", "ns": {"db": "shop"}}, wanted)
    assert matches({"operationType": "invalidate"}, wanted)


# Expanded events: src/mongo/db/pipeline/change_stream_event_transform.cpp.


def updated(id_: int, field: str, *paths: str) -> dict[str, Any]:
    """The field's path may mean several places; it is these names."""
    event = {**inserted(id_), "operationType": "update"}
    said = {"updatedFields": {field: 7}, "removedFields": [], "truncatedArrays": []}
    event["updateDescription"] = {**said, "disambiguatedPaths": {field: [*paths]} if paths else {}}
    return event


@pytest.mark.parametrize("version", [(6, 0, 4), (6, 1, 0), (8, 0, 4)])
def test_a_name_with_a_dot_is_told_from_a_path_where_the_server_tells_it(
    server: ScriptedMongod, reading: Read, version: tuple[int, int, int]
) -> None:
    """And the kinds of events that come with it, also of views, are none of ours."""
    server.version = version
    there = reading(feed_of(server))
    server.history.write(updated(1, "a.b", "a.b"), updated(2, "a.b"))
    for kind in EXPANDED:
        server.history.write({"operationType": kind, "ns": {"db": "shop", "coll": "users"}})
    for kind in ("create", "modify", "drop"):
        server.history.write(
            {"operationType": kind, "ns": {"db": "shop", "coll": "v"}, "view": True}
        )
    server.history.write({"operationType": "drop", "ns": {"db": "shop", "coll": "old"}})
    server.history.insert(3)
    there.until(lambda: len(there.rows) >= 4)
    assert [row["operation"] for row in there.rows] == ["UPDATE", "UPDATE", "DROP", "INSERT"]
    deltas = [json.loads(row["delta"]) for row in there.rows[:2]]
    plain = {"updated": {"a.b": 7}, "removed": [], "truncated": []}
    tells = {"paths": {"a.b": ["a.b"]}} if version > (6, 0, 9) else {}
    assert deltas == [plain | tells, plain]


def test_a_position_of_a_server_before_is_resumed_with_expanded_events(
    server: ScriptedMongod, reading: Read
) -> None:
    """Of an event that both have: its token is the same."""
    server.version = (6, 0, 4)
    there = reading(feed_of(server))
    server.history.write({"operationType": "drop", "ns": {"db": "shop", "coll": "old"}})
    there.until(lambda: there.rows)
    bookmark = there.bookmark()
    there.close()
    server.version = (7, 0, 1)
    again = reading(feed_of(server), bookmark)
    server.history.insert(1)
    assert again.read(1) == ["1"]
    assert again.causes == []


# An event that the server splits.


def test_a_split_event_has_its_time_and_is_resumed_after(
    server: ScriptedMongod, reading: Read
) -> None:
    server.split_over = 300
    there = reading(feed_of(server))
    server.history.insert(1)
    time = server.history.write(inserted(2, text="x" * 250), inserted(3))
    server.history.insert(4)
    assert there.read(4) == ["1", "2", "3", "4"]
    row = there.rows[1]
    assert row["cursor"] == f"{time >> 32:08X}/{time & 0xFFFFFFFF:08X}"
    assert row["ordinal"] == 0
    assert there.places == sorted(set(there.places))
    stored = there.reader.bookmark(there.places[1])
    there.close()
    again = reading(feed_of(server), stored)
    assert again.read(2) == ["3", "4"]
    assert [each["event_id"] for each in again.rows] == [
        each["event_id"] for each in there.rows[2:]
    ]


def test_fragments_over_two_replies_are_one_event(server: ScriptedMongod, reading: Read) -> None:
    server.split_over = 300
    there = reading(feed_of(server, page_rows=1))
    server.history.write(inserted(1, text="x" * 250))
    server.history.insert(2)
    assert there.read(2) == ["1", "2"]
