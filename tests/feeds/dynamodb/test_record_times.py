"""The age of the data: what a bookmark says of it, what is lost by it, the lag and the window."""

import time
from typing import Any

import pytest

from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.beginning import RETENTION, ShardBeginning, beginning_of
from penstock.feeds.dynamodb.walk import (
    _PAGES,
    EMPTY_READS,
    EMPTY_SECONDS,
    FRESH,
    ReadThrough,
    RecordTimes,
)
from penstock.model.position import START, Bookmark
from penstock.wire.dynamodb.decoder import place_of
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard, Stream
from tests.feeds.dynamodb.walking import Walking, name

HOUR = 3600.0


@pytest.fixture
def server(server: StreamsServer) -> StreamsServer:
    server.stopped_at = time.time() // 60 * 60 + 30  # a minute is passed over later in a scan
    return server


def child_of(place: str, *, stream: str = "L", **mark: Any) -> Bookmark:
    """The first bookmark of a shard whose parent ended there."""
    parent = Bookmark(place_of(place), mark, ended=True)
    return Bookmark(mark={"parents": {f"{stream}/P": parent.to_json()}})


# Marks.


@pytest.mark.parametrize(
    ("bookmark", "through"),
    [
        (Bookmark(place_of("7"), {"through": 50}), 50),
        (Bookmark(place_of("7"), {"read": 60}), 60),  # an older one
        (Bookmark(place_of("7"), {}), 0),
        (Bookmark(None, {"from": 40, "asked": 90}), 40),
        (Bookmark(None, {"from": 40, "asked": 90, "iterator": "i"}), 90),
        (Bookmark(None, {"from": 40, "asked": 90, "through": 95}), 95),
        (Bookmark(None, {"from": "trim_horizon", "asked": 90}), 0),
        (child_of("7", through=50), 50),
        (child_of("7", read=60), 60),
        (START, 0),
    ],
)  # fmt: skip
def test_a_bookmark_knows_the_age_of_the_data(bookmark: Bookmark, through: float) -> None:
    beginning = beginning_of(bookmark)
    assert beginning.through == through
    if beginning.after is None:
        again = beginning_of(Bookmark(None, beginning.to_mark()))
        assert again == beginning


def test_a_child_of_several_begins_after_the_last_of_them() -> None:
    parents = {
        "A/1": Bookmark(place_of("7"), {"through": 50}, ended=True).to_json(),
        "A/2": Bookmark(None, {"from": 10, "asked": 20, "through": 70}, ended=True).to_json(),
    }
    assert beginning_of(Bookmark(mark={"parents": parents})).through == 70


