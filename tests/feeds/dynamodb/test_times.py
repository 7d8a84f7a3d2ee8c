"""Times as places of a shard: whole seconds, the service's clock, and a botocore without them."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.beginning import ShardBeginning, beginning_of
from penstock.feeds.dynamodb.client import ServerClock, StreamsClient, client_of
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard, Stream
from tests.feeds.dynamodb.walking import Walking, name


@pytest.fixture
def server(server: StreamsServer) -> StreamsServer:
    # Times that are cut to the minute count as such in a scan: records of the tests have none.
    server.stopped_at = time.time() // 60 * 60 + 30.75
    return server


def asked(server: StreamsServer, kind: str = "AT_TIMESTAMP") -> list[float]:
    return [
        request["Timestamp"]
        for operation, request in server.calls
        if operation == "GetShardIterator" and request["ShardIteratorType"] == kind
    ]


def read(walking: Walking, reads: int = 3) -> int:
    return sum(walking.step() for _ in range(reads))


@pytest.mark.slow
@pytest.mark.parametrize("at_timestamp", [True, False])
@pytest.mark.parametrize("ahead", [0.0, 240.0, -240.0])
def test_latest_loses_nothing_when_its_iterator_expires_unread(
    server: StreamsServer, stream: Stream, shard: Shard, at_timestamp: bool, ahead: float
) -> None:
    """A record of the same second is created, in the stream, before "now" was asked for; and this
    machine's clock is four minutes slow or fast, as requests' signatures may be."""
    server.at_timestamp = at_timestamp
    server.advance(ahead)
    begun = DynamodbFeed(settings_of(server)).begin("now")[name(stream, shard)]
    stream.put(shard, "a", at=float(int(server.now)))
    server.advance(20 * 60)
    walking = Walking(server, stream, shard, beginning_of(begun))
    assert walking.step() + read(walking) == 1


@pytest.mark.slow
@pytest.mark.parametrize("minutes", [1, 5, 7.5, 9, 12])
def test_heartbeats_of_any_interval_up_to_twelve_minutes_keep_an_iterator(
    server: StreamsServer, stream: Stream, shard: Shard, minutes: float
) -> None:
    begun = DynamodbFeed(settings_of(server)).begin("now")[name(stream, shard)]
    walking = Walking(server, stream, shard, beginning_of(begun))
    for _ in range(int(120 / minutes)):
        walking.seconds += 60 * minutes
        server.advance(60 * minutes)
        assert not walking.following.keep_alive()
    assert server.counts["GetShardIterator"] == 1
    assert server.counts["GetRecords"] <= 5 + 25  # also with one each minute: every ten


def test_a_time_is_asked_for_in_whole_seconds(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    second = float(int(server.now) - 100)
    stream.put(shard, "a", at=second)
    assert read(Walking(server, stream, shard, ShardBeginning(since=second + 0.7))) == 1
    assert asked(server) == [second]


def test_a_record_whose_time_no_clock_has_is_neither_passed_over_nor_dated(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    stream.put(shard, "a", at=253_402_300_800.0)
    walking = Walking(server, stream, shard, ShardBeginning(since=server.now - 100))
    assert read(walking) == 1
    assert walking.following.status()["details"]["last_record"] is None


@pytest.mark.slow
def test_a_time_in_the_future_is_no_unknown_kind_of_iterator(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    """Of an older bookmark, by a clock that was fast: at most five minutes, else AWS refuses the
    signature. Nothing of a whole day is scanned for it."""
    stream.put(shard, "old", at=server.now - 3600)
    stream.put(shard, "new", at=server.now)
    since = server.now + 200
    assert read(Walking(server, stream, shard, ShardBeginning(since=since, asked=since))) == 1
    assert asked(server) == [int(server.now - 3 - 300 + 1)]
    assert asked(server, "TRIM_HORIZON") == []


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with botocore before 1.44.0, whose GetShardIterator has no `Timestamp`."""
    made = StreamsClient.__init__

    def without(client: StreamsClient, *given: Any) -> None:
        made(client, *given)
        client.has_times = False

    monkeypatch.setattr(StreamsClient, "__init__", without)


