"""The iterator on scripted shards: order, costs, tokens, positions, errors."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

import penstock
from penstock.feeds import Gap, HistoryLost, NativeRecord
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.model.errors import (
    InvalidPosition,
    Malformed,
    PositionLost,
    RecordsExpired,
    SettingsError,
    Unavailable,
)
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId
from penstock.reading.gaps import GapLog
from penstock.reading.passed_gaps import CONFIRMED
from penstock.reading.reader import PartitionReader
from penstock.stream import Stream
from penstock.stream.coordinator import LISTING
from penstock.stream.records import record_reader
from penstock.stream.shard import Shard
from tests.stream.scripted import ScriptedFeed, tree
from tests.waiting import Clock


def name(record: dict[str, Any] | None) -> str | None:
    """`S1/2`: the shard, and the number of the record in it."""
    if record is None:
        return None
    shard, _, number = record["meta"]["sequence_number"].partition(":")[0].rpartition("-")
    return f"{shard}/{int(number)}"


def take(stream: Stream, count: int) -> list[str | None]:
    return [name(next(stream)) for _ in range(count)]


def opened(
    lineage: str, pages: dict[str, list[list[int]]], at: Any = "trim_horizon"
) -> tuple[ScriptedFeed, Stream, Clock]:
    feed, clock = ScriptedFeed(tree(lineage), pages), Clock(0.0)
    return feed, Stream(feed, at=at, clock=clock), clock


def test_the_worked_example_is_in_the_documented_order() -> None:
    _, stream, _ = opened("S0 => S1 S2", {"S0": [[-7]], "S1": [[-6, -4, -2]], "S2": [[-4, -3, -3]]})
    assert take(stream, 8) == ["S0/0", "S1/0", "S1/1", "S2/0", "S2/1", "S2/2", "S1/2", None]


def test_a_child_starts_once_when_all_parents_are_done() -> None:
    feed, stream, clock = opened("A => M, B => M", {"A": [[1]], "B": [[2], [3]], "M": [[0]]})
    feed.shown["B"] = 1
    assert take(stream, 3) == ["A/0", "B/0", None]
    assert feed.calls["M"] == 0
    feed.shown["B"] = 2
    assert take(stream, 1) == ["B/1"]
    clock.now += 10
    assert take(stream, 2) == ["M/0", None]
    assert feed.open == 1


def test_a_filled_buffer_makes_no_call_and_an_empty_one_reads_each_shard_once() -> None:
    feed, stream, _ = opened("A, B, C", {"A": [[1, 2, 3]], "B": [[], [4]], "C": []})
    take(stream, 1)
    assert feed.calls == {"list": 1, "A": 1, "B": 1, "C": 1}
    take(stream, 2)
    assert feed.calls == {"list": 1, "A": 1, "B": 1, "C": 1}
    assert take(stream, 1) == ["B/0"]
    assert feed.calls == {"list": 1, "A": 2, "B": 2, "C": 2}


def test_partitions_are_looked_up_when_one_ends_with_back_off_and_seldom_else() -> None:
    feed, stream, clock = opened("A => B", {"A": [[1]], "B": [[2]]})
    feed.unlisted.add("B")
    assert take(stream, 10) == ["A/0"] + [None] * 9
    assert feed.calls["list"] == 2
    clock.now += 0.05
    take(stream, 1)
    assert feed.calls["list"] == 3
    feed.unlisted.clear()
    clock.now += 10
    assert take(stream, 50) == ["B/0"] + [None] * 49
    assert feed.calls["list"] == 4
    clock.now += LISTING
    take(stream, 5)
    assert feed.calls["list"] == 5


def test_latest_is_pinned_when_asked_for() -> None:
    feed, stream, _ = opened("A", {"A": [[1, 2], [3], [4]]})
    feed.shown["A"] = 1
    stream.move_to("LATEST")
    token = json.loads(json.dumps(stream.token))
    feed.shown["A"] = 3
    for each in (stream, Stream(feed, at=token)):
        assert take(each, 3) == ["A/2", "A/3", None]


def test_a_move_that_fails_leaves_everything_as_it_was() -> None:
    feed, stream, _ = opened("A", {"A": [[1, 2]]})
    take(stream, 1)
    with pytest.raises(InvalidPosition):
        stream.move_to("yesterday")
    assert take(stream, 2) == ["A/1", None]
    stream.move_to("Trim_Horizon")
    assert take(stream, 2) == ["A/0", "A/1"]
    assert feed.open == 1


def test_after_a_move_the_own_reader_before_is_waited_for() -> None:
    feed, stream, clock = opened("A", {"A": [[1]]})
    take(stream, 1)
    stream.move_to("trim_horizon")
    feed.taken.add("A")
    assert take(stream, 2) == [None, "A/0"]
    clock.now += 60
    feed.failing.add("A")
    with pytest.raises(Unavailable):
        next(stream)


class Zoned:
    def timestamp(self) -> float:
        return 1_767_225_600.5


@pytest.mark.parametrize(
    ("position", "first"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=500), 500),
        (datetime(2026, 1, 1, 2, tzinfo=UTC).astimezone() - timedelta(hours=1.9999999), 1),
        (Zoned(), 500),
        (datetime(2020, 1, 1, tzinfo=UTC), 0),
        (datetime(9999, 1, 1, tzinfo=UTC), None),
    ],
)
def test_a_time_with_a_zone_is_a_position_and_a_future_one_is_latest(
    position: Any, first: int | None
) -> None:
    record = next(penstock.stream("memory", at=position))
    if first is None:
        assert record is None
    else:
        assert record is not None
        assert record["meta"]["created_at"] == datetime(2026, 1, 1, tzinfo=UTC) + timedelta(
            milliseconds=first
        )


@pytest.mark.parametrize(
    "position",
    ["yesterday", "", 7, [], {}, {"version": 1}, {"version": 1, "backend": "x", "partitions": {}},
     {"version": 1, "backend": "memory", "partitions": {"p0": 7}}, datetime(2026, 1, 1)],
)  # fmt: skip
def test_anything_else_is_an_invalid_position_with_a_hint(position: Any) -> None:
    with pytest.raises(InvalidPosition) as caught:
        penstock.stream("memory", at=position)
    assert caught.value.hint
    assert isinstance(caught.value, ValueError)
    stream = penstock.stream("memory")
    with pytest.raises(InvalidPosition):
        stream.move_to(position)
    with pytest.raises(InvalidPosition):
        stream.move_to(None)
    with pytest.raises(InvalidPosition, match=r"timezone\.utc"):
        stream.move_to(datetime(2026, 1, 1))


def test_trimmed_records_are_records_expired_again_and_again_until_a_move() -> None:
    feed, stream, _ = opened("A, B", {"A": [[1], [2], [3]], "B": [[1], [5]]})
    token = stream.token
    feed.trimmed["A"] = 1
    clock = Clock(0.0)
    late = Stream(feed, at=token, clock=clock)
    assert take(late, 1) == ["B/0"]  # one answer says nothing
    clock.now += CONFIRMED
    with pytest.raises(RecordsExpired) as caught:
        next(late)
    assert caught.value.hint
    assert take(late, 1) == ["B/1"]
    with pytest.raises(RecordsExpired):
        next(late)
    assert [(gap.cause, gap.policy) for gap in late.gaps] == [("trimmed", "fail")]
    late.move_to("latest")
    assert take(late, 1) == [None]


@pytest.mark.parametrize(
    "met",
    ["lost", "a gap"],
)
@pytest.mark.parametrize("call", ["next", "heartbeat"])
@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_what_is_lost_while_it_is_read_is_a_gap_too(met: str, call: str, policy: Any) -> None:
    gap = Gap(cause="trimmed", after="", policy=policy)
    lost = PositionLost("not there any more") if met == "lost" else HistoryLost(gap)
    feed = ScriptedFeed(tree("A"), {"A": [[1], [2]]}, on_gap=policy)
    feed.shown["A"] = 0
    clock = Clock(0.0)
    stream = Stream(feed, at="trim_horizon", clock=clock)
    assert take(stream, 1) == [None]
    feed.shown["A"] = 2
    feed.losing["A"] = lost
    stream.heartbeat() if call == "heartbeat" else next(stream)
    assert not stream.gaps, "one answer says nothing"
    clock.now += CONFIRMED
    if policy == "continue":
        assert take(stream, 2) == ["A/1", None]
    else:
        for _ in range(2):
            with pytest.raises(RecordsExpired, match="move_to"):
                next(stream)
    assert {gap.cause for gap in stream.gaps} == {"trimmed"}


def test_a_lost_connection_loses_and_repeats_nothing() -> None:
    feed, stream, _ = opened("A, B", {"A": [[1, 2], [3]], "B": [[4], [5]]})
    feed.failing.add("A")
    with pytest.raises(Unavailable):
        next(stream)
    assert take(stream, 1) == ["B/0"]  # what another shard gave meanwhile
    assert take(stream, 1) == ["A/0"]
    feed.failing.add("A")  # beside records that were fetched and not handed out
    assert take(stream, 2) == ["A/1", "B/1"]
    with pytest.raises(Unavailable):
        next(stream)
    assert take(stream, 2) == ["A/2", None]


def test_a_page_that_cannot_be_decoded_is_never_passed_over() -> None:
    feed, stream, _ = opened("A", {"A": [[1, 2]]})
    feed.broken.add("A")
    before = stream.token["partitions"]["A"]["place"] if stream.token["partitions"] else None
    for _ in range(3):
        with pytest.raises(Malformed):
            next(stream)
    assert stream.token["partitions"]["A"]["place"] == before
    feed.broken.clear()
    assert take(stream, 3) == ["A/0", "A/1", None]


def test_acknowledge_passes_a_token_on_and_nothing_is_acknowledged_without() -> None:
    feed, stream, _ = opened("A", {"A": [[1, 2, 3]]})
    take(stream, 1)
    first = stream.token
    take(stream, 1)
    assert feed.acknowledged == {}
    stream.acknowledge(json.loads(json.dumps(first)))
    place = Bookmark.from_json(first["partitions"]["A"]).place
    assert feed.acknowledged["A"].place == place
    stream.acknowledge()
    assert feed.acknowledged["A"].place != place
    with pytest.raises(InvalidPosition):
        stream.acknowledge({"version": 0})


def test_next_never_stops_before_close() -> None:
    feed, stream, _ = opened("A", {"A": [[1]]})
    with stream:
        assert take(stream, 5) == ["A/0"] + [None] * 4
        assert iter(stream) is stream
        token = stream.token
    assert feed.open == 0
    with pytest.raises(StopIteration):
        next(stream)
    stream.heartbeat()
    assert stream.token == token
    assert list(stream.follow()) == []
    stream.close()


def test_follow_blocks_retries_and_stops() -> None:
    feed = ScriptedFeed(tree("A => B"), {"A": [[1, 2]], "B": [[3]]})
    feed.failing |= {"A", "list"}
    stream = Stream(feed, at="trim_horizon")
    found = []
    for record in stream.follow(poll=0.01):
        found.append(name(record))
        if len(found) == 3:
            stream.stop()
    assert found == ["A/0", "A/1", "B/0"]
    stream.stop()  # before the loop
    assert list(stream.follow()) == []
    assert feed.calls["B"] >= 1


@pytest.mark.parametrize("call", ["next", "heartbeat"])
def test_ctrl_c_while_reading_loses_and_repeats_nothing(call: str) -> None:
    feed, stream, _ = opened("A", {"A": [[1], [2, 3], [4]]})
    stream = Stream(feed, at=stream.token)
    assert take(stream, 1) == ["A/0"]
    token = stream.token
    feed.interrupted.add("A")
    with pytest.raises(KeyboardInterrupt):
        # The scripted feed keeps a shard alive by reading it from where it was followed.
        stream.heartbeat() if call == "heartbeat" else next(stream)
    assert stream.token == token
    assert take(stream, 4) == ["A/1", "A/2", "A/3", None]


def test_follow_ends_when_another_thread_stops_it_while_it_waits() -> None:
    feed, stream, _ = opened("A", {"A": [[1]]})
    stream = Stream(feed, at=stream.token)  # with a real clock
    began, found = time.monotonic(), []
    for record in stream.follow(poll=600):
        found.append(name(record))
        threading.Timer(0.2, stream.stop).start()
    assert found == ["A/0"]
    assert time.monotonic() - began < 60
    assert take(stream, 1) == [None]  # it is open, and may be followed again


INTERRUPTED = """
import signal
import penstock
signal.signal(signal.SIGINT, signal.default_int_handler)
stream = penstock.stream("memory", changes=1, at="trim_horizon")
try:
    for record in stream.follow(poll=600):
        print(record["key"]["id"], flush=True)
