"""The iterator on the scripted DynamoDB Streams server: costs, order, pins, expiry, values."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feeds.dynamodb import DynamodbFeed
from penstock.stream import Stream
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard
from tests.stream.taking import ids, some


@pytest.fixture
def server() -> Iterator[StreamsServer]:
    with StreamsServer() as made:
        yield made


def opened(server: StreamsServer, at: Any = "trim_horizon", **more: Any) -> Stream:
    """An iterator that is not held back: `reads` a second are for the service's sake."""
    given = {"reads": 1000, "poll": 0.001, **more}
    return Stream(DynamodbFeed(settings_of(server, **given)), at=at)


def nothing(stream: Stream, polls: int = 3) -> bool:
    return [next(stream) for _ in range(polls)] == [None] * polls


@pytest.mark.slow
def test_values_are_pythons(server: StreamsServer) -> None:
    stream = server.stream("users")
    exact = "12345678901234567890.123456789012345678"
    new = {
        "n": {"N": exact}, "b": {"B": "AP8="}, "ss": {"SS": ["b", "a"]},
        "ns": {"NS": ["1", "2.50"]}, "bs": {"BS": ["AP8="]}, "m": {"l": [1, None, True]},
    }  # fmt: skip
    at = 1_767_225_600.0
    shard = stream.shard()
    number = stream.put(shard, "a", new=new, at=at)
    stream.put(shard, "a", "DELETE", old={"n": 1}, at=at, expired=True)
    record, removed = some(opened(server), 2)
    assert record["new"] == {
        "id": "a", "n": Decimal(exact), "b": b"\x00\xff", "ss": {"a", "b"},
        "ns": {Decimal(1), Decimal("2.5")}, "bs": {b"\x00\xff"},
        "m": {"l": [Decimal(1), None, True]},
    }  # fmt: skip
    assert str(record["new"]["n"]) == exact
    assert (record["key"], record["old"]) == ({"id": "a"}, None)
    meta = record["meta"]
    assert meta["created_at"] == datetime.fromtimestamp(at, UTC)
    assert meta["created_at"].utcoffset() == timedelta(0)
    assert (meta["event"]["type"], meta["event"]["version"]) == ("insert", "1.1")
    assert meta["sequence_number"] == number
    assert removed["meta"]["event"]["type"] == "remove"
    assert removed["meta"]["delta"] == {"expired": True}
    assert removed["old"]["n"] == 1


@pytest.mark.parametrize(
    ("pages", "polls"), [([3, 0, 1, 0, 0, 0, 1], 3), ([0, 0, 0, 1, 0, 0, 0, 1], 4)]
)
def test_an_empty_page_is_followed_by_another_until_five(
    server: StreamsServer, pages: list[int], polls: int
) -> None:
    """Bloop's test vectors: how many polls bring all records."""
    stream = server.stream("users")
    shard = stream.shard()
    for number in range(sum(pages)):
        stream.put(shard, str(number), at=server.now)
    shard.pages = list(pages)
    iterator, done, found = opened(server), 0, 0
    while found < sum(pages):
        before = server.counts["GetRecords"]
        found += next(iterator) is not None
        done += server.counts["GetRecords"] > before
        assert done < 10
    assert done == polls


def test_a_heartbeat_costs_no_call_where_a_sequence_number_is_known(server: StreamsServer) -> None:
    stream = server.stream("users")
    stream.put(stream.shard(), "a", at=server.now)
    iterator = opened(server)
    some(iterator, 1)
    made = dict(server.counts)
    for _ in range(1000):
        iterator.heartbeat()
    assert dict(server.counts) == made


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_the_guarantees_hold_for_any_tree_and_schedule(data: st.DataObject) -> None:
    """In order, parents first, each once; exactly the rest from any token. Shards are listed in
    any order, on several pages, and twice."""
    with StreamsServer() as server:
        server.shuffles, server.repeats_shards = Random(data.draw(st.integers(0, 9))), True
        server.page_of_shards = data.draw(st.integers(2, 100))
        stream = server.stream("users")
        open_shards = [stream.shard() for _ in range(data.draw(st.integers(1, 2)))]
        written: dict[str, list[str]] = {}
        parents: dict[str, str | None] = {}
        seen: list[str] = []
        tokens: list[tuple[Any, list[str]]] = []
        iterator = opened(server)

        def put(shard: Shard) -> None:
            names = written.setdefault(shard.id, [])
            names.append(f"{shard.id}/{len(names)}")
            parents[shard.id] = shard.parent
            stream.put(shard, names[-1], at=server.now - data.draw(st.integers(0, 9)) * 60)

        for _ in range(data.draw(st.integers(0, 25))):
            shard = data.draw(st.sampled_from(open_shards))
            match data.draw(st.sampled_from(["put", "put", "next", "next", "split", "expire",
                                             "beat", "save", "move"])):  # fmt: skip
                case "put":
                    put(shard)
                case "next":
                    seen += ids([each] if (each := next(iterator)) else [])
                case "split" if len(open_shards) < 5:
                    open_shards.remove(shard)
                    open_shards += stream.split(shard, data.draw(st.integers(1, 2)))
                case "expire":
                    server.advance(16 * 60)
                case "beat":
                    iterator.heartbeat()
                case "move" if tokens:
                    token, seen = data.draw(st.sampled_from(tokens))
                    iterator.move_to(token)
                    seen = list(seen)
                case _:
                    tokens.append((json.loads(json.dumps(iterator.token)), list(seen)))
        total = sum(map(len, written.values()))
        seen += ids(some(iterator, total - len(seen)))
        assert nothing(iterator)
        check(seen, written, parents)
        for token, done in tokens:
            rest = ids(some(opened(server, at=token), total - len(done)))
            check(done + rest, written, parents)


def check(seen: list[str], written: dict[str, list[str]], parents: dict[str, str | None]) -> None:
    for shard, names in written.items():
        assert [each for each in seen if each.startswith(f"{shard}/")] == names
        parent = parents[shard]
        if parent in written:
            assert seen.index(names[0]) > seen.index(written[parent][-1])
    assert len(seen) == sum(map(len, written.values()))
