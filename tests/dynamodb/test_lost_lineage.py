"""Whatever a stream loses is told before anything later is handed out, in a pipeline and in the
iterator, and `on_gap: continue` goes on after it. See `streams` for the service's side."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.feeds import Gap
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.client import account_of
from penstock.model.errors import InvalidStream, RecordsExpired
from penstock.model.position import Bookmark, PartitionId
from penstock.reading.reader import PartitionReader
from penstock.stream import Stream
from penstock.wire.dynamodb.records import place_of
from tests.dynamodb import consumers
from tests.dynamodb.consumers import Consumer, Pipeline, some, until
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard, sequence
from tests.dynamodb.streams import Stream as Served
from tests.reading.made import Clock

pytestmark = pytest.mark.slow  # two listings, some seconds apart

DAY = 24 * 3600.0
Kind = Callable[..., Consumer]


@pytest.fixture
def server() -> Iterator[StreamsServer]:
    with StreamsServer() as found:
        yield found


@pytest.fixture(params=[Pipeline, consumers.Iterator])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def opened(kind: Kind) -> Iterator[Kind]:
    made: list[Consumer] = []

    def make(*given: Any) -> Consumer:
        made.append(kind(*given))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def feed_of(server: StreamsServer, on_gap: str = "fail", **given: Any) -> DynamodbFeed:
    return DynamodbFeed(settings_of(server, reads=1000, poll=0.01, on_gap=on_gap, **given))


def put(server: StreamsServer, stream: Served, shard: Shard, *keys: str) -> None:
    for key in keys:
        stream.put(shard, key, at=server.now)


def gone(shard: Shard) -> None:
    """Neither listed nor readable, as a day after it was closed."""
    shard.listed, shard.gone = False, True


def read_and_ended(server: StreamsServer, opened: Kind) -> tuple[Served, Shard, Any]:
    """A stream whose one shard was read to its end, and a position that says so."""
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a")
    consumer = opened(feed_of(server))
    some(consumer, 1)
    shard.closed = True
    until(consumer, lambda: [each["ended"] for each in rows(consumer.saved).values()] == [True])
    saved = consumer.saved
    consumer.stop()
    return stream, shard, saved


def rows(saved: Any) -> dict[str, dict[str, Any]]:
    """Partition -> bookmark as JSON, of either kind of position."""
    found = saved.get("partitions", saved)
    return {
        name: {"ended": False} | (each.to_json() if isinstance(each, Bookmark) else each)
        for name, each in found.items()
    }


def changed(saved: Any, found: dict[str, dict[str, Any]]) -> Any:
    """The position with these bookmarks."""
    if "partitions" in saved:
        return saved | {"partitions": found}
    return {PartitionId(name): Bookmark.from_json(each) for name, each in found.items()}


def fails(consumer: Consumer, cause: str) -> None:
    """It says what is lost, and hands out nothing, then and later."""
    until(consumer, lambda: bool(consumer.lost))
    for _ in range(20):
        consumer.poll()
    assert consumer.keys == []
    assert consumer.causes[:1] == [cause]


def goes_on(consumer: Consumer, *causes: str, keys: list[str]) -> None:
    assert some(consumer, len(keys)) == keys
    assert consumer.causes == list(causes)
    assert consumer.lost == []


def check(server: StreamsServer, opened: Kind, saved: Any, *causes: str, keys: list[str]) -> None:
    """Where the policy is to fail, and where it is to go on."""
    fails(opened(feed_of(server), saved), causes[0])
    goes_on(opened(feed_of(server, "continue"), saved), *causes, keys=keys)


def test_a_child_of_what_has_ended_that_is_gone_is_told(
    server: StreamsServer, opened: Kind
) -> None:
    """Away for more than a day after the shard ended and before its child was known."""
    stream, shard, saved = read_and_ended(server, opened)
    (child,) = stream.split(shard, 1)
    (last,) = stream.split(child, 1)
    put(server, stream, last, "c")
    gone(shard)
    gone(child)
    check(server, opened, saved, "lineage_broken", keys=["c"])


@pytest.mark.parametrize("described", [True, False])
def test_a_stream_that_was_drained_and_replaced_and_is_not_listed_any_more_is_told(
    server: StreamsServer, opened: Kind, described: bool
) -> None:
    old, shard, saved = read_and_ended(server, opened)
    new = server.stream("users")
    put(server, new, new.shard(), "z")
    old.listed = False
    gone(shard)
    if not described:
        del server.streams[old.arn]
    check(server, opened, saved, "stream_replaced", keys=["z"])


def test_a_stream_that_was_not_drained_and_is_gone_is_told_before_its_successor_is_read(
    server: StreamsServer, opened: Kind
) -> None:
    old = server.stream("users")
    shard = old.shard()
    put(server, old, shard, "a")
    consumer = opened(feed_of(server))
    some(consumer, 1)
    saved = consumer.saved
    new = server.stream("users")
    put(server, new, new.shard(), "z")
    del server.streams[old.arn]
    check(server, opened, saved, "stream_gone", "stream_replaced", keys=["z"])


def test_an_old_stream_whose_listing_is_empty_once_is_read_before_its_successor(
    server: StreamsServer, opened: Kind
) -> None:
    old, shard, saved = read_and_ended(server, opened)
    (child,) = old.split(shard, 1)
    put(server, old, child, "b")
    new = server.stream("users")
    put(server, new, new.shard(), "z")
    old.empty = 1
    goes_on(opened(feed_of(server, "continue"), saved), "stream_replaced", keys=["b", "z"])


def test_one_list_of_streams_without_a_stream_is_no_gap(
    server: StreamsServer, opened: Kind
) -> None:
    """Also where the new stream is listed and the old one, which still has records, is not."""
    old = server.stream("users")
    shard = old.shard()
    put(server, old, shard, "a")
    consumer = opened(feed_of(server))
    some(consumer, 1)
    saved = consumer.saved
    put(server, old, shard, "b")
    new = server.stream("users")
    put(server, new, new.shard(), "z")
    old.hidden = 10_000
    goes_on(opened(feed_of(server, "continue"), saved), "stream_replaced", keys=["b", "z"])


def test_what_descends_from_a_lost_shard_is_not_handed_out_where_the_policy_is_to_fail(
    server: StreamsServer, opened: Kind
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a")
    consumer = opened(feed_of(server))
    until(consumer, lambda: len(rows(consumer.saved)) == 1)
    saved = consumer.saved
    put(server, stream, shard, "b")
    (child,) = stream.split(shard, 1)
    (last,) = stream.split(child, 1)
    put(server, stream, last, "d")
    gone(shard)
    gone(child)
    check(server, opened, saved, "shard_gone", "lineage_broken", keys=["d"])


def aged(saved: Any, seconds: float = 2 * DAY) -> Any:
    """The position as if it had been saved so much earlier."""
    found = rows(saved)
    for each in found.values():
        mark = each.get("mark") or {}
        for name in mark.keys() & {"asked", "read", "from", "created"}:
            if isinstance(mark[name], int | float):
                mark[name] -= seconds
    return changed(saved, found)


def test_a_position_of_a_first_start_that_is_older_than_a_day_is_told(
    server: StreamsServer, opened: Kind
) -> None:
    """The process died at once; the shard, and its child, came and went meanwhile."""
    stream = server.stream("users")
    shard = stream.shard()
    consumer = opened(feed_of(server))
    consumer.poll()
    saved = aged(consumer.saved)
    (child,) = stream.split(shard, 1)
    (last,) = stream.split(child, 1)
    put(server, stream, last, "c")
    gone(shard)
    gone(child)
    fails(opened(feed_of(server), saved), "trimmed")
    assert some(opened(feed_of(server, "continue"), saved), 1) == ["c"]


def test_a_bookmark_without_a_place_that_is_older_than_a_day_and_a_shard_that_is_gone(
    server: StreamsServer, opened: Kind
) -> None:
    """Two causes, one after the other: an idle shard after a weekend, which has ended meanwhile."""
    stream = server.stream("users")
    shard = stream.shard()
    consumer = opened(feed_of(server))
    consumer.poll()
    until(consumer, lambda: len(rows(consumer.saved)) == 1)
    saved = aged(consumer.saved)
    (child,) = stream.split(shard, 1)
    put(server, stream, child, "b")
    gone(shard)
    check(server, opened, saved, "trimmed", "shard_gone", keys=["b"])


def test_a_bookmark_without_a_place_that_is_older_than_a_day_goes_on_in_its_shard(
    server: StreamsServer, opened: Kind
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    consumer = opened(feed_of(server))
    consumer.poll()
    until(consumer, lambda: len(rows(consumer.saved)) == 1)
    saved = aged(consumer.saved)
    put(server, stream, shard, "b")
    check(server, opened, saved, "trimmed", keys=["b"])


def test_the_first_bookmark_of_a_replaced_stream_whose_shard_is_gone(
    server: StreamsServer, opened: Kind
) -> None:
    _, _, saved = read_and_ended(server, opened)
    new = server.stream("users")
    root = new.shard()
    put(server, new, root, "lost")
    (child,) = new.split(root, 1)
    put(server, new, child, "z")
    root.gone = True
    check(server, opened, saved, "stream_replaced", "shard_gone", keys=["z"])


def test_trim_horizon_begins_although_a_listed_root_cannot_be_read(
    server: StreamsServer, opened: Kind
) -> None:
    """DynamoDB Local lists a shard, and does not read it, from 24 to 29 hours after its end."""
    stream = server.stream("users")
    root = stream.shard()
    put(server, stream, root, "old")
    (child,) = stream.split(root, 1)
    put(server, stream, child, "b")
    root.gone = True
    goes_on(opened(feed_of(server)), keys=["b"])


def test_moving_to_the_horizon_as_an_error_advises_begins_anew(server: StreamsServer) -> None:
    stream = server.stream("users")
    root = stream.shard()
    put(server, stream, root, "a", "b")
    consumer = consumers.Iterator(feed_of(server))
    until(consumer, lambda: consumer.keys == ["a"])
    saved = consumer.saved
    (child,) = stream.split(root, 1)
    put(server, stream, child, "c")
    root.gone = True
    again = consumers.Iterator(feed_of(server), saved)
    until(again, lambda: bool(again.lost))
    assert isinstance(again.lost[0], RecordsExpired)
    assert "move_to" in again.lost[0].hint
    again.stream.move_to("trim_horizon")
    again.lost.clear()
    goes_on(again, keys=["c"])


@pytest.mark.parametrize("operation", ["GetShardIterator", "GetRecords"])
def test_one_call_that_does_not_find_a_shard_loses_nothing(
    server: StreamsServer, opened: Kind, operation: str
) -> None:
    stream = server.stream("users")
    root = stream.shard()
    put(server, stream, root, "a")
    (child,) = stream.split(root, 1)
    put(server, stream, child, "b")
    server.fail(operation, "ResourceNotFoundException", shard=root.id)
    goes_on(opened(feed_of(server)), keys=["a", "b"])


@pytest.mark.parametrize("at", ["latest", "time"])
def test_a_shard_that_the_first_listing_left_out_begins_where_the_others_do(
    server: StreamsServer, at: str
) -> None:
    stream = server.stream("users")
    shard, other = stream.shard(), stream.shard()
    ended = stream.shard(Shard("shardId-before"))
    for each in (shard, other, ended):
        stream.put(each, "before", at=server.now - 7200)
    ended.closed = True
    position: Any = "latest"
    if at == "time":
        position = datetime.fromtimestamp(server.now - 3600, UTC)
    other.hidden = ended.hidden = 1 if at == "latest" else 2
    iterator = consumers.Iterator(feed_of(server), position)
    stream.put(shard, "a", at=server.now + 1)
    stream.put(other, "b", at=server.now + 1)
    until(iterator, lambda: len(iterator.keys) == 2)
    for _ in range(20):
        iterator.poll()
    assert (sorted(iterator.keys), iterator.lost) == (["a", "b"], [])


def test_the_horizon_reads_a_parent_that_the_first_listing_left_out_before_its_child(
    server: StreamsServer, opened: Kind
) -> None:
    stream = server.stream("users")
    parent = stream.shard()
    put(server, stream, parent, "a")
    (child,) = stream.split(parent, 1)
    put(server, stream, child, "b")
    parent.hidden = 1
    goes_on(opened(feed_of(server)), keys=["a", "b"])


def test_children_that_are_listed_at_different_times_are_read_within_two_seconds(
    server: StreamsServer, opened: Kind
) -> None:
    """Tables roll all their shards at about the same time."""
    clock = Clock()

    def ticking(keys: int) -> bool:
        clock.now += 0.5
        return len(consumer.keys) >= keys

    stream = server.stream("users")
    roots = [stream.shard(), stream.shard()]
    put(server, stream, roots[0], "a")
    consumer = opened(feed_of(server), None, clock)
    until(consumer, lambda: ticking(1))
    first, second = (child for root in roots for child in stream.split(root, 1))
    second.listed = False
    put(server, stream, first, "b")
    put(server, stream, second, "c")
    until(consumer, lambda: ticking(2))
    quiet = clock.now + 10.0  # other look-ups pass
    until(consumer, lambda: ticking(2) and clock.now >= quiet)
    second.listed = True
    clock.now += 2.0
    until(consumer, lambda: len(consumer.keys) == 3)  # the clock stands still
    assert consumer.keys == ["a", "b", "c"]


def test_a_token_of_another_table_is_refused_at_once(server: StreamsServer) -> None:
    for table in ("users", "orders"):
        stream = server.stream(table)
        put(server, stream, stream.shard(), "a", "z")
    users = consumers.Iterator(feed_of(server))
    fresh = users.saved
    some(users, 1)
    for token in (fresh, users.saved):
        assert ":table/users/stream/" in token["history"]
        with pytest.raises(InvalidStream, match="users") as error:
            Stream(feed_of(server, table="orders"), at=token)
        assert "trim_horizon" in error.value.hint
    orders = consumers.Iterator(feed_of(server, table="orders"))
    some(orders, 1)
    before = orders.saved
    with pytest.raises(InvalidStream):
        orders.stream.move_to(users.saved)
    assert orders.saved == before
    with pytest.raises(InvalidStream):
        feed_of(server, table="orders", start=users.saved).begin()


def test_a_token_without_its_stream_goes_on_in_its_table_and_expires_in_another(
    server: StreamsServer,
) -> None:
    users = server.stream("users")
    put(server, users, users.shard(), "a")
    iterator = consumers.Iterator(feed_of(server))
    some(iterator, 1)
    token = iterator.saved
    del token["history"]
    put(server, users, next(iter(users.shards.values())), "b")
    goes_on(consumers.Iterator(feed_of(server), token), keys=["b"])
    orders = server.stream("orders")
    put(server, orders, orders.shard(), "z")
    fails(consumers.Iterator(feed_of(server, table="orders"), token), "stream_gone")


def test_the_stream_of_a_table_that_was_deleted_is_read_on_by_its_arn(
    server: StreamsServer, opened: Kind
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a")
    consumer = opened(feed_of(server))
    some(consumer, 1)
    saved = consumer.saved
    put(server, stream, shard, "b")
    stream.disable()
    stream.listed = False
    assert some(consumer, 2) == ["a", "b"]
    assert consumer.lost == []
    again = opened(feed_of(server, table="", stream=stream.arn), saved)
    goes_on(again, keys=["b"])


def test_a_sequence_number_beyond_the_last_record_is_no_gap_at_the_end_of_a_shard(
    server: StreamsServer, opened: Kind
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a")
    consumer = opened(feed_of(server))
    some(consumer, 1)
    saved = consumer.saved
    (child,) = stream.split(shard, 1)
    shard.last = shard.sequences[-1] + 5
    put(server, stream, child, "b")
    goes_on(opened(feed_of(server), saved), keys=["b"])


class Recorder:
    """A `GapRecorder`."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def verify(self, partition: PartitionId) -> None:
        pass

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        self.found.append((gap.cause, to))


