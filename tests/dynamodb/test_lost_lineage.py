"""Whatever a stream loses is reported before anything later is handed out, and `on_gap: continue`
goes on after it. These are the cases that only DynamoDB has: what holds for any lineage is in
`tests/reading`. See `streams` for the service's side."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.feeds import Gap
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.client import account_of
from penstock.model.errors import InvalidStream
from penstock.model.position import Bookmark, PartitionId
from penstock.reading.reader import PartitionReader
from penstock.stream import Stream
from penstock.wire.dynamodb.decoder import place_of
from tests.dynamodb.consumers import Iterator as Consumer
from tests.dynamodb.consumers import some, until
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard, sequence
from tests.dynamodb.streams import Stream as Served
from tests.waiting import Clock

pytestmark = pytest.mark.slow  # two listings, some seconds apart

DAY = 24 * 3600.0


class Table:
    """A table whose stream has one shard, and iterators that read it."""

    def __init__(self, server: StreamsServer) -> None:
        self.server = server
        self.stream = server.stream("users")
        self.shard = self.stream.shard()
        self.made: list[Consumer] = []

    def put(self, shard: Shard, *keys: str, stream: Served | None = None) -> None:
        for key in keys:
            (stream or self.stream).put(shard, key, at=self.server.now)

    def child(self, shard: Shard, *keys: str) -> Shard:
        """Ends a shard; its one child, with these records."""
        (child,) = self.stream.split(shard, 1)
        self.put(child, *keys)
        return child

    def replaced(self, *keys: str) -> tuple[Served, Shard]:
        """The stream was enabled again: another one, whose shard has these records."""
        new = self.server.stream("users")
        shard = new.shard()
        self.put(shard, *keys, stream=new)
        return new, shard

    def feed(self, on_gap: str = "fail", **given: Any) -> DynamodbFeed:
        given = {"reads": 1000, "poll": 0.01, "on_gap": on_gap, **given}
        return DynamodbFeed(settings_of(self.server, **given))

    def opened(self, *saved: Any, on_gap: str = "fail", **given: Any) -> Consumer:
        """One that resumes from there, or begins; a clock may follow."""
        self.made.append(Consumer(self.feed(on_gap, **given), *saved))
        return self.made[-1]

    def read(self, *keys: str, ended: bool = False) -> Any:
        """Writes and reads these records, if any, and the shard's end; what was saved then."""
        self.put(self.shard, *keys)
        consumer = self.opened()
        some(consumer, len(keys))
        if ended:
            self.shard.closed = True
            until(consumer, lambda: [e["ended"] for e in rows(consumer.saved).values()] == [True])
        else:
            until(consumer, lambda: len(rows(consumer.saved)) == 1)
        saved = consumer.saved
        consumer.stop()
        return saved

    def check(self, saved: Any, *causes: str, keys: list[str]) -> None:
        """Where the policy is to fail, and where it is to go on."""
        fails(self.opened(saved), causes[0])
        goes_on(self.opened(saved, on_gap="continue"), *causes, keys=keys)


@pytest.fixture
def server() -> Iterator[StreamsServer]:
    with StreamsServer() as found:
        yield found


@pytest.fixture
def table(server: StreamsServer) -> Iterator[Table]:
    found = Table(server)
    yield found
    for each in found.made:
        each.stop()


def gone(*shards: Shard) -> None:
    """Neither listed nor readable, as a day after they were closed."""
    for shard in shards:
        shard.listed, shard.gone = False, True


def rows(saved: Any) -> dict[str, dict[str, Any]]:
    """Partition -> bookmark as JSON."""
    return {name: {"ended": False} | each for name, each in saved["partitions"].items()}


def fails(consumer: Consumer, cause: str) -> None:
    """It reports what is lost, and hands out nothing, then and later."""
    until(consumer, lambda: bool(consumer.lost))
    for _ in range(20):
        consumer.poll()
    assert consumer.keys == []
    assert consumer.causes[:1] == [cause]


def goes_on(consumer: Consumer, *causes: str, keys: list[str]) -> None:
    assert some(consumer, len(keys)) == keys
    assert consumer.causes == list(causes)
    assert consumer.lost == []


def test_a_child_of_what_has_ended_that_is_gone_is_reported(table: Table) -> None:
    """Away for more than a day after the shard ended and before its child was known."""
    saved = table.read("a", ended=True)
    child = table.child(table.shard)
    table.child(child, "c")
    gone(table.shard, child)
    table.check(saved, "lineage_broken", keys=["c"])