@pytest.mark.usefixtures("old")
def test_without_times_in_botocore_a_shard_is_scanned(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    for age in (500, 400, 300, 200.5, 100.5):
        stream.put(shard, str(age), at=server.now - age)
    feed = DynamodbFeed(settings_of(server, reads=1000, poll=0.001))
    begun = feed.begin(datetime.fromtimestamp(server.now - 250, UTC))[name(stream, shard)]
    following = feed.follow(name(stream, shard), begun)
    assert sum(page.count for page in following.read(5.0)) == 2
    assert asked(server) == []


def test_a_record_whose_time_was_cut_to_the_minute_may_be_of_the_start(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    """As DynamoDB Local cuts them: of the start's own minute there is rather one too many."""
    server.at_timestamp = False
    minute = server.now // 60 * 60
    for age in (180, 120, 60):
        stream.put(shard, str(age), at=minute - age)
    since = server.now - 120  # 30 seconds after the minute of the second one
    assert read(Walking(server, stream, shard, ShardBeginning(since=since, asked=since))) == 2


@pytest.mark.slow
def test_a_scan_ends_at_its_deadline_and_the_next_following_goes_on_with_it(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    """As short tickets read: none begins the scan anew, and none takes long."""
    server.at_timestamp = False
    for age in range(200, 0, -1):
        stream.put(shard, str(age), at=server.now - 60 * age)
    server.page_of_records = 1
    bookmark = ShardBeginning(since=server.now - 600, asked=server.now)
    walking = Walking(server, stream, shard, bookmark)
    for ticket in range(1, 60):
        walking = Walking(
            server, stream, shard, bookmark, known=walking.known, seconds=walking.seconds
        )
        if walking.step(1.5):
            break
        assert server.counts["GetRecords"] <= 5 * ticket
    assert server.counts["GetRecords"] == 191
    assert server.counts["GetShardIterator"] == 2  # at the time, and then at the horizon
    assert (
        walking.following.bookmark(walking.following._walk.after).place
        == walking.following._walk.after
    )
    assert sum(walking.step() for _ in range(9)) == 9


@pytest.mark.slow
def test_a_scan_whose_iterator_expires_goes_on_after_what_it_passed_over(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    server.at_timestamp = False
    for age in range(10, 0, -1):
        stream.put(shard, str(age), at=server.now - 60 * age)
    server.page_of_records = 1
    bookmark = ShardBeginning(since=server.now - 150, asked=server.now)
    walking = Walking(server, stream, shard, bookmark)
    assert walking.step() == 0
    assert walking.following.bookmark(None).mark == bookmark.to_mark()
    server.advance(20 * 60)
    walking = Walking(
        server, stream, shard, bookmark, known=walking.known, seconds=walking.seconds + 20 * 60
    )
    assert read(walking, 2) == 2
    assert server.counts["GetRecords"] == 10


@pytest.mark.slow
def test_a_scan_that_found_nothing_of_ours_is_read_through(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    """Else it would count as lost a day after the time it began at."""
    server.at_timestamp = False
    stream.put(shard, "old", at=server.now - 3600)
    begun = server.now
    walking = Walking(server, stream, shard, ShardBeginning(since=begun - 600, asked=begun))
    assert read(walking, 400) == 0
    mark = walking.following.bookmark(None).mark
    assert mark is not None
    assert mark["through"] > begun
    assert walking.status("lag_seconds") == 0


@pytest.mark.slow
@pytest.mark.parametrize("at", ["now", "a time"])
def test_what_came_between_two_beginnings_of_one_second_is_not_lost(
    server: StreamsServer, stream: Stream, shard: Shard, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The second reader of this process finds nothing after its own LATEST iterator; the first has
    not read yet, and its bookmark has the same time."""
    now = float(int(server.now))
    moments = iter([now + 0.1, now + 0.2])
    monkeypatch.setattr(StreamsClient, "now", lambda _: next(moments))
    feed = DynamodbFeed(settings_of(server))
    position: Any = "now" if at == "now" else datetime.fromtimestamp(now - 60, UTC)
    first = beginning_of(feed.begin(position)[name(stream, shard)])
    stream.put(shard, "between", at=server.now)
    second = beginning_of(feed.begin("now")[name(stream, shard)])
    assert first.since == second.since
    latest = Walking(server, stream, shard, second)
    assert read(latest) == 0
    reader = Walking(server, stream, shard, first, known=latest.known, seconds=latest.seconds)
    assert read(reader) == 1
    assert read(latest) == 0
    # Short followings of one bookmark share its walk still.
    calls = server.counts["GetShardIterator"]
    for _ in range(5):
        latest = Walking(server, stream, shard, second, known=latest.known, seconds=latest.seconds)
        assert read(latest) == 0
    assert server.counts["GetShardIterator"] <= calls + 1


def test_the_service_is_believed_and_not_this_machine(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    server.advance(-7200)
    feed = DynamodbFeed(settings_of(server))
    server.stopped_at = None
    before = int(server.now)  # the service says it in whole seconds
    begun = beginning_of(feed.begin("now")[name(stream, shard)])
    now = client_of(settings_of(server)).now()
    assert begun.since is not None
    assert before <= begun.asked <= now <= server.now
    assert before - 61 <= begun.since <= begun.asked - 60


def test_the_clock_of_the_service_is_never_early_and_follows_it() -> None:
    seconds = 0.0
    clock = ServerClock(lambda: seconds)
    assert abs(clock.now() - time.time()) < 60
    dates = "Tue, 24 Nov 2026 06:00:{:02d} GMT"
    begin = datetime(2026, 11, 24, 6, tzinfo=UTC).timestamp()
    for answer in range(1, 100):
        seconds = answer * 0.3  # and the service's time is 0.9 more
        clock.heard(dates.format(int(seconds + 0.9)))
        assert begin + seconds - 0.1 - 1e-6 <= clock.now() <= begin + seconds + 0.9 + 1e-6
    assert clock.now() >= begin + seconds + 0.6
    for broken in ("", "yesterday", "Tue, 24 Nov 2026"):
        clock.heard(broken)
    assert clock.now() >= begin + seconds + 0.6
    clock.heard(dates.format(3))  # it was set back
    assert clock.now() == begin + 3
