"""The bench's replaying mongod and its bare getMore loop."""

import time
from collections.abc import Iterator

import pytest

from bench.mongodb import MongoDB
from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.finding import Finding
from tests.mongo import follow, pages, rows

pytestmark = pytest.mark.live


@pytest.fixture
def source() -> Iterator[MongoDB]:
    with MongoDB(3000) as found:
        yield found


def feed_of(source: MongoDB) -> MongoFeed:
    return MongoFeed(MongoSettings.model_validate(source.backend))


def test_the_bare_loop_and_the_feed_read_what_was_written(source: MongoDB) -> None:
    source.write(2500)
    assert source.read(2500) > 0
    feed = feed_of(source)
    with follow(feed, feed.begin()[PARTITION]) as following:
        found = rows(feed, pages(following, 2500))
    assert {(row["database"], row["collection"], row["operation"]) for row in found} == {
        ("bench", "bench", "INSERT")
    }
    assert [int(row["document_id"], 16) for row in found] == list(range(2500))


def test_a_stream_goes_on_after_a_bookmark_and_at_what_is_committed_meanwhile(
    source: MongoDB,
) -> None:
    feed = feed_of(source)
    source.write(10)
    with follow(feed, feed.begin()[PARTITION]) as following:
        first = pages(following, 10)
        bookmark = following.bookmark(first[-1].last)
        assert bookmark is not None
    with follow(feed, bookmark) as following:
        assert not following.read(0.1)
        before = time.time()
        source.write(5)
        after = time.time()
        found = rows(feed, pages(following, 5))
    assert [int(row["document_id"], 16) for row in found] == list(range(10, 15))
    for row in found:  # in milliseconds, as MongoDB has it
        assert before - 0.001 <= row["committed_at"].timestamp() <= after


def test_the_preflight_finds_a_replica_set(source: MongoDB) -> None:
    found: list[Finding] = list(feed_of(source).check())
    assert [each.message for each in found if each.level == "error"] == []
    assert "the replica set replay" in [each.message for each in found]
