"""What every feed promises when history is lost, proven on each through the one reader: recorded
first, nothing delivered where the policy is to stop, asked for again later, and where the policy is
to go on, everything after the gap. A pickled copy, as a task has it, decides the same."""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.feeds import Feed, Following, Gap
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.mongodb.feed import PARTITION
from penstock.feeds.shared import behind_hole
from penstock.model.errors import PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.reading.passed_gaps import BLOCKED
from penstock.reading.reader import PartitionReader
from penstock.wire.dynamodb.decoder import place_of
from tests.cosmos.reading import feed_of as cosmos_feed
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer, settings_of
from tests.feeds.postgres.story import FAST, SLOT, TABLE, feed_of, insert, started
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.mongo import shop_on
from tests.mongodb.history import History
from tests.mongodb.reading import feed_of as mongodb_feed
from tests.mongodb.server import ScriptedMongod
from tests.reading.made import confirmed
from tests.servers import Postgres
from tests.slots import drop_slot
from tests.waiting import Clock, until


@dataclass
class Lost:
    """A feed whose changes after `bookmark` are lost, by its policy for gaps; `write` makes
    one that is there afterwards, and `is_next` says whether this event id may be the first."""

    feed: Callable[[str], Feed]
    partition: PartitionId
    bookmark: Bookmark
    causes: list[str]
    write: Callable[[], object]


@pytest.fixture(
    params=[
        "memory",
        "memory found by reading",
        "memory twice",
        "mongodb",
        "mongodb found by reading",
        "mongodb twice",
        "mongodb found late",
        "cosmos",
        "dynamodb",
        "dynamodb without a place",
        "postgres",
    ]
)
def lost(request: pytest.FixtureRequest) -> Iterator[Lost]:
    kind = request.param
    if kind.startswith("memory"):
        given = {"changes": 40, "unit": 1, "page": 5, "trimmed": 30}
        given |= {"found": "read"} if "reading" in kind else {}
        given |= {"history": "B"} if "twice" in kind else {}
        causes = (["other_history"] if "twice" in kind else []) + ["trimmed"]

        def memory(policy: str) -> Feed:
            return StagedFeed(StagedSettings.model_validate({**given, "on_gap": policy}))

        yield Lost(
            memory,
            PartitionId("p0"),
            Bookmark(mark={"history": "A"} if "twice" in kind else {}),
            causes,
            lambda: None,
        )
    elif kind == "mongodb":
        with shop_on(request.getfixturevalue("mongo")) as shop:
            token = Bookmark(mark={"token": {"_data": "00FF00FF00FF00FF"}})
            number = iter(range(100))
            yield Lost(
                lambda policy: shop.feed(on_gap=policy),
                PARTITION,
                token,
                ["token_"],
                lambda: shop.db.users.insert_one({"_id": next(number)}),
            )
    elif kind.startswith("mongodb"):
        is_late = "late" in kind
        with ScriptedMongod(History(), "mongos" if is_late else "primary") as mongod:
            begun = mongodb_feed(mongod).begin()[PARTITION]
            for _ in range(3):
                mongod.history.insert("lost")
            mongod.history.trim(1)
            mark = {**(begun.mark or {})}
            if "twice" in kind:  # another cluster, whose oplog has nothing to begin at either
                mark["cluster"] = "rs9/6b0000000000000000000000"
                mongod.fail("getMore", 286, times=2)
            mongod.late = 2 if is_late else 0
            causes = (["other_cluster"] if "twice" in kind else []) + ["oplog_rolled_over"]
            causes += ["oplog_rolled_over"] if is_late else []  # at the last change's time as well
            yield Lost(
                lambda policy: mongodb_feed(mongod, on_gap=policy),
                PARTITION,
                Bookmark(Place("6A000000/00000001", 0), mark),
                causes,
                lambda: mongod.history.insert("next"),
            )
    elif kind == "cosmos":
        with CosmosServer() as cosmos:
            container = cosmos.container("shop", "orders")
            every = "all_versions_and_deletes"
            (partition, begun), *_ = cosmos_feed(cosmos, mode=every).begin().items()
            for n in range(5):
                container.put({"id": f"lost{n}", "pk": "a"})
            container.retained = 3
            number = iter(range(100))
            yield Lost(
                lambda policy: cosmos_feed(cosmos, mode=every, on_gap=policy),
                partition,
                Bookmark(Place(f"{0:020d}/a", 0), begun.mark),
                ["retention"],
                lambda: container.put({"id": f"next{next(number)}", "pk": "a"}),
            )
    elif kind.startswith("dynamodb"):
        with StreamsServer() as server:
            stream = server.stream("users")
            shard = stream.shard()
            sequence = [stream.put(shard, f"k{n}", at=server.now) for n in range(5)]
            stream.trim(shard, 3)
            server.trims_at = "GetRecords"
            partition = PartitionId(f"{stream.label}/{shard.id}")
            old = Bookmark(None, {"from": "trim_horizon", "asked": time.time() - 25 * 3600})
            at = old if "without" in kind else Bookmark(place_of(sequence[0]), {})
            yield Lost(
                lambda policy: DynamodbFeed(
                    settings_of(server, reads=1000, poll=0.001, on_gap=policy)
                ),
                partition,
                at,
                ["trimmed"],
                lambda: None,
            )
    else:
        with Postgres(settings=FAST) as server:
            server.execute(TABLE)
            feed_of(server).begin()
            story = started(server)
            drop_slot(server, SLOT)
            insert(server, 11, 20, "lost")
            numbers = iter(range(100, 200))
            yield Lost(
                lambda policy: feed_of(server, on_gap=policy),
                SLOT,
                story.bookmark,
                ["slot_missing"],
                lambda: insert(server, number := next(numbers), number),
            )