except KeyboardInterrupt:
    print(next(stream), penstock.stream("memory", changes=1, at=stream.token).token == stream.token)
"""


def test_follow_ends_with_ctrl_c_and_the_token_is_right() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "None True\n"
    assert child.returncode == 0


def test_follow_keeps_connections_between_records() -> None:
    _, stream, clock = opened("A", {"A": [[1, 2, 3, 4]]})
    kept = []
    stream.heartbeat = lambda: kept.append(clock.now)  # type: ignore[method-assign]
    for record in stream.follow():
        clock.now += 3
        if name(record) == "A/3":
            stream.stop()
    assert kept == [6.0]


@dataclass
class Item:
    id: int
    number: int = -1


class Row(BaseModel):
    id: int
    number: int


class Struct(msgspec.Struct):
    id: int
    text: str


@pytest.mark.parametrize("model", [Item, Row, Struct])
def test_a_model_makes_instances_of_the_images(model: Any) -> None:
    stream = penstock.stream("memory", changes=20, model=model)
    records = [next(stream) for _ in range(20)]
    assert {type(record["new"]) for record in records if record and record["new"]} == {model}
    assert records[3]["new"].id == 3
    assert records[3]["key"] == {"id": 3}
    assert [record["new"] for record in records[14:]] == [None] * 6


def test_an_image_that_a_model_does_not_take_is_an_error_and_no_record_is_lost() -> None:
    class Other(BaseModel):
        missing: int

    stream = penstock.stream("memory", changes=2, model=Other)
    token = stream.token
    for _ in range(2):
        with pytest.raises(SettingsError, match="missing: missing"):
            next(stream)
    assert stream.token == token
    with pytest.raises(SettingsError, match="not a model"):
        penstock.stream("memory", model=dict)


def test_the_memory_feed_gives_records_of_the_documented_shape() -> None:
    record = next(penstock.stream("memory"))
    assert record is not None
    assert record["key"] == {"id": 0}
    assert record["new"] == {"id": 0, "number": 0, "text": "change 0"}
    assert record["old"] is None
    assert record["meta"]["created_at"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert record["meta"]["event"] == {
        "id": "memory:p0-000000000000:0", "type": "insert", "version": None,
    }  # fmt: skip
    assert record["meta"]["sequence_number"] == "p0-000000000000:0"


def test_settings_are_checked_and_a_feed_may_be_given_as_it_is() -> None:
    with pytest.raises(SettingsError, match="did you mean 'changes'"):
        penstock.stream("memory", chnges=3)
    with pytest.raises(SettingsError, match="no tables to choose"):
        penstock.stream("memory", table="users")
    with pytest.raises(SettingsError, match="there is no feed"):
        penstock.stream("nothing")
    with pytest.raises(SettingsError, match="did you mean 'postgres'"):
        penstock.stream("postgresql")
    with pytest.raises(SettingsError, match=r"^write `table`"):
        penstock.stream("dynamodb")
    feed = MemoryFeed(MemoryFeedSettings(changes=1))
    assert next(penstock.stream(feed)) is not None


def test_a_secret_is_not_printed() -> None:
    with pytest.raises(SettingsError) as caught:
        penstock.stream("postgres", connection="postgresql://u:hunter2@h/d", slot="Bad Slot!",
                        publication="p")  # fmt: skip
    assert "hunter2" not in str(caught.value)


def test_penstock_stream_is_a_function_and_a_package() -> None:
    call: Callable[..., Stream] = penstock.stream
    assert isinstance(call("memory"), Stream)
    assert PartitionId("p0") in penstock.stream("memory").token["partitions"]


def test_records_before_one_that_cannot_be_decoded_are_handed_out() -> None:
    feed, _, _ = opened("A", {"A": [[1] * 100]})
    good, reader = [True], record_reader(feed)

    def failing(page: Page) -> Iterator[NativeRecord]:
        for number, record in enumerate(reader(page)):
            if number == 70 and not good[0]:
                raise Malformed("record 70 is broken, as the test says")
            yield record

    partition = PartitionId("A")
    shard = Shard(PartitionReader(feed, partition, Bookmark(), GapLog()), Bookmark(), failing)
    good[0] = False
    shard.take(shard.step())
    found: list[NativeRecord] = []
    for _ in range(10):
        try:
            found += shard.decode()
        except Malformed:
            assert len(found) == 70
            break
    else:
        pytest.fail("it was passed over")
    assert shard.has_pages
    good[0] = True
    while shard.has_pages:
        found += shard.decode()
    assert [each.place for each in found] == sorted({each.place for each in found})
    assert len(found) == 100
