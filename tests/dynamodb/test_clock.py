"""DynamoDB Local under a clock that goes fast or jumps: shards roll, iterators expire, and records
are trimmed as on a server that has run for days."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from penstock.errors import RecordsExpired, Unavailable
from penstock.feeds import HistoryLost, Lineage
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.following import DynamodbFollowing
from penstock.page import Page
from penstock.position import Bookmark, PartitionId
from penstock.reading.gap_log import GapLog
from penstock.reading.planner import Planner, ReadLimits
from penstock.reading.roster import Roster
from penstock.reservoir.reservoir import Reservoir
from penstock.stream import Stream
from tests.dynamodb.local import ROLLS, DynamodbLocal, Table
from tests.dynamodb.test_local import feed_of, only, rows

pytestmark = pytest.mark.live

PATIENCE = 240.0


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


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lineage(feed: DynamodbFeed) -> list[Lineage]:
    """Connections drop while the clock goes fast."""
    while True:
        try:
            return list(feed.partitions())
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


class Reading:
    """The read side of a reader process over a feed; `found` has shard and key of every change."""

    def __init__(self, feed: DynamodbFeed) -> None:
        gaps = GapLog(None)
        limits = ReadLimits(patience=0.0)
        self.reservoir = Reservoir(feed, limit=limits.buffer, gaps=gaps)
        self.found: list[tuple[str, str]] = []
        self.done: dict[PartitionId, Bookmark] = dict(feed.begin())
        self._feed = feed
        self._planner = Planner(self.reservoir, Roster(feed, gaps), limits=limits)

    def read(self) -> None:
        end = self._planner.advance(self.done, patience=0.1)
        for split in self._planner.splits(self.done, end):
            pages = [page for part in split.parts for page in part.pages]
            found = rows(self._feed, pages)
            self.found += [(row["partition"], row["document_id"]) for row in found]
        self.done = dict(end)


def test_a_shard_that_rolls_is_read_before_its_child_and_once() -> None:
    with started(ROLLS) as server:
        table = Table(server.url)
        feed = feed_of(table)
        puts, reading = Puts(table), Reading(feed)
        stream = Stream(feed, at="trim_horizon")
        records: list[dict[str, Any]] = []

        def read() -> bool:
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
            wait_for(rolled)
            wait_for(read)
            parents = {each.partition: each.parents for each in lineage(feed)}
        finally:
            reading.reservoir.stop(5.0)
            stream.close()
    written = [f"k{number}" for number in range(puts.count)]
    assert [key for _, key in reading.found] == written
    assert [record["key"]["id"] for record in records] == written
    first, second = dict.fromkeys(PartitionId(shard) for shard, _ in reading.found)
    assert (parents[first], parents[second]) == ((), (first,))
    assert reading.done[first].ended


def drained(following: DynamodbFollowing, count: int) -> list[Page]:
    pages: list[Page] = []

    def read() -> bool:
        pages.extend(following.read(0.1))
        return sum(page.count for page in pages) >= count

    wait_for(read)
    return pages


def keys(feed: DynamodbFeed, pages: list[Page]) -> list[str]:
    return [row["document_id"] for row in rows(feed, pages)]


def iterators_made(following: DynamodbFollowing) -> list[str]:
    """The kinds of iterator that a following asks for from now on."""
    client, kinds = following._client, []
    ask = client.iterator

    class Noted:
        records = staticmethod(client.records)

        @staticmethod
        def iterator(arn: str, shard: str, kind: str, **more: Any) -> str:
            kinds.append(kind)
            return ask(arn, shard, kind, **more)

    following._client = Noted()  # type: ignore[assignment]
    return kinds


def test_an_expired_iterator_is_made_again_silently(jumping: DynamodbLocal) -> None:
    table = Table(jumping.url)
    feed = feed_of(table)
    following = feed.follow(only(feed), feed.begin()[only(feed)])
    made = iterators_made(following)
    table.fill(5)
    assert keys(feed, drained(following, 5)) == [f"r{n}" for n in range(5)]
    assert made == ["TRIM_HORIZON"]
    jumping.advance(16 * 60)
    wait_for(lambda: following.read(0.0) or len(made) == 2)
    table.fill(5, start=5)
    assert keys(feed, drained(following, 5)) == [f"r{n}" for n in range(5, 10)]
    assert made == ["TRIM_HORIZON", "AFTER_SEQUENCE_NUMBER"]


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_records_that_the_server_trimmed_are_a_gap_by_policy(
    jumping: DynamodbLocal, policy: str
) -> None:
    table = Table(jumping.url)
    feed = feed_of(table, on_gap=policy)
    partition = only(feed)
    table.fill(5)
    following = feed.follow(partition, feed.begin()[partition])
    pages = drained(following, 5)
    first = following.bookmark(pages[0].first)
    jumping.advance(25 * 3600)
    wait_for(lambda: trimmed(feed, partition, first))
    table.fill(5, start=5)
    with pytest.raises(HistoryLost) as error:
        feed.follow(partition, first)
    gap = error.value.gap
    assert (gap.cause, gap.after, gap.policy) == ("trimmed", str(first.place), policy)
    after = feed.follow(partition, first, despite=gap)
    assert keys(feed, drained(after, 5)) == [f"r{n}" for n in range(5, 10)]


def trimmed(feed: DynamodbFeed, partition: PartitionId, after: Bookmark) -> bool:
    try:
        feed.follow(partition, after).read(0.0)
    except HistoryLost:
        return True
    return False


def some(stream: Stream) -> dict[str, Any]:
    found: list[dict[str, Any] | None] = []
    wait_for(lambda: found.append(next(stream)) or found[-1] is not None)
    assert found[-1] is not None
    return found[-1]


def test_records_of_the_iterator_that_the_server_trimmed_have_expired(
    jumping: DynamodbLocal,
) -> None:
    table = Table(jumping.url)
    feed = feed_of(table)
    table.fill(5)
    stream = Stream(feed, at="trim_horizon")
    assert some(stream)["key"] == {"id": "r0"}
    token = stream.token
    stream.close()
    jumping.advance(25 * 3600)
    late = Stream(feed, at=token)

    def expired() -> bool:
        with suppress(RecordsExpired):
            next(late)
            return False
        return True

    wait_for(expired)
    late.move_to("trim_horizon")
    assert next(late) is None  # all that there was is older than a day
    table.fill(1, start=5)
    assert some(late)["key"] == {"id": "r5"}
    late.close()
