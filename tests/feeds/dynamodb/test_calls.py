"""How often the service is called: AWS allows five GetRecords a second and shard, and five
ListStreams and ten DescribeStream a second for an account (botocore's service model)."""

import pickle
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.load import parse_pipeline
from penstock.config.options import options_from_settings, settings_from_options
from penstock.feeds.dynamodb import DynamodbFeed, DynamodbSettings
from penstock.feeds.dynamodb.beginning import beginning_of
from penstock.feeds.dynamodb.client import (
    DESCRIBES,
    LISTS,
    Account,
    CallPace,
    account_of,
    client_of,
)
from penstock.feeds.dynamodb.walk import TO_THE_TIP, ShardPace, Tip
from penstock.model.errors import Unavailable
from penstock.model.position import PartitionId
from penstock.model.settings import Settings
from penstock.reading.roster import MORE
from penstock.stream import Stream
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard
from tests.dynamodb.streams import Stream as Served
from tests.feeds.dynamodb.walking import Walking
from tests.waiting import Clock

LIMITS = {"GetRecords": 5, "ListStreams": 5, "DescribeStream": 10}


@pytest.fixture
def server(server: StreamsServer) -> StreamsServer:
    server.limits = dict(LIMITS)
    return server


@given(st.lists(st.floats(0, 0.5), max_size=80), st.integers(1, 10))
def test_no_second_has_more_calls_than_the_pace(waits: list[float], most: int) -> None:
    pace, now, made = CallPace(most), 0.0, []
    for wait in waits:
        now += wait
        made.append(pace.reserve(now))
    assert all(first <= last for first, last in pairwise(made))
    assert all(last - first > 1 - 1e-9 for first, last in zip(made, made[most:], strict=False))


@given(st.lists(st.tuples(st.floats(0, 0.3), st.integers(1, 5)), max_size=60), st.integers(1, 5))
def test_no_second_has_more_reads_than_allowed(steps: list[tuple[float, int]], most: int) -> None:
    """Also where others have another limit: none makes the calls of before forgotten."""
    pace, now, made = ShardPace(), 0.0, []
    for wait, setting in steps:
        now += wait
        reads = min(most, setting)
        if pace.due(reads) <= now:
            assert sum(each > now - 1 + 1e-9 for each in made) < reads
            pace.reads(now)
            pace.answered()
            made.append(now)
    assert all(last - first > 1 - 1e-9 for first, last in zip(made, made[most:], strict=False))


def test_the_tip_is_assumed_after_five_empty_pages_of_one_walk() -> None:
    tip = Tip()
    for count in (0, 0, 3, 0, 0):
        tip = tip.found(count, 1.0, 0.5)
        assert tip.not_before == 0
        assert tip.is_sought
    tip = tip.found(0, 1.0, 0.5)
    assert not tip.is_sought
    assert tip.not_before == 1.5
    assert tip.found(2, 2.0, 0.5).not_before == 0
    assert Tip().is_sought
    assert TO_THE_TIP == 5


def test_throttling_waits_longer_each_time_until_a_call_succeeds() -> None:
    pace, waits = ShardPace(), []
    for _ in range(6):
        pace.throttled(0.0)
        waits.append(pace.due(5))
        assert pace.is_throttled
    assert 0.25 <= waits[0] <= 0.5
    assert 2 <= waits[-1] <= 10
    pace.answered()
    assert not pace.is_throttled
    assert pace.due(5) == 0
    pace.throttled(100.0)
    assert pace.due(5) <= 100.5


def test_look_ups_of_a_process_are_below_the_limits_of_the_account() -> None:
    seconds, slept = 0.0, []
    account = Account(lambda: seconds, slept.append)
    for _ in range(3 * DESCRIBES):
        account.wait_for(account.describes)
    assert slept == [1.0] * DESCRIBES + [2.0] * DESCRIBES
    assert LIMITS["ListStreams"] > LISTS
    assert LIMITS["DescribeStream"] > DESCRIBES


@given(st.integers(1, 5), st.integers(1, 40))
def test_the_processes_of_a_file_are_together_below_the_limits_of_the_account(
    backends: int, calls: int
) -> None:
    """They start at the same moment, each with its share."""
    for most, limit in ((LISTS, LIMITS["ListStreams"]), (DESCRIBES, LIMITS["DescribeStream"])):
        paces = [CallPace(most / backends) for _ in range(backends)]
        made = sorted(pace.reserve(100.0) for pace in paces for _ in range(calls))
        assert all(last - first > 1 - 1e-9 for first, last in zip(made, made[limit:], strict=False))
        rate = min(1.0, most / backends) / 2  # no slower than half of the share
        assert made[-1] - 100.0 <= calls / rate