class Recorder:
    """A `GapRecorder`."""

    def __init__(self) -> None:
        self.causes: list[str] = []
        self.ends: list[str] = []

    def verify(self, partition: PartitionId) -> None:
        pass

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        if to:
            self.ends.append(to)
        else:
            self.causes.append(gap.cause)


def as_expected(found: list[str], expected: list[str]) -> bool:
    return len(found) == len(expected) and all(map(str.startswith, found, expected))


def test_a_loss_is_recorded_and_stops_the_partition_and_is_asked_for_again(lost: Lost) -> None:
    feed = lost.feed("fail")
    for each in (feed, pickle.loads(pickle.dumps(feed))):
        recorder, clock = Recorder(), Clock()
        reader = PartitionReader(each, lost.partition, lost.bookmark, recorder, clock=clock)
        for _ in range(2):
            step = patiently(reader, clock)
            assert isinstance(step, PositionLost), step
            assert step.message
            assert step.hint
            asked = list(recorder.causes)
            assert reader.step(0.0).error is step, "not asked again at once"
            assert recorder.causes == asked
            clock.now += BLOCKED
        assert as_expected(recorder.causes, 2 * lost.causes[:1])
        reader.disconnect()


def patiently(reader: PartitionReader, clock: Clock) -> PositionLost | list[str]:
    """The first loss, or pages of a reader."""
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline
        step = confirmed(reader, clock, 0.1)
        if step.pages:
            return [str(page.first) for page in step.pages]
        if isinstance(step.error, PositionLost):
            return step.error
        assert step.error is None or isinstance(step.error, Unavailable), step.error


def test_where_the_policy_is_to_go_on_each_loss_is_recorded_and_what_comes_after_is_read(
    lost: Lost,
) -> None:
    recorder, clock = Recorder(), Clock()
    feed: Feed = pickle.loads(pickle.dumps(lost.feed("continue")))
    reader = PartitionReader(feed, lost.partition, lost.bookmark, recorder, clock=clock)
    deadline = time.monotonic() + 60
    while len(recorder.causes) < len(lost.causes) or not reader.is_connected:
        first = confirmed(reader, clock, 0.1)  # makes a slot anew, or a stream from now on
        assert time.monotonic() < deadline
    lost.write()
    pages = [str(page.first) for page in first.pages] or patiently(reader, clock)
    assert isinstance(pages, list)
    assert as_expected(recorder.causes, lost.causes)
    assert recorder.ends, "the end of the gap is known"
    if lost.bookmark.place is not None:
        assert reader.read_to is not None
        assert reader.read_to > lost.bookmark.place
    # What was read is stored with a bookmark that leads on, without the gap.
    bookmark = reader.bookmark(reader.read_to)
    assert bookmark is not None
    reader.acknowledge(bookmark)
    reader.step(0.0)
    reader.disconnect()
    again, recorder = lost.feed("fail"), Recorder()
    second = PartitionReader(again, lost.partition, bookmark, recorder, clock=Clock())
    deadline = time.monotonic() + 60
    while not second.is_connected:
        step = second.step(0.0)
        assert step.error is None or isinstance(step.error, Unavailable), step.error
        assert time.monotonic() < deadline
    assert recorder.causes == []
    second.disconnect()


class Slow:
    """A feed whose source takes 31 seconds for each reply, and shows what is lost with the second
    of each connection."""

    def __init__(self, feed: Feed, clock: Clock) -> None:
        self._feed, self._clock = feed, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def follow(self, *where: Any, **more: Any) -> Following:
        self._clock.now += 31.0
        following = self._feed.follow(*where, **more)
        replies, read = iter([()]), following.read

        def slowly(timeout: float) -> Sequence[Page]:
            self._clock.now += 31.0
            return next(replies, None) or read(timeout)

        following.read = slowly  # type: ignore[method-assign]
        return following


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_loss_counts_where_each_reply_takes_31_seconds(lost: Lost, policy: str) -> None:
    recorder, clock = Recorder(), Clock()
    slow: Any = Slow(lost.feed(policy), clock)
    reader = PartitionReader(slow, lost.partition, lost.bookmark, recorder, clock=clock)
    if policy == "fail":
        assert isinstance(patiently(reader, clock), PositionLost)
    else:
        until(
            lambda: confirmed(reader, clock, 0.1) and len(recorder.causes) == len(lost.causes), 60
        )
    assert as_expected(recorder.causes, lost.causes[:1] if policy == "fail" else lost.causes)
    reader.disconnect()


def test_a_partition_behind_a_hole_is_read_only_where_the_policy_is_to_go_on(lost: Lost) -> None:
    hole = behind_hole("lineage_broken", "nothing that was read leads here")
    recorder = Recorder()
    stopped = PartitionReader(lost.feed("fail"), lost.partition, hole, recorder, clock=Clock())
    assert isinstance(stopped.step(0.0).error, PositionLost)
    assert recorder.causes == ["lineage_broken"]
    assert not stopped.is_connected
