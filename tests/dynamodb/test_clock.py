"""The scripted server under a clock that goes fast or jumps: shards roll, iterators expire, and
records are trimmed as on a server that has run for days. boto3 writes the items."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.client import StreamsClient
from penstock.feeds.dynamodb.failures import EXPIRED, code_of
from penstock.feeds.dynamodb.following import DynamodbFollowing
from penstock.model.page import Page
from penstock.model.position import PartitionId
from penstock.stream import Stream
from tests.dynamodb.consumers import Pipeline
from tests.dynamodb.endpoints import Table
from tests.dynamodb.server import StreamsServer
from tests.dynamodb.test_tables import feed_of, only, rows
from tests.waiting import until

HOUR = 3600


@pytest.fixture
def server() -> Iterator[StreamsServer]:
    """Its clock goes as ours does, and jumps when a test says so."""
    with StreamsServer() as found:
        found.ages, found.rolls = True, 4 * HOUR
        yield found


@pytest.mark.slow
def test_a_shard_that_rolls_is_read_before_its_child_and_once(server: StreamsServer) -> None:
    """Two readers while a minute passes with each answer: of a pipeline, and the iterator."""
    server.before = lambda *_: server.advance(60)
    table = Table(server.url)
    feed = feed_of(table)
    reading, stream = Pipeline(feed), Stream(feed, at="trim_horizon")
    written, records = list[str](), list[dict[str, Any]]()

    def read() -> bool:
        reading.read()
        while record := next(stream):
            records.append(record)
        return len(reading.found) >= len(written) <= len(records)

    def rolled() -> bool:
        table.put(f"k{len(written)}")
        written.append(f"k{len(written)}")
        read()
        return len({shard for shard, _ in reading.found}) >= 3

    try:
        until(rolled)
        until(read)
        parents = {each.partition: each.parents for each in feed.partitions()}
    finally:
        reading.stop()
        stream.close()
    assert [key for _, key in reading.found] == written
    assert [record["key"]["id"] for record in records] == written
    first, second, third = dict.fromkeys(PartitionId(shard) for shard, _ in reading.found)
    assert (parents[first], parents[second], parents[third]) == ((), (first,), (second,))
    assert reading.saved[second].ended


def drained(following: DynamodbFollowing, count: int) -> list[Page]:
    pages: list[Page] = []

    def read() -> bool:
        pages.extend(following.read(0.1))
        return sum(page.count for page in pages) >= count

    until(read)
    return pages


def keys(feed: DynamodbFeed, pages: list[Page]) -> list[str]:
    return [row["document_id"] for row in rows(feed, pages)]


def test_an_expired_iterator_is_made_again_silently(
    server: StreamsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(server.url)
    feed = feed_of(table)
    following = feed.follow(only(feed), feed.begin()[only(feed)])
    client, kinds = following._shard.client, list[str]()
    make = client.iterator

    def noted(arn: str, shard: str, kind: str, **more: Any) -> str:
        kinds.append(kind)
        return make(arn, shard, kind, **more)

    monkeypatch.setattr(client, "iterator", noted)
    table.fill(5)
    assert keys(feed, drained(following, 5)) == [f"r{n}" for n in range(5)]
    probe = make(following._arn, following._shard.id, "TRIM_HORIZON")
    server.advance(16 * 60)
    assert expired(client, probe)
    table.fill(5, start=5)
    assert keys(feed, drained(following, 5)) == [f"r{n}" for n in range(5, 10)]
    assert kinds == ["TRIM_HORIZON", "AFTER_SEQUENCE_NUMBER"]


def expired(client: StreamsClient, iterator: str) -> bool:
    try:
        client.records(iterator)
    except ClientError as error:
        assert code_of(error) == EXPIRED
        return True
    return False


@pytest.mark.parametrize("call", ["GetShardIterator", "GetRecords"])
def test_records_that_the_server_trimmed_are_a_gap(server: StreamsServer, call: str) -> None:
    server.rolls, server.trims_at = 0, call
    table = Table(server.url)
    feed = feed_of(table)
    partition = only(feed)
    table.fill(5)
    following = feed.follow(partition, feed.begin()[partition])
    pages = drained(following, 5)
    first = following.bookmark(pages[0].first)
    server.advance(25 * HOUR)
    table.fill(5, start=5)
    with pytest.raises(HistoryLost) as error:
        feed.follow(partition, first).read(0.0)
    gap = error.value.gap
    assert (gap.cause, gap.after) == ("trimmed", str(first.place))
    after = feed.follow(partition, first, despite=[gap])
    assert keys(feed, drained(after, 5)) == [f"r{n}" for n in range(5, 10)]