@pytest.mark.slow
def test_the_backends_of_a_file_share_the_limits_of_their_account() -> None:
    def parts(count: int, more: str = "") -> list[Settings]:
        text = "sink: {type: memory}\nbackends:\n"
        for n in range(count):
            text += f"- {{name: b{n}, type: dynamodb, table: t{n}}}\n"
        return [each.settings for each in parse_pipeline(text + more, environment={}).backends]

    own = "- {name: own, type: dynamodb, table: t, look_ups: 0.5}\n- {name: m, type: memory}"
    found = parts(4, own)
    assert [each.model_dump().get("look_ups") for each in found] == [0.2] * 4 + [0.5, None]
    assert parts(1)[0].model_dump()["look_ups"] == 1
    copy = settings_from_options(DynamodbSettings, options_from_settings(found[0]))
    assert copy == found[0]
    paces = account_of(copy)
    assert (paces.describes._recent.maxlen, paces.lists._window) == (1, 1.25)


@pytest.mark.slow
def test_feeds_of_one_account_share_its_pace(server: StreamsServer) -> None:
    first, second = (client_of(settings_of(server, table)) for table in ("a", "b"))
    other = client_of(settings_of(server, "a", access_key="other"))
    assert first.account is second.account
    assert other.account is not first.account
    renewed = client_of(settings_of(server, "a", session_token="t"))
    assert renewed.account is first.account


@pytest.mark.slow
def test_an_idle_shard_costs_one_call_a_second_also_over_many_short_followings(
    server: StreamsServer,
    stream: Served,
    shard: Shard,
) -> None:
    """As micro-batches of 0.2 seconds make them, each with a feed and a following of its own."""
    stream.put(shard, "a", at=server.now)
    walking = Walking(server, stream, shard)
    assert walking.step() == 1
    bookmark = walking.following.bookmark(walking.following._walk.after)
    calls = []
    for _ in range(5 * 15):
        walking = Walking(
            server,
            stream,
            shard,
            beginning_of(bookmark),
            known=walking.known,
            seconds=walking.seconds,
        )
        walking.step(0.2)
        walking.step(0.0)
        calls.append(server.counts["GetRecords"])
    # Five at once, which seek the tip; then one each second.
    assert calls[-1] <= 1 + 5 + 15
    assert all(late - early <= 5 for early, late in zip(calls, calls[5:], strict=False))
    assert server.counts["GetShardIterator"] == 1
    assert walking.following.status()["lag_seconds"] == 0


@pytest.mark.slow
def test_a_shard_without_records_is_not_begun_anew_by_each_following(
    server: StreamsServer,
    stream: Served,
    shard: Shard,
) -> None:
    known, seconds = None, 0.0
    for _ in range(20):
        walking = Walking(server, stream, shard, known=known, seconds=seconds)
        walking.step(0.2)
        known, seconds = walking.known, walking.seconds
    assert server.counts["GetShardIterator"] == 1
    assert server.counts["GetRecords"] <= 5 + 4
    stream.put(shard, "a", at=server.now)
    assert walking.step() == 1


@pytest.mark.slow
def test_two_readers_of_a_shard_do_not_take_each_others_turns(
    server: StreamsServer, stream: Served, shard: Shard
) -> None:
    """In one process, as two iterators over one table."""
    first = Walking(server, stream, shard)
    second = Walking(server, stream, shard, known=first.known)
    found, calls = [0, 0], [0, 0]
    for step in range(20):
        if step == 16:  # both read at the pace of the tip by now
            stream.put(shard, "a", at=server.now)
        server.advance(1.0)
        for number, walking in enumerate((first, second)):
            walking.seconds += 1.0
            before = server.counts["GetRecords"]
            found[number] += walking.step(0.0)
            calls[number] += server.counts["GetRecords"] - before
    assert found == [1, 1]
    assert all(20 <= each <= 20 + 5 for each in calls)


def test_the_pause_at_the_tip_counts_from_when_a_page_was_asked_for(
    server: StreamsServer,
    stream: Served,
) -> None:
    """Its reader comes once in the same time, a little early: it waits, and is not sent away."""
    walking = Walking(server, stream, stream.shard())

    def takes_a_while(operation: str, request: object) -> None:
        walking.seconds += 0.2

    walking.step()
    server.before = takes_a_while
    for _ in range(5):
        asked, calls = walking.seconds, server.counts["GetRecords"]
        walking.step(1.0)
        walking.seconds = asked + 1.0 - 0.03
        assert server.counts["GetRecords"] == calls + 1
    walking.step(0.9)
    assert server.counts["GetRecords"] == calls + 1, "no more than 50 ms early"


