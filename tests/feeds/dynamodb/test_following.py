"""One shard on the scripted server: polls, iterators, trims, times, and what each costs."""

import pickle
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from penstock.feeds import Following, HistoryLost
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.beginning import beginning_of
from penstock.model.errors import Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId
from penstock.wire.dynamodb.decoder import DynamodbDecoder, place_of
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard, Stream
from tests.feeds.dynamodb.walking import name


def feed_of(server: StreamsServer, **given: Any) -> DynamodbFeed:
    return DynamodbFeed(settings_of(server, **{"reads": 1000, "poll": 0.001, **given}))


def put(server: StreamsServer, stream: Stream, shard: Shard, count: int) -> list[str]:
    return [stream.put(shard, n, at=server.now) for n in range(count)]


def numbers(pages: Sequence[Page]) -> list[str]:
    """The sequence numbers of all records."""
    decoder = DynamodbDecoder("aws", "none", "json", "stop")
    return [
        row["event_id"].rpartition(":")[2]
        for page in pages
        for batch in decoder.decode(page)
        for row in batch.to_pylist()
    ]


def drain(following: Following, wanted: int) -> list[Page]:
    pages: list[Page] = []
    deadline = time.monotonic() + 60
    while sum(page.count for page in pages) < wanted:
        assert time.monotonic() < deadline
        pages += following.read(0.05)
    return pages