def test_the_end_of_a_gap_is_known_when_empty_pages_come_first(server: StreamsServer) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a", "b", "c", "d")
    stream.trim(shard, 2)
    shard.pages = [0, 0, 0]
    recorder = Recorder()
    place = place_of(sequence(shard.sequences[0]))
    reader = PartitionReader(
        feed_of(server, "continue"),
        PartitionId(f"{stream.label}/{shard.id}"),
        Bookmark(place, {}),
        recorder,
    )
    deadline = time.monotonic() + 60
    while not reader.step(0.05).pages:
        assert time.monotonic() < deadline
    assert recorder.found == [("trimmed", ""), ("trimmed", sequence(shard.sequences[2]))]


@pytest.mark.parametrize("gone", [False, True])
def test_a_gap_that_no_record_comes_after_has_an_end(server: StreamsServer, gone: bool) -> None:
    """An idle shard, whose pages stay empty; or one that is not there any more."""
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a", "b")
    stream.trim(shard, 2)
    if gone:
        stream.split(shard)
        shard.gone = True
    recorder = Recorder()
    reader = PartitionReader(
        feed_of(server, "resnapshot"),
        PartitionId(f"{stream.label}/{shard.id}"),
        Bookmark(place_of(sequence(shard.sequences[0])), {}),
        recorder,
    )
    deadline = time.monotonic() + 60
    while not recorder.found or not recorder.found[-1][1]:
        assert time.monotonic() < deadline
        assert not reader.step(0.05).pages
    (cause, first), (_, end) = recorder.found
    assert (cause, first) == ("shard_gone" if gone else "trimmed", "")
    moment = datetime.fromisoformat(end.removeprefix("end at " if gone else "tip at "))
    assert abs(moment.timestamp() - server.now) < 60