@pytest.mark.parametrize("described", [True, False])
def test_a_stream_that_was_drained_and_replaced_and_is_not_listed_any_more_is_reported(
    table: Table, described: bool
) -> None:
    saved = table.read("a", ended=True)
    table.replaced("z")
    table.stream.listed = False
    gone(table.shard)
    if not described:
        del table.server.streams[table.stream.arn]
    table.check(saved, "stream_replaced", keys=["z"])


def test_a_stream_that_was_not_drained_and_is_gone_is_reported_before_its_successor_is_read(
    table: Table,
) -> None:
    saved = table.read("a")
    table.replaced("z")
    del table.server.streams[table.stream.arn]
    table.check(saved, "stream_gone", "stream_replaced", keys=["z"])


@pytest.mark.parametrize("answer", ["no shards", "no stream"])
def test_an_old_stream_that_an_answer_leaves_out_is_read_before_its_successor(
    table: Table, answer: str
) -> None:
    if answer == "no shards":
        saved = table.read("a", ended=True)
        table.child(table.shard, "b")
        table.stream.empty = 1
    else:
        saved = table.read("a")
        table.put(table.shard, "b")
        table.stream.hidden = 10_000
    table.replaced("z")
    again = table.opened(saved, on_gap="continue")
    goes_on(again, "stream_replaced", keys=["b", "z"])


def test_the_first_bookmark_of_a_replaced_stream_whose_shard_is_gone(table: Table) -> None:
    saved = table.read("a", ended=True)
    table.stream, root = table.replaced("lost")
    table.child(root, "z")
    root.gone = True
    table.check(saved, "stream_replaced", "shard_gone", keys=["z"])


def test_trim_horizon_begins_although_a_listed_root_cannot_be_read(table: Table) -> None:
    """As between 24 and 29 hours after a shard ended on one server (`Shard.gone`)."""
    table.put(table.shard, "old")
    table.child(table.shard, "b")
    table.shard.gone = True
    goes_on(table.opened(), keys=["b"])


@pytest.mark.parametrize("operation", ["GetShardIterator", "GetRecords"])
def test_one_call_that_does_not_find_a_shard_loses_nothing(table: Table, operation: str) -> None:
    table.put(table.shard, "a")
    table.child(table.shard, "b")
    table.server.fail(operation, "ResourceNotFoundException", shard=table.shard.id)
    goes_on(table.opened(), keys=["a", "b"])


@pytest.mark.parametrize("operation", ["GetShardIterator", "GetRecords"])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("code", ["ResourceNotFoundException", "TrimmedDataAccessException"])
def test_one_answer_that_a_shard_is_not_there_loses_and_ends_nothing(
    table: Table, operation: str, is_open: bool, code: str
) -> None:
    saved = table.read("a")
    table.put(table.shard, "b")
    table.shard.closed = not is_open
    table.server.fail(operation, code, shard=table.shard.id)
    again = table.opened(saved)
    assert some(again, 1) == ["b"]
    if is_open:
        table.put(table.shard, "c")
        assert some(again, 2) == ["b", "c"]
    assert (again.causes, again.lost) == ([], [])


@pytest.mark.parametrize("on_gap", ["fail", "continue"])
def test_a_shard_that_is_listed_and_open_is_not_gone_whatever_reading_it_answers(
    table: Table, on_gap: str
) -> None:
    table.put(table.shard, "a")
    consumer = table.opened(on_gap=on_gap)
    some(consumer, 1)
    table.shard.gone = True
    calls = table.server.counts["GetShardIterator"]
    until(consumer, lambda: table.server.counts["GetShardIterator"] > calls + 4)
    table.shard.gone = False
    table.put(table.shard, "b")
    goes_on(consumer, keys=["a", "b"])


def test_one_answer_that_a_stream_is_not_there_loses_nothing(table: Table) -> None:
    saved = table.read("a")
    table.put(table.shard, "b")
    table.stream.disable()
    table.stream.listed = False
    table.replaced()
    account_of(table.feed().settings).arns.clear()  # a process that knows nothing
    table.server.fail("DescribeStream", "ResourceNotFoundException", times=2)
    again = table.opened(saved, on_gap="continue")
    assert some(again, 1) == ["b"]
    assert "stream_gone" not in again.causes


