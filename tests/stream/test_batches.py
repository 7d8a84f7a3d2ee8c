"""Batches and tables of the iterator: limits, order, positions, Ctrl-C, errors."""

import json
import threading
import time
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.stream import Stream
from tests.servers import Database
from tests.stream.scripted import ScriptedFeed, tree
from tests.stream.taking import some


def memory(at: Any = "trim_horizon", **more: Any) -> Stream:
    return penstock.stream("memory", at=at, **{"changes": 1000, "partitions": 2, **more})


def of(found: pa.Table | pa.RecordBatch) -> list[str]:
    return list(found.column("event_id").to_pylist())


def records(stream: Stream, count: int) -> list[str]:
    return [record["meta"]["event"]["id"] for record in islice(stream.follow(), count)]


EVERYTHING = records(memory(), 2000)


def test_batches_have_the_schema_the_order_of_iterating_and_every_change_once() -> None:
    stream = memory()
    batches = list(stream.batches(rows=len(EVERYTHING)))
    assert list(stream.batches(seconds=0)) == []
    assert all(each.schema.equals(penstock.schema(), check_metadata=True) for each in batches)
    assert [each for batch in batches for each in of(batch)] == EVERYTHING
    rows = batches[0].to_pylist()
    assert json.loads(rows[0]["after"]) == {"id": 0, "number": 0, "text": "change 0"}
    assert {row["backend"] for row in rows} == {"memory"}


@pytest.mark.slow
def test_rows_end_it_and_the_next_change_comes_next_whoever_asks() -> None:
    stream, found = memory(), list[str]()
    while len(found) < 1700:
        found += records(stream, 7)
        found += of(stream.table(rows=13, seconds=None))
        for batch in stream.batches(rows=205):
            found += of(batch)
        found += of(stream.table(rows=1))
    assert found == EVERYTHING[: len(found)]


@pytest.mark.slow
def test_a_token_is_after_the_batch_that_was_yielded() -> None:
    stream, found = memory(page=7), list[str]()
    for size in (1, 3, 20, 33, 500):
        for batch in stream.batches(rows=size):
            found += of(batch)
            assert (
                of(memory(json.loads(json.dumps(stream.token))).table(rows=50, seconds=60))
                == (EVERYTHING[len(found) : len(found) + 50])
            )
            if len(found) > 400:
                break  # what was not yielded comes next
    rest = EVERYTHING[len(found) :]
    assert of(stream.table(rows=len(rest), seconds=60)) == rest
    assert stream.table(seconds=0).num_rows == 0


def test_seconds_end_it_where_nothing_comes() -> None:
    stream = memory("latest")
    began = time.monotonic()
    table = stream.table(rows=10, seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 60
    assert (table.num_rows, table.schema) == (0, penstock.schema())
    assert memory().table(rows=5, seconds=0).num_rows == 5


def test_stop_ends_it() -> None:
    stream = memory("latest")
    threading.Timer(0.1, stream.stop).start()
    assert stream.table(seconds=None).num_rows == 0
    assert memory().table(rows=3).num_rows == 3


@pytest.mark.parametrize(
    ("call", "arguments"),
    [("table", {"rows": None, "seconds": None}), ("table", {"rows": 0}), ("batches", {"rows": -1})],
)
def test_a_limit_that_is_none_is_refused(call: str, arguments: dict[str, Any]) -> None:
    stream = memory()
    with pytest.raises(SettingsError, match="rows"):
        list(getattr(stream, call)(**arguments))
    assert records(stream, 3) == EVERYTHING[:3]


def scripted(pages: list[list[int]]) -> tuple[ScriptedFeed, Stream]:
    feed = ScriptedFeed(tree("A"), {"A": pages})
    return feed, Stream(feed, at="trim_horizon")


def places(found: pa.Table | pa.RecordBatch) -> list[str]:
    return list(found.column("cursor").to_pylist())


def test_ctrl_c_in_a_table_leaves_the_stream_where_it_was() -> None:
    feed, stream = scripted([[1], [2, 3], [4]])
    assert [stream.table(rows=1).num_rows for _ in range(2)] == [1, 1]
    token = stream.token
    feed.interrupted.add("A")
    with pytest.raises(KeyboardInterrupt):
        stream.table(rows=2)  # has the third, and reads on
    assert stream.token == token
    assert places(stream.table(rows=2)) == ["A-000002", "A-000003"]


def test_a_source_that_is_unavailable_all_the_time_is_an_error_and_loses_nothing() -> None:
    feed, stream = scripted([[1], [2]])
    feed.failing.add("A")
    with pytest.raises(Unavailable):
        stream.table(seconds=0)
    assert stream.table(rows=1).num_rows == 1
    feed.failing.add("A")
    assert stream.table(rows=1).num_rows == 1  # tried again within its five seconds


def test_a_page_that_cannot_be_decoded_is_an_error_and_comes_again() -> None:
    feed, stream = scripted([[1], [2]])
    batches = stream.batches(rows=2)
    assert places(next(batches)) == ["A-000000"]
    feed.broken.add("A")
    with pytest.raises(Malformed):
        next(batches)
    feed.broken.clear()
    assert places(stream.table(rows=1)) == ["A-000001"]


def test_records_and_tables_take_turns_on_postgresql(database: Database) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    settings = {"connection": database.url, "slot": f"n_{abs(hash(database.url))}",
                "publication": "p", "create_publication": True, "page_rows": 3}  # fmt: skip
    with penstock.stream("postgres", at="latest", **settings) as stream:
        database.execute("INSERT INTO items SELECT generate_series(1, 20)")
        found = [record["new"]["id"] for record in some(stream, 2, through=Unavailable)]
        for rows in (4, 1, 6):
            table = stream.table(rows=rows, seconds=60)
            found += [json.loads(row)["id"] for row in table.column("after").to_pylist()]
            found += [record["new"]["id"] for record in some(stream, 1, through=Unavailable)]
        token = stream.token
    assert found == list(range(1, 17))
    with penstock.stream("postgres", at=token, **settings) as stream:
        table = stream.table(rows=4, seconds=60)
        assert [json.loads(row)["id"] for row in table.column("after").to_pylist()] == [
            17, 18, 19, 20,
        ]  # fmt: skip