@pytest.mark.parametrize("policy", ["fail", "continue", "resnapshot"])
@pytest.mark.parametrize("operation", ["GetShardIterator", "GetRecords"])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("code", ["ResourceNotFoundException", "TrimmedDataAccessException"])
def test_one_answer_that_a_shard_is_not_there_loses_and_ends_nothing(
    server: StreamsServer, opened: Kind, policy: str, operation: str, is_open: bool, code: str
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a")
    consumer = opened(feed_of(server, policy))
    some(consumer, 1)
    saved = consumer.saved
    consumer.stop()
    put(server, stream, shard, "b")
    shard.closed = not is_open
    server.fail(operation, code, shard=shard.id)
    again = opened(feed_of(server, policy), saved)
    assert some(again, 1) == ["b"]
    if is_open:
        put(server, stream, shard, "c")
        assert some(again, 2) == ["b", "c"]
    assert (again.causes, again.lost) == ([], [])


@pytest.mark.parametrize("policy", ["fail", "continue", "resnapshot"])
def test_a_shard_that_is_listed_and_open_is_not_gone_whatever_reading_it_answers(
    server: StreamsServer, opened: Kind, policy: str
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a")
    consumer = opened(feed_of(server, policy))
    some(consumer, 1)
    shard.gone = True
    calls = server.counts["GetShardIterator"]
    until(consumer, lambda: server.counts["GetShardIterator"] > calls + 8)
    shard.gone = False
    put(server, stream, shard, "b")
    assert some(consumer, 2) == ["a", "b"]
    assert (consumer.causes, consumer.lost) == ([], [])


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_one_answer_that_a_stream_is_not_there_loses_nothing(
    server: StreamsServer, opened: Kind, policy: str
) -> None:
    old = server.stream("users")
    shard = old.shard()
    put(server, old, shard, "a")
    consumer = opened(feed_of(server, policy))
    some(consumer, 1)
    saved = consumer.saved
    put(server, old, shard, "b")
    old.disable()
    old.listed = False
    new = server.stream("users")
    new.shard()
    account_of(settings_of(server)).arns.clear()  # a process that knows nothing
    server.fail("DescribeStream", "ResourceNotFoundException", times=2)
    again = opened(feed_of(server, policy), saved)
    assert some(again, 1) == ["b"]
    assert "stream_gone" not in again.causes


def test_the_check_of_a_saved_position_that_could_not_be_read_does_not_say_ok(
    server: StreamsServer,
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a", "b")
    stream.trim(shard, 1)
    partition = PartitionId(f"{stream.label}/{shard.id}")
    server.fail("GetRecords", "LimitExceededException")
    feed = feed_of(server)
    saved = Bookmark(place_of(sequence(shard.sequences[1])), {})
    [found] = feed.check_bookmark(partition, saved)
    assert (found.level, "calls" in found.message) == ("warning", True)
    server.fail("GetRecords", "ExpiredIteratorException")
    [found] = feed.check_bookmark(partition, saved)
    assert found.level == "ok"
    server.trims_at = "GetRecords"
    stream.trim(shard, 2)
    server.fail("GetRecords", "ExpiredIteratorException")
    lost = Bookmark(place_of(sequence(shard.sequences[0])), {})
    [found] = feed.check_bookmark(partition, lost)
    assert (found.level, "older" in found.message) == ("error", True)


@pytest.mark.parametrize("how", ["empty", "not found"])
def test_a_token_is_read_on_where_no_stream_is_listed(server: StreamsServer, how: str) -> None:
    """Of a table that was deleted; in a process that knows of no stream."""
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a", "b")
    iterator = consumers.Iterator(feed_of(server))
    until(iterator, lambda: iterator.keys == ["a"])
    saved = iterator.saved
    stream.disable()
    if how == "empty":
        stream.listed = False
    else:
        server.fail("ListStreams", "ResourceNotFoundException", times=100_000)
    assert some(iterator, 2) == ["a", "b"]
    account_of(settings_of(server)).arns.clear()
    goes_on(consumers.Iterator(feed_of(server), saved), keys=["b"])


def test_positions_are_read_on_where_no_stream_is_listed_and_the_table_names_one(
    server: StreamsServer,
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    put(server, stream, shard, "a")
    pipeline = Pipeline(feed_of(server))
    some(pipeline, 1)
    saved = pipeline.saved
    pipeline.stop()
    put(server, stream, shard, "b")
    stream.listed = False
    account_of(settings_of(server)).arns.clear()
    goes_on(again := Pipeline(feed_of(server), saved), keys=["b"])
    again.stop()


def test_the_streams_of_other_tables_that_are_listed_are_not_this_tables(
    server: StreamsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As LocalStack once listed those of all tables."""
    users = server.stream("users")
    put(server, users, users.shard(), "a")
    others = server.stream("orders")
    put(server, others, others.shard(), "z")
    listing = server._list
    monkeypatch.setattr(server, "_list", lambda request: listing({}))
    goes_on(consumers.Iterator(feed_of(server)), keys=["a"])


def rolled(server: StreamsServer, *ages: float) -> tuple[Served, list[Shard]]:
    """One shard after the other, each with a record of so many hours ago."""
    stream = server.stream("users")
    shards = [stream.shard()]
    for number, hours in enumerate(ages):
        stream.put(shards[-1], f"r{number}", at=server.now - hours * 3600)
        if number < len(ages) - 1:
            shards += stream.split(shards[-1], 1)
    return stream, shards


@pytest.mark.parametrize("hours", [1, 5, 12])
@pytest.mark.parametrize("at", ["trim_horizon", "time"])
def test_a_run_that_ends_at_the_end_of_a_first_shard_tells_what_is_lost_hours_later(
    server: StreamsServer, opened: Kind, hours: float, at: str
) -> None:
    """Within two seconds of its start: a job, or a slow consumer."""
    ages = (23.4, 19.4, 15.4, 11.4, 7.4, 3.4)
    _, shards = rolled(server, *ages)
    given = {}
    if at == "time":
        given["start"] = datetime.fromtimestamp(server.now - 23.5 * 3600, UTC).isoformat()
    clock = Clock()  # stands still
    consumer = opened(feed_of(server, **given), None, clock)
    until(consumer, lambda: bool(consumer.keys) and any(
        each["ended"] for name, each in rows(consumer.saved).items() if not name.endswith("/start")
    ))  # fmt: skip
    saved = consumer.saved
    consumer.stop()
    server.advance(hours * 3600)
    for shard, age in zip(shards, ages, strict=True):
        if age + hours > 24:
            gone(shard)
    again = opened(feed_of(server), saved)
    until(again, lambda: bool(again.lost))
    assert again.keys == []


def test_a_first_start_reads_on_where_its_oldest_records_are_a_little_over_a_day_old(
    server: StreamsServer, opened: Kind
) -> None:
    """The service trims records that are older than a day, but not at once."""
    rolled(server, 24.2, 24.1, 23.999, 20, 1)
    consumer = opened(feed_of(server))
    assert some(consumer, 5) == [f"r{n}" for n in range(5)]
    saved = consumer.saved
    consumer.stop()
    goes_on(opened(feed_of(server), saved), keys=[])


def test_a_start_at_a_time_almost_a_day_ago_reads_on(server: StreamsServer) -> None:
    rolled(server, 23.9, 20)
    at = datetime.fromtimestamp(server.now - DAY + 1, UTC)
    iterator = consumers.Iterator(feed_of(server), at)
    time.sleep(1.1)
    goes_on(iterator, keys=["r0", "r1"])


def test_the_backlog_of_a_first_start_that_is_left_for_hours_is_told(
    server: StreamsServer, opened: Kind
) -> None:
    _, shards = rolled(server, 24.1, 23.8, 1)
    consumer = opened(feed_of(server), None, Clock())
    until(consumer, lambda: consumer.keys == ["r0"])
    saved = consumer.saved
    consumer.stop()
    server.advance(3600)
    for shard in shards[:2]:
        gone(shard)
    again = opened(feed_of(server), saved)
    until(again, lambda: bool(again.lost))
    assert again.keys == []


def test_a_parent_that_is_listed_a_second_after_its_child_comes_first(
    server: StreamsServer, opened: Kind
) -> None:
    stream = server.stream("users")
    parent = stream.shard()
    put(server, stream, parent, "a")
    (child,) = stream.split(parent, 1)
    put(server, stream, child, "b")
    parent.listed_from = server.now + 1
    consumer = opened(feed_of(server), None, time.monotonic)
    goes_on(consumer, keys=["a", "b"])