@pytest.mark.parametrize("at", ["latest", "time"])
def test_a_shard_that_the_first_listing_left_out_begins_where_the_others_do(
    table: Table, at: str
) -> None:
    server, stream, shard = table.server, table.stream, table.shard
    other, ended = stream.shard(), stream.shard(Shard("shardId-before"))
    for each in (shard, other, ended):
        stream.put(each, "before", at=server.now - 7200)
    ended.closed = True
    position: Any = "latest"
    if at == "time":
        position = datetime.fromtimestamp(server.now - 3600, UTC)
    other.hidden = ended.hidden = 1 if at == "latest" else 2
    iterator = table.opened(position)
    stream.put(shard, "a", at=server.now + 1)
    stream.put(other, "b", at=server.now + 1)
    until(iterator, lambda: len(iterator.keys) == 2)
    for _ in range(20):
        iterator.poll()
    assert (sorted(iterator.keys), iterator.lost) == (["a", "b"], [])


def test_the_horizon_reads_a_parent_that_the_first_listing_left_out_before_its_child(
    table: Table,
) -> None:
    table.put(table.shard, "a")
    table.child(table.shard, "b")
    table.shard.hidden = 1
    goes_on(table.opened(), keys=["a", "b"])


def test_a_token_of_another_table_is_refused_at_once(table: Table) -> None:
    table.put(table.shard, "a", "z")
    orders = table.server.stream("orders")
    table.put(orders.shard(), "a", "z", stream=orders)
    users = table.opened()
    fresh = users.saved
    some(users, 1)
    for token in (fresh, users.saved):
        assert ":table/users/stream/" in token["history"]
        with pytest.raises(InvalidStream, match="users") as error:
            Stream(table.feed(table="orders"), at=token)
        assert "trim_horizon" in error.value.hint
    other: Any = table.opened(table="orders")
    some(other, 1)
    before = other.saved
    with pytest.raises(InvalidStream):
        other.stream.move_to(users.saved)
    assert other.saved == before
    with pytest.raises(InvalidStream):
        table.feed(table="orders", start=users.saved).begin()


def test_a_token_without_its_stream_goes_on_in_its_table_and_expires_in_another(
    table: Table,
) -> None:
    token = table.read("a")
    del token["history"]
    table.put(table.shard, "b")
    goes_on(table.opened(token), keys=["b"])
    orders = table.server.stream("orders")
    table.put(orders.shard(), "z", stream=orders)
    fails(table.opened(token, table="orders"), "stream_gone")


def test_the_stream_of_a_table_that_was_deleted_is_read_on_by_its_arn(table: Table) -> None:
    table.put(table.shard, "a")
    consumer = table.opened()
    some(consumer, 1)
    saved = consumer.saved
    table.put(table.shard, "b")
    table.stream.disable()
    table.stream.listed = False
    goes_on(consumer, keys=["a", "b"])
    goes_on(table.opened(saved, table="", stream=table.stream.arn), keys=["b"])


@pytest.mark.parametrize("how", ["empty", "not found"])
def test_a_token_is_read_on_where_no_stream_is_listed(table: Table, how: str) -> None:
    """Of a table that was deleted; in a process that knows of no stream."""
    table.put(table.shard, "a", "b")
    iterator = table.opened()
    until(iterator, lambda: iterator.keys == ["a"])
    saved = iterator.saved
    table.stream.disable()
    if how == "empty":
        table.stream.listed = False
    else:
        table.server.fail("ListStreams", "ResourceNotFoundException", times=100_000)
    assert some(iterator, 2) == ["a", "b"]
    account_of(table.feed().settings).arns.clear()
    goes_on(table.opened(saved), keys=["b"])


def test_a_token_without_its_stream_is_read_on_where_the_table_alone_names_one(
    table: Table,
) -> None:
    saved = table.read("a")
    del saved["history"]
    table.put(table.shard, "b")
    table.stream.listed = False
    account_of(table.feed().settings).arns.clear()
    goes_on(table.opened(saved), keys=["b"])


