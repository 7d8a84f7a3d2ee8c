"""The scripted mongod says what the real one does, to PyMongo itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
from bson.int64 import Int64
from pymongo.errors import OperationFailure

from tests.mongodb.cursors import matches
from tests.mongodb.history import (
    History,
    high_water_mark,
    inserted,
    is_high_water_mark,
    time_of_token,
    timestamp,
)
from tests.mongodb.server import ScriptedMongod


@pytest.fixture
def server() -> Iterator[ScriptedMongod]:
    with ScriptedMongod(History()) as found:
        yield found


@contextmanager
def database(server: ScriptedMongod) -> Iterator[Any]:
    with pymongo.MongoClient(server.url, serverMonitoringMode="poll") as client:
        yield client.shop


def opened(db: Any, start: dict[str, Any], *stages: dict[str, Any]) -> int:
    pipeline = [{"$changeStream": start}, *stages]
    reply = db.command({"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 0}})
    return int(reply["cursor"]["id"])


def more(db: Any, cursor: int, size: int = 100) -> dict[str, Any]:
    command = {"getMore": Int64(cursor), "collection": "$cmd.aggregate", "batchSize": size}
    found: dict[str, Any] = db.command({**command, "maxTimeMS": 20})["cursor"]
    return found


def ids(found: dict[str, Any]) -> list[Any]:
    return [event["documentKey"]["_id"] for event in found["nextBatch"]]


def test_a_stream_gives_what_is_written_after_it_was_opened(server: ScriptedMongod) -> None:
    server.history.insert(1)
    with database(server) as db:
        cursor = opened(db, {})
        server.history.insert(2, 3)
        server.history.insert(4, database="other")
        found = more(db, cursor)
        assert ids(found) == [2, 3]
        assert is_high_water_mark(found["postBatchResumeToken"]["_data"])
        again = opened(db, {"startAfter": found["nextBatch"][0]["_id"]})
        assert ids(more(db, again)) == [3]


def test_any_token_opens_and_the_first_getmore_refuses_it(server: ScriptedMongod) -> None:
    history = server.history
    token = {"_data": high_water_mark(history.insert(1))}
    history.insert(2)
    history.trim(1)
    with database(server) as db:
        for start, code in (
            ({"startAfter": token}, None),
            ({"startAtOperationTime": timestamp(1)}, 286),
            ({"startAfter": {"_data": high_water_mark(1)}}, 286),
            ({"startAfter": {"_data": high_water_mark(history.oldest)[:-2] + "46AA"}}, 280),
        ):
            cursor = opened(db, start)
            history.insert(3)
            if code is None:
                assert ids(more(db, cursor)) == [2, 3]
                continue
            with pytest.raises(OperationFailure) as refused:
                more(db, cursor)
            assert refused.value.code == code


def test_a_cursor_that_the_oplog_overran_is_136(server: ScriptedMongod) -> None:
    with database(server) as db:
        cursor = opened(db, {})
        more(db, cursor)
        server.history.insert(*range(5))
        server.history.insert(6)
        server.history.trim(1)
        with pytest.raises(OperationFailure) as refused:
            more(db, cursor)
        assert refused.value.code == 136


def test_fragments_repeat_no_field(server: ScriptedMongod) -> None:
    server.split_over = 300
    with database(server) as db:
        cursor = opened(db, {}, {"$changeStreamSplitLargeEvent": {}})
        server.history.write(inserted(1, text="x" * 200), inserted(2))
        parts = more(db, cursor)["nextBatch"]
        first, second, other = parts
        assert [part.get("splitEvent") for part in parts] == [
            {"fragment": 1, "of": 2}, {"fragment": 2, "of": 2}, None,
        ]  # fmt: skip
        assert set(first) & set(second) == {"_id", "splitEvent"}
        assert "clusterTime" in first
        assert set(second) == {"_id", "splitEvent", "fullDocument"}
        assert other["documentKey"] == {"_id": 2}
        assert first["_id"] != second["_id"]
        assert more(db, opened(db, {"startAfter": second["_id"]}))["nextBatch"] == [other]


def test_a_batch_that_ends_inside_an_event_ends_with_its_token(server: ScriptedMongod) -> None:
    server.split_over = 300
    with database(server) as db:
        cursor = opened(db, {}, {"$changeStreamSplitLargeEvent": {}})
        server.history.write(inserted(1, text="x" * 200))
        found = more(db, cursor, size=1)
        assert found["postBatchResumeToken"] == found["nextBatch"][0]["_id"]
        (second,) = more(db, cursor)["nextBatch"]
        assert second["splitEvent"]["fragment"] == 2


def test_a_secondary_serves_what_it_has_applied() -> None:
    history = History()
    with ScriptedMongod(history, "secondary") as server:
        server.applied = history.oldest
        with pymongo.MongoClient(
            server.url, readPreference="secondary", serverMonitoringMode="poll"
        ) as client:
            db = client.shop
            history.insert(1)
            secondary: Any = client.read_preference
            reply = db.command(
                {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}},
                read_preference=secondary,
            )
            assert time_of_token(reply["cursor"]["postBatchResumeToken"]["_data"]) == history.oldest
            assert client.primary is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"a.b": 1}, True),
        ({"a.b": {"$in": [2]}}, False),
        ({"c": None, "a.b": {"$ne": 2}}, True),
        ({"$or": [{"c": 1}, {"a.b": 1}]}, True),
        ({"$nor": [{"c": 1}, {"a.b": 1}]}, False),
    ],
)
def test_filters_are_those_of_the_query_language(query: dict[str, Any], expected: bool) -> None:
    assert matches({"a": {"b": 1}}, query) == expected
