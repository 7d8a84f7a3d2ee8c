"""DynamoDB Local under a clock that goes fast or jumps: shards roll, iterators expire, and records
are trimmed as on a server that has run for days."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.client import StreamsClient
from penstock.feeds.dynamodb.failures import EXPIRED, code_of
from penstock.feeds.dynamodb.following import DynamodbFollowing
from penstock.model.errors import Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId
from penstock.stream import Stream
from tests.dynamodb.consumers import Pipeline
from tests.dynamodb.local import ROLLS, DynamodbLocal, Table
from tests.dynamodb.test_local import feed_of, only, rows
from tests.waiting import until

Answer = TypeVar("Answer")


def started(clock: int) -> DynamodbLocal:
    try:
        return DynamodbLocal(clock=clock)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def jumping() -> Iterator[DynamodbLocal]:
    """Its clock goes as ours does, and jumps when a test says so."""
    with started(1) as server:
        yield server


def answered(call: Callable[[], Answer]) -> Answer:
    """Connections drop while the clock goes fast: what a call returns in the end."""
    while True:
        try:
            return call()
        except Unavailable:
            time.sleep(0.1)


class Puts:
    """Items `k0`, `k1`, ... one at a time; `count` of them were accepted."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.count = 0

    def one(self) -> None:
        """Again until it is accepted: the same item a second time is no change."""
        while True:
            try:
                self._table.put(f"k{self.count}")
            except (BotoCoreError, ClientError):
                time.sleep(0.1)
            else:
                self.count += 1
                return


def test_a_shard_that_rolls_is_read_before_its_child_and_once() -> None:
    with started(ROLLS) as server:
        table = Table(server.url)
        feed = feed_of(table)
        puts, reading = Puts(table), answered(lambda: Pipeline(feed, clock=time.monotonic))
        stream = answered(lambda: Stream(feed, at="trim_horizon"))
        records: list[dict[str, Any]] = []

        def read() -> bool:
            with suppress(Unavailable):  # the server drops connections at this pace
                reading.read()
            with suppress(Unavailable):
                while record := next(stream):
                    records.append(record)
            return len(reading.found) >= puts.count <= len(records)

        def rolled() -> bool:
            puts.one()
            read()
            return len({shard for shard, _ in reading.found}) >= 2

        try:
            until(rolled)
            until(read)
            parents = {each.partition: each.parents for each in answered(feed.partitions)}
        finally:
            reading.stop()
            stream.close()
    written = [f"k{number}" for number in range(puts.count)]
    assert [key for _, key in reading.found] == written
    assert [record["key"]["id"] for record in records] == written
    first, second = dict.fromkeys(PartitionId(shard) for shard, _ in reading.found)
    assert (parents[first], parents[second]) == ((), (first,))
    assert reading.saved[first].ended


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
    jumping: DynamodbLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(jumping.url)
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
    jumping.advance(16 * 60)
    until(lambda: expired(client, probe))
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


def test_records_that_the_server_trimmed_are_a_gap(jumping: DynamodbLocal) -> None:
    table = Table(jumping.url)
    feed = feed_of(table)
    partition = only(feed)
    table.fill(5)
    following = feed.follow(partition, feed.begin()[partition])
    pages = drained(following, 5)
    first = following.bookmark(pages[0].first)
    jumping.advance(25 * 3600)
    until(lambda: trimmed(feed, partition, first))
    table.fill(5, start=5)
    with pytest.raises(HistoryLost) as error:
        feed.follow(partition, first).read(0.0)
    gap = error.value.gap
    assert (gap.cause, gap.after) == ("trimmed", str(first.place))
    after = feed.follow(partition, first, despite=[gap])
    assert keys(feed, drained(after, 5)) == [f"r{n}" for n in range(5, 10)]


def trimmed(feed: DynamodbFeed, partition: PartitionId, after: Bookmark) -> bool:
    try:
        feed.follow(partition, after).read(0.0)
    except HistoryLost:
        return True
    return False