@pytest.mark.slow
def test_feeds_that_are_made_anew_all_the_time_keep_to_the_limits(server: StreamsServer) -> None:
    """Five tables, with a shard each, on a process that gets a ticket every 50 ms."""
    refused = refusals(server)
    feeds = []
    for number, table in enumerate(("aaa", "bbb", "ccc", "ddd", "eee")):
        stream = server.stream(table)
        shard = [stream.shard() for _ in range(number + 1)][-1]  # with an id of its own
        stream.put(shard, "x", at=server.now)
        feed = DynamodbFeed(settings_of(server, table))
        feeds.append((feed, PartitionId(f"{stream.label}/{shard.id}"), feed.begin()))
    began = time.monotonic()
    while time.monotonic() - began < 3:
        for feed, partition, begun in feeds:
            copy: DynamodbFeed = pickle.loads(pickle.dumps(feed))
            copy.follow(partition, begun[partition]).read(0.01)
    seconds = time.monotonic() - began + 1
    assert refused == []
    assert server.counts["GetRecords"] <= 5 * 5 * seconds
    assert server.counts["ListStreams"] <= LISTS * (seconds + 2)


def refusals(server: StreamsServer) -> list[str]:
    """Which calls the server refused by its limits."""
    found: list[str] = []
    limit = server._limit

    def noted(operation: str, shard: str) -> None:
        try:
            limit(operation, shard)
        except Exception:
            found.append(operation)
            raise

    server._limit = noted  # type: ignore[method-assign]
    return found


@pytest.mark.slow
def test_look_ups_that_are_refused_are_not_repeated_at_once(
    server: StreamsServer, stream: Served
) -> None:
    stream.shard()
    clock = Clock()
    iterator = Stream(DynamodbFeed(settings_of(server)), at="trim_horizon", clock=clock)
    before = server.counts["DescribeStream"]
    server.fail("DescribeStream", "LimitExceededException", times=1000)
    failures = 0
    for _ in range(200):
        clock.now += 0.01
        try:
            next(iterator)
        except Unavailable:
            failures += 1
    assert failures >= 1
    assert server.counts["DescribeStream"] - before <= 10


def test_a_call_that_is_refused_is_made_once(
    server: StreamsServer, stream: Served, shard: Shard
) -> None:
    """botocore repeats nothing; a look-up that the service fails is made three times."""
    server.fail("GetRecords", "LimitExceededException")
    server.fail("ListStreams", "ThrottlingException")
    server.fail("DescribeStream", "InternalServerError", times=3, status=500)
    feed = DynamodbFeed(settings_of(server))
    for _ in range(2):
        with pytest.raises(Unavailable):
            feed.partitions()
    assert (server.counts["ListStreams"], server.counts["DescribeStream"]) == (2, 3)
    walking = Walking(server, stream, shard)
    walking.step()
    assert server.counts["GetRecords"] == 1
    assert walking.status("throttled")
    assert 0.2 < walking.status("details")["next_read_in"] <= 0.5


def test_the_status_of_the_feed_says_that_look_ups_are_refused(
    server: StreamsServer, stream: Served
) -> None:
    stream.shard()
    server.fail("DescribeStream", "LimitExceededException")
    feed = DynamodbFeed(settings_of(server))
    with pytest.raises(Unavailable):
        feed.partitions()
    assert feed.status()["state"] == "throttled"
    feed.partitions()
    assert feed.status()["state"] == ""


def test_a_connection_that_the_service_closed_is_made_again_at_once(
    server: StreamsServer,
    stream: Served,
) -> None:
    stream.shard()
    feed = DynamodbFeed(settings_of(server))
    feed.partitions()
    server.cut()
    feed.partitions()


@pytest.mark.slow
@pytest.mark.parametrize("filters", [True, False], ids=["filter", "no filter"])
def test_the_children_of_a_shard_that_ended_are_found_without_a_whole_listing(
    server: StreamsServer, stream: Served, filters: bool
) -> None:
    """A table of 101 shards, whose whole listing takes two calls; Local knows no filter."""
    server.filters = filters
    server.limits.clear()
    shards = [stream.shard() for _ in range(101)]
    feed, clock = DynamodbFeed(settings_of(server, reads=1000, poll=0.01)), Clock()
    iterator = Stream(feed, at="latest", clock=clock)
    next(iterator)
    clock.now += MORE  # for shards that the first listing left out
    next(iterator)
    server.calls.clear()
    left, right = stream.split(shards[7])
    right.listed_from = server.now + 1
    stream.put(left, "left", at=server.now)
    stream.put(right, "right", at=server.now)
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < 2:
        assert time.monotonic() < deadline
        clock.now += 0.05
        record = next(iterator)
        found += [record["key"]["id"]] if record else []
    assert sorted(found) == ["left", "right"]
    described = [request for name, request in server.calls if name == "DescribeStream"]
    assert {"Type": "CHILD_SHARDS", "ShardId": shards[7].id} in [
        each.get("ShardFilter") for each in described
    ]
    assert [each for each in described if "ShardFilter" not in each] == []
    assert "ListStreams" not in [name for name, _ in server.calls]