@pytest.mark.slow
def test_what_is_older_than_a_day_is_lost_by_the_age_of_the_data(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    """Not by when the parent was read (an hour ago), or a time was asked for."""
    feed = DynamodbFeed(settings_of(server))
    feed.partitions()  # the service's time is known
    now, label = server.now, stream.label
    for bookmark in (
        child_of("7", stream=label, through=int(now - RETENTION - HOUR), read=int(now - HOUR)),
        Bookmark(None, {"from": now - RETENTION - HOUR, "asked": now - 2 * HOUR}),
    ):
        with pytest.raises(HistoryLost) as error:
            feed.follow(name(stream, shard), bookmark)
        assert error.value.gap.cause == "trimmed"
    for bookmark in (
        child_of("7", stream=label, through=int(now - RETENTION + HOUR)),
        # The table was idle for days, and was read all the time.
        Bookmark(None, {"from": now - 9 * RETENTION, "asked": now - 9 * RETENTION,
                        "through": now - HOUR}),
    ):  # fmt: skip
        feed.follow(name(stream, shard), bookmark)


def test_each_place_has_the_age_of_its_page() -> None:
    ages = RecordTimes(place_of("10"), 100.0)
    ages.note(place_of("20"), 110.0, 120.0)
    ages.note(place_of("30"), 125.0, 130.0)
    assert ages.at(None) == 100
    assert [ages.at(place_of(each)) for each in ("10", "15", "20", "25", "30")] == [
        100, 110, 120, 125, 130,
    ]  # fmt: skip
    ages.renew(500.0)
    assert ages.of_bookmark(place_of("25")) == 125
    assert ages.of_bookmark(place_of("30")) == 500
    assert ages.at(place_of("30")) == 500


@pytest.mark.slow
def test_the_ages_of_many_pages_stay_small_and_are_never_too_new() -> None:
    ages = RecordTimes(None, 1.0)
    for number in range(2 * _PAGES):
        ages.note(place_of(str(number)), 10.0 + number, 10.5 + number)
    assert len(ages._pages) == _PAGES
    assert ages.at(place_of("7")) <= 17.5
    assert ages.at(place_of(str(2 * _PAGES - 1))) == 10.5 + 2 * _PAGES - 1


# The reach.


def test_empty_pages_prove_nothing_until_there_are_many_for_a_minute() -> None:
    reach = ReadThrough(100.0, 5000.0)
    for number in range(EMPTY_READS - 1):
        reach.found_nothing(5000.0 + number * 10)
        assert (reach.is_at_tip, reach.through) == (False, 100.0)
    reach.found_nothing(6000.0)
    assert (reach.is_at_tip, reach.through) == (True, 6000.0)
    reach.found(4000.0, 6001.0)
    assert (reach.is_at_tip, reach.through) == (False, 4000.0)
    for _ in range(10 * EMPTY_READS):  # at once
        reach.found_nothing(6001.0)
    assert not reach.is_at_tip
    assert EMPTY_SECONDS == 60


def test_a_record_that_is_seconds_old_was_read_at_the_tip() -> None:
    reach = ReadThrough(0.0, 1000.0)
    reach.found(1000.0 - FRESH / 2, 1000.0)
    reach.found_nothing(1001.0)
    assert (reach.is_at_tip, reach.through) == (True, 1001.0)


# A following.


@pytest.mark.slow
def test_the_lag_is_the_age_of_what_is_stored_while_pages_are_empty(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    for _ in range(2):
        stream.put(shard, "a", at=server.now - 3 * HOUR)
    shard.pages = [1] + [0] * 30 + [1]
    walking = Walking(server, stream, shard)
    assert walking.status("lag_seconds") is None  # nothing is known
    assert walking.step() == 1
    walking.following.bookmark(walking.following._walk.after)  # it is stored
    for _ in range(20):
        walking.step()
        assert walking.status("lag_seconds") > 3 * HOUR
        assert not walking.status("details")["tip_reached"]
        assert walking.status("window_seconds") == RETENTION
        assert RETENTION - 4 * HOUR < walking.status("window_left_seconds") < RETENTION - 3 * HOUR
    while not walking.step():
        assert walking.status("lag_seconds") > 3 * HOUR


@pytest.mark.slow
def test_the_lag_is_0_after_a_minute_of_reads_without_a_record(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    stream.put(shard, "a", at=server.now - 3 * HOUR)
    walking = Walking(server, stream, shard)
    walking.step()
    for _ in range(70):
        walking.step()
    assert walking.status("lag_seconds") > 3 * HOUR  # it was read, and is not stored
    after = walking.following._walk.after
    walking.following.acknowledge(walking.following.bookmark(after))
    assert walking.status("lag_seconds") == 0
    assert walking.status("window_left_seconds") == RETENTION


def test_the_lag_of_a_shard_that_is_read_as_it_is_written_is_0(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    walking = Walking(server, stream, shard)
    stream.put(shard, "a", at=server.now)
    assert walking.step() == 1
    walking.following.bookmark(walking.following._walk.after)
    walking.step()
    assert walking.status("lag_seconds") == 0


@pytest.mark.slow
@pytest.mark.parametrize("at_timestamp", [True, False])
def test_a_pinned_place_stays_however_many_pages_are_empty(
    server: StreamsServer, stream: Stream, shard: Shard, at_timestamp: bool
) -> None:
    """A record after page 300 is read, also when the process was away for half an hour."""
    server.at_timestamp = at_timestamp
    pinned = server.now
    sequence = stream.put(shard, "a", at=server.now + 2)
    shard.pages = [0] * 300 + [1]
    walking = Walking(server, stream, shard, ShardBeginning(since=pinned - 60, asked=pinned))
    for _ in range(200):
        assert walking.step(3.0) == 0
    bookmark = walking.following.bookmark(None)
    assert bookmark.mark is not None
    assert bookmark.mark["from"] == pinned - 60
    server.advance(HOUR / 2)
    again = Walking(server, stream, shard, beginning_of(bookmark))
    shard.pages = []
    assert sum(again.step() for _ in range(3)) == 1
    assert again.following._walk.after == place_of(sequence)


@pytest.mark.slow
def test_an_idle_shard_that_is_read_for_days_is_never_lost(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    begun = DynamodbFeed(settings_of(server)).begin("now")[name(stream, shard)]
    walking = Walking(server, stream, shard, beginning_of(begun))
    marks = []
    for _ in range(70):
        walking.step()
    for _ in range(6 * 50):
        walking.step(600.0)
        marks.append(walking.following.bookmark(None))
    assert not beginning_of(marks[-1]).is_overdue(server.now)
    assert beginning_of(marks[-1]).since == beginning_of(begun).since
    assert walking.status("window_left_seconds") == RETENTION
    assert "iterator" not in (marks[-1].mark or {})  # it expired long ago


@pytest.mark.slow
def test_an_idle_shard_with_a_place_is_renewed_every_five_minutes(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    stream.put(shard, "a", at=server.now)
    walking = Walking(server, stream, shard)
    assert walking.step() == 1
    after = walking.following._walk.after
    seen = set()
    for _ in range(900):
        walking.step()
        mark = walking.following.bookmark(after).mark
        assert mark is not None
        seen.add(mark["through"])
    assert len(seen) == 4  # saved seldom
    assert server.now - max(seen) <= 301


def test_a_child_inherits_the_age_of_what_its_parent_had(
    server: StreamsServer, stream: Stream, shard: Shard
) -> None:
    created = server.now - 20 * HOUR
    stream.put(shard, "a", at=created)
    child, _ = stream.split(shard)
    walking = Walking(server, stream, shard)
    walking.step()
    assert walking.following.drained
    ended = walking.following.bookmark(walking.following._walk.after)._replace(ended=True)
    feed = DynamodbFeed(settings_of(server))
    known = {name(stream, shard): ended}
    listed = {each.partition: each.first for each in feed.partitions(known)}
    first = listed[name(stream, child)]
    assert first is not None
    assert beginning_of(first).through == int(created)
    server.advance(5 * HOUR)
    feed.partitions()
    with pytest.raises(HistoryLost):
        feed.follow(name(stream, child), first)


@pytest.mark.parametrize(("hours", "as_read"), [(24.5, False), (26, True)])
def test_a_record_of_more_than_a_day_counts_as_it_is_old(
    server: StreamsServer, stream: Stream, shard: Shard, hours: float, as_read: bool
) -> None:
    """AWS trims within the hour; a stand-in keeps records for ever, and loses nothing."""
    created = int(server.now - hours * HOUR)
    stream.put(shard, "a", at=created)
    walking = Walking(server, stream, shard)
    assert walking.step() == 1
    mark = walking.following.bookmark(walking.following._walk.after).mark
    assert mark is not None
    assert (mark["through"] > created) == as_read
