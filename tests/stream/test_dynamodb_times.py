"""Times as positions of the iterator on the scripted DynamoDB Streams server: where the service
takes AT_TIMESTAMP, and where the iterator scans.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.feeds.dynamodb import DynamodbFeed
from penstock.model.errors import (
    InvalidPosition,
    PositionLost,
    ShardIteratorExpired,
)
from penstock.stream import Stream
from tests.dynamodb import streams
from tests.dynamodb.server import StreamsServer, settings_of
from tests.stream.taking import ids, saved
from tests.stream.taking import some as taken


@pytest.fixture(params=[True, False], ids=["AT_TIMESTAMP", "scan"])
def server(request: pytest.FixtureRequest) -> Iterator[StreamsServer]:
    with StreamsServer() as made:
        made.at_timestamp = request.param
        yield made


def opened(server: StreamsServer, at: Any, **more: Any) -> Stream:
    given = {"reads": 1000, "poll": 0.001, **more}
    return Stream(DynamodbFeed(settings_of(server, **given)), at=at)


def some(stream: Stream, count: int) -> list[str]:
    """The ids of the next `count` records; there are no more of them now."""
    found = ids(taken(stream, count))
    assert [next(stream) for _ in range(3)] == [None] * 3
    return found


def shard_of(token: Any) -> str:
    """The only one."""
    (found,) = (name for name in token["partitions"] if not name.endswith("/start"))
    return str(found)


def minutes(server: StreamsServer, count: int) -> tuple[streams.Stream, streams.Shard, float]:
    """A shard with records `0`, `1`, ... a minute apart, and when the first was created. The times
    are no whole minutes: those count as cut."""
    stream = server.stream("users")
    shard = stream.shard()
    start = float(int(server.now) // 60 * 60 - 7200) + 7
    for number in range(count):
        stream.put(shard, str(number), at=start + 60 * number)
    return stream, shard, start


class Moment:
    """A time as other libraries have it: only `timestamp` counts."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def timestamp(self) -> float:
        return self._seconds


def zoned(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [zoned, Moment])
def test_a_time_begins_at_it_and_its_token_resumes_there(server: StreamsServer, kind: Any) -> None:
    _, _, start = minutes(server, 20)
    stream = opened(server, kind(start + 10 * 60))
    token = saved(stream)
    wanted = [str(number) for number in range(10, 20)]
    # A scan passes over what is surely older: services cut times to the second.
    assert some(stream, 10) == wanted
    assert some(opened(server, token), 10) == wanted


@pytest.mark.slow
def test_a_move_to_a_time_goes_on_at_it_and_its_token_resumes_there(server: StreamsServer) -> None:
    _, _, start = minutes(server, 20)
    stream = opened(server, "trim_horizon")
    next(stream)
    stream.move_to(zoned(start + 17 * 60))
    token = saved(stream)
    assert some(stream, 3) == ["17", "18", "19"]
    stream.move_to(token)
    assert some(stream, 3) == ["17", "18", "19"]
    stream.move_to(Moment(start + 18 * 60))
    assert some(stream, 2) == ["18", "19"]


@pytest.mark.slow
def test_a_time_reaches_through_shards_that_are_older(server: StreamsServer) -> None:
    stream, shard, start = minutes(server, 5)
    left, right = stream.split(shard)
    for number, each in enumerate((left, right, left, right)):
        stream.put(each, f"c{number}", at=start + 600 + 60 * number)
    position = zoned(start + 600 + 60)
    opened_at = opened(server, position)
    token = saved(opened_at)
    assert some(opened_at, 3) == ["c1", "c2", "c3"]
    assert some(opened(server, token), 3) == ["c1", "c2", "c3"]


def test_a_time_before_the_horizon_is_the_horizon(server: StreamsServer) -> None:
    minutes(server, 2)
    assert some(opened(server, zoned(server.now - 40 * 3600)), 2) == ["0", "1"]


def test_a_scan_stops_early_and_asks_for_at_timestamp_once(server: StreamsServer) -> None:
    _, shard, start = minutes(server, 20)
    server.page_of_records = 5
    stream = opened(server, zoned(start + 600), poll=1e-6)
    assert next(stream) is not None
    kinds = [
        request["ShardIteratorType"]
        for operation, request in server.calls
        if operation == "GetShardIterator"
    ]
    if server.at_timestamp:
        assert (kinds, len(server.reads[shard.id])) == (["AT_TIMESTAMP"], 1)
    else:
        assert kinds == ["AT_TIMESTAMP", "TRIM_HORIZON"]
        assert len(server.reads[shard.id]) == 3  # two pages of older records, then one of ours


def hand_made(server: StreamsServer, stream: streams.Stream, mark: dict[str, Any]) -> Any:
    """A token with this mark for the only shard."""
    token = saved(opened(server, "trim_horizon"))
    shard = shard_of(token)
    return token | {"partitions": {shard: token["partitions"][shard] | {"mark": mark}}}


@pytest.mark.slow
def test_an_expired_iterator_without_any_time_is_shard_iterator_expired(
    server: StreamsServer,
) -> None:
    """Never a silent jump to the horizon."""
    stream, shard, _ = minutes(server, 3)
    partitions = saved(opened(server, "latest"))["partitions"]
    iterator = next(iter(partitions.values()))["mark"]["iterator"]
    token = hand_made(server, stream, {"iterator": iterator})
    stream.put(shard, "new", at=server.now)
    assert some(opened(server, token), 1) == ["new"]  # it lives
    server.advance(16 * 60)
    late = opened(server, token, on_gap="continue")
    for _ in range(2):
        with pytest.raises(ShardIteratorExpired) as caught:
            next(late)
        assert "move_to" in caught.value.hint
    assert isinstance(caught.value, PositionLost)
    assert [each["mark"]["iterator"] for each in saved(late)["partitions"].values()] == [iterator]
    late.move_to("trim_horizon")
    assert some(late, 4) == ["0", "1", "2", "new"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damaged",
    [{"mark": {"from": "soon"}}, {"mark": {"from": None}}, {"mark": {"asked": "x"}},
     {"mark": {"parents": 7}}, {"mark": {"parents": {"p": 7}}}, {"place": "x:0", "mark": {}}],
)  # fmt: skip
def test_a_damaged_token_is_an_invalid_position(server: StreamsServer, damaged: Any) -> None:
    minutes(server, 2)
    iterator = opened(server, "trim_horizon")
    token = saved(iterator)
    partition = shard_of(token)
    token["partitions"][partition] |= damaged
    for use in (iterator.move_to, lambda position: opened(server, position)):
        with pytest.raises(InvalidPosition, match="damaged"):
            use(token)
    assert some(iterator, 2) == ["0", "1"]