def test_the_streams_of_other_tables_that_are_listed_are_not_this_tables(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As LocalStack once listed those of all tables."""
    table.put(table.shard, "a")
    others = table.server.stream("orders")
    table.put(others.shard(), "z", stream=others)
    listing = table.server._list
    monkeypatch.setattr(table.server, "_list", lambda request: listing({}))
    goes_on(table.opened(), keys=["a"])


def test_a_sequence_number_beyond_the_last_record_is_no_gap_at_the_end_of_a_shard(
    table: Table,
) -> None:
    saved = table.read("a")
    table.child(table.shard, "b")
    table.shard.last = table.shard.sequences[-1] + 5
    goes_on(table.opened(saved), keys=["b"])


class Recorder:
    """A `GapRecorder`."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def verify(self, partition: PartitionId) -> None:
        pass

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        self.found.append((gap.cause, to))


def reader_of(table: Table, recorder: Recorder, on_gap: str) -> PartitionReader:
    """After the shard's first record."""
    saved = Bookmark(place_of(sequence(table.shard.sequences[0])), {})
    return PartitionReader(table.feed(on_gap), partition_of(table), saved, recorder)


def partition_of(table: Table) -> PartitionId:
    return PartitionId(f"{table.stream.label}/{table.shard.id}")


def test_the_end_of_a_gap_is_known_when_empty_pages_come_first(table: Table) -> None:
    shard, recorder = table.shard, Recorder()
    table.put(shard, "a", "b", "c", "d")
    table.stream.trim(shard, 2)
    shard.pages = [0, 0, 0]
    reader = reader_of(table, recorder, "continue")
    deadline = time.monotonic() + 60
    while not reader.step(0.05).pages:
        assert time.monotonic() < deadline
    assert recorder.found == [("trimmed", ""), ("trimmed", sequence(shard.sequences[2]))]


@pytest.mark.parametrize("gone", [False, True])
def test_a_gap_that_no_record_comes_after_has_an_end(table: Table, gone: bool) -> None:
    """An idle shard, whose pages stay empty; or one that is not there any more."""
    shard, recorder = table.shard, Recorder()
    table.put(shard, "a", "b")
    table.stream.trim(shard, 2)
    if gone:
        table.stream.split(shard)
        shard.gone = True
    reader = reader_of(table, recorder, "resnapshot")
    deadline = time.monotonic() + 60
    while not recorder.found or not recorder.found[-1][1]:
        assert time.monotonic() < deadline
        assert not reader.step(0.05).pages
    (cause, first), (_, end) = recorder.found
    assert (cause, first) == ("shard_gone" if gone else "trimmed", "")
    moment = datetime.fromisoformat(end.removeprefix("end at " if gone else "tip at "))
    assert abs(moment.timestamp() - table.server.now) < 60


def rolled(table: Table, *ages: float) -> list[Shard]:
    """One shard after the other, each with a record of so many hours ago."""
    shards = [table.shard]
    for number, hours in enumerate(ages):
        table.stream.put(shards[-1], f"r{number}", at=table.server.now - hours * 3600)
        if number < len(ages) - 1:
            shards += table.stream.split(shards[-1], 1)
    return shards


@pytest.mark.parametrize("at", ["trim_horizon", "time"])
def test_a_run_that_ends_at_the_end_of_a_first_shard_reports_what_is_lost_hours_later(
    table: Table, at: str
) -> None:
    """Within two seconds of its start: a job, or a slow consumer."""
    ages, hours = (23.4, 19.4, 15.4, 11.4, 7.4, 3.4), 5
    shards = rolled(table, *ages)
    given = {}
    if at == "time":
        moment = datetime.fromtimestamp(table.server.now - 23.5 * 3600, UTC)
        given["start"] = moment.isoformat()
    consumer = table.opened(None, Clock(), **given)  # the clock stands still
    until(consumer, lambda: bool(consumer.keys) and any(
        each["ended"] for name, each in rows(consumer.saved).items() if not name.endswith("/start")
    ))  # fmt: skip
    saved = consumer.saved
    consumer.stop()
    table.server.advance(hours * 3600)
    gone(*(shard for shard, age in zip(shards, ages, strict=True) if age + hours > 24))
    again = table.opened(saved)
    until(again, lambda: bool(again.lost))
    assert again.keys == []


def test_a_first_start_reads_on_where_its_oldest_records_are_a_little_over_a_day_old(
    table: Table,
) -> None:
    """The service trims records that are older than a day, but not at once."""
    rolled(table, 24.2, 24.1, 23.999, 20, 1)
    consumer = table.opened()
    assert some(consumer, 5) == [f"r{n}" for n in range(5)]
    saved = consumer.saved
    consumer.stop()
    goes_on(table.opened(saved), keys=[])


def test_a_start_at_a_time_almost_a_day_ago_reads_on(table: Table) -> None:
    rolled(table, 23.9, 20)
    iterator = table.opened(datetime.fromtimestamp(table.server.now - DAY + 1, UTC))
    time.sleep(1.1)
    goes_on(iterator, keys=["r0", "r1"])


def test_the_backlog_of_a_first_start_that_is_left_for_hours_is_reported(table: Table) -> None:
    shards = rolled(table, 24.1, 23.8, 1)
    consumer = table.opened(None, Clock())
    until(consumer, lambda: consumer.keys == ["r0"])
    saved = consumer.saved
    consumer.stop()
    table.server.advance(3600)
    gone(*shards[:2])
    again = table.opened(saved)
    until(again, lambda: bool(again.lost))
    assert again.keys == []