def test_latest_leaves_out_shards_that_are_closed(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    put(server, stream, shard, 3)
    left, right = stream.split(shard)
    begun = feed_of(server).begin("now")
    assert name(stream, shard) not in begun, "ancestors of known shards are done"
    assert {each for each in begun if not begun[each].ended} == {
        name(stream, left), name(stream, right),
    }  # fmt: skip


def lost_of(feed: DynamodbFeed, partition: PartitionId, bookmark: Bookmark) -> HistoryLost:
    """What reading, and following again, raise."""
    with pytest.raises(HistoryLost) as first:
        feed.follow(partition, bookmark).read(0.0)
    copy: DynamodbFeed = pickle.loads(pickle.dumps(feed))  # as a task has it
    with pytest.raises(HistoryLost) as again:
        copy.follow(partition, bookmark).read(0.0)
    assert first.value.gap == again.value.gap
    return again.value


def test_a_horizon_that_moves_before_the_first_read_is_no_gap(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    server.trims_at = "GetRecords"
    sequence = put(server, stream, shard, 5)

    def trim(operation: str, request: dict[str, Any]) -> None:
        if operation == "GetRecords":
            stream.trim(shard, 3)

    server.before = trim
    following = feed_of(server).follow(name(stream, shard), feed_of(server).begin().popitem()[1])
    assert numbers(drain(following, 2)) == sequence[3:]
    assert server.counts["GetShardIterator"] == 2


def test_a_shard_that_is_gone_is_a_gap_unless_all_of_it_was_read(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    sequence = put(server, stream, shard, 2)
    stream.split(shard)
    shard.gone = True
    feed = feed_of(server)
    gap = lost_of(feed, name(stream, shard), Bookmark(place_of(sequence[0]), {})).gap
    assert gap.cause == "shard_gone"
    despite = feed.follow(name(stream, shard), Bookmark(place_of(sequence[0]), {}), despite=[gap])
    assert despite.drained
    following = feed_of(server).follow(name(stream, shard), Bookmark(place_of(sequence[1]), {}))
    assert following.read(0.0) == []
    assert following.drained


def test_a_stream_that_is_enabled_again_has_the_old_leaves_as_parents(
    server: StreamsServer, stream: Stream
) -> None:
    """And at a first start the old one is done."""
    server.page_of_streams = 1
    shard, new = stream.shard(), server.stream("users")
    root, feed = new.shard(), feed_of(server)
    listed = {each.partition: each.parents for each in feed.partitions()}
    assert listed == {name(stream, shard): (), name(new, root): (name(stream, shard),)}
    assert feed.begin("beginning")[name(stream, shard)].ended


@pytest.mark.slow
def test_an_empty_list_of_shards_is_no_end(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    stream.empty = 1
    feed = feed_of(server)
    with pytest.raises(Unavailable):
        feed.partitions()
    assert [each.partition for each in feed.partitions()] == [name(stream, shard)]


def test_shards_are_listed_from_pages_that_are_shuffled_and_overlap(
    server: StreamsServer, stream: Stream
) -> None:
    shards = [stream.shard(Shard("shardId-pruned")) for _ in range(60)]
    for shard in shards[:60]:
        shards += stream.split(shard)
    server.shuffles, server.repeats_shards = Random(7), True
    listed = {each.partition: each.parents for each in feed_of(server).partitions()}
    assert server.counts["DescribeStream"] == 2
    assert listed == {
        name(stream, each): (PartitionId(f"{stream.label}/{each.parent}"),) for each in shards
    }


def test_a_table_without_a_stream_says_how_to_enable_it(server: StreamsServer) -> None:
    [finding] = feed_of(server).check()
    assert finding.level == "error"
    assert "update-table --table-name users" in finding.remedy


def test_the_check_says_what_a_view_type_lacks(server: StreamsServer) -> None:
    server.stream("users", view="KEYS_ONLY").shard()
    found = {each.subject: each for each in feed_of(server).check()}
    assert found["view type"].level == "warning"
    assert "StreamEnabled=false && aws" in found["view type"].remedy
    assert found["shards"].level == "ok"


@pytest.mark.slow
def test_the_check_of_a_stream_that_is_gone_names_the_setting(server: StreamsServer) -> None:
    arn = "arn:aws:dynamodb:eu-central-1:0:table/users/stream/2020-01-01T00:00:00.000"
    [finding] = feed_of(server, table="", stream=arn).check()
    assert "ARN" in finding.remedy


def test_the_check_of_a_saved_position_says_what_is_lost(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    sequence = put(server, stream, shard, 5)
    feed = feed_of(server)
    saved = Bookmark(place_of(sequence[0]), {})
    [finding] = feed.check_bookmark(name(stream, shard), saved)
    assert finding.level == "ok"
    stream.trim(shard, 3)
    [finding] = feed.check_bookmark(name(stream, shard), saved)
    assert (finding.level, "older" in finding.message) == ("error", True)
    assert "on_gap" in finding.remedy
    assert feed.check_bookmark(name(stream, shard), saved._replace(ended=True)) == []


def test_the_check_of_a_saved_position_that_could_not_be_read_does_not_say_ok(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    first, second = put(server, stream, shard, 2)
    stream.trim(shard, 1)
    feed, partition = feed_of(server), name(stream, shard)
    server.fail("GetRecords", "LimitExceededException")
    [found] = feed.check_bookmark(partition, Bookmark(place_of(second), {}))
    assert (found.level, "calls" in found.message) == ("warning", True)
    server.fail("GetRecords", "ExpiredIteratorException")
    [found] = feed.check_bookmark(partition, Bookmark(place_of(second), {}))
    assert found.level == "ok"
    server.trims_at = "GetRecords"
    stream.trim(shard, 2)
    server.fail("GetRecords", "ExpiredIteratorException")
    [found] = feed.check_bookmark(partition, Bookmark(place_of(first), {}))
    assert (found.level, "older" in found.message) == ("error", True)


@pytest.mark.slow
def test_many_shards_cost_the_least_calls_there_can_be(
    server: StreamsServer, stream: Stream
) -> None:
    shards = [stream.shard() for _ in range(250)]
    for shard in shards:
        put(server, stream, shard, 2)
        shard.closed = True
    feed = feed_of(server)
    begun = feed.begin("beginning")
    assert server.counts == {"ListStreams": 1, "DescribeStream": 3}
    for partition, bookmark in begun.items():
        if bookmark.ended:
            continue
        following = feed.follow(partition, bookmark)
        assert sum(page.count for page in following.read(0.0)) == 2
        assert following.drained
    assert server.counts == {
        "ListStreams": 1, "DescribeStream": 3, "GetShardIterator": 250, "GetRecords": 250,
    }  # fmt: skip


def test_the_status_of_the_feed_says_that_its_stream_is_disabled(
    server: StreamsServer, stream: Stream
) -> None:
    stream.shard()
    feed = feed_of(server)
    feed.partitions()
    assert feed.status()["state"] == ""
    stream.disable()
    feed.partitions()
    status = feed.status()
    assert status["state"] == "disabled"
    assert "users" in status["message"]


def test_a_late_child_begins_where_its_parent_did_after_a_start_at_now(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    """And not at the horizon: what was written before the start is not delivered."""
    put(server, stream, shard, 1)
    shard.closed = True
    feed = feed_of(server)
    begun = feed.begin("now")
    parent = name(stream, shard)
    assert begun[parent].ended
    child = stream.shard(shard)
    (found,) = [each for each in feed.partitions(begun) if each.partition == name(stream, child)]
    assert found.first is not None
    beginning = beginning_of(found.first)
    assert beginning.since is not None
    assert 55 <= time.time() - beginning.since < 120
