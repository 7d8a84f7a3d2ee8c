"""What DescribeStream lists is eventually consistent: one answer without a shard loses nothing."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.feeds.dynamodb import DynamodbFeed
from penstock.model.errors import PositionLost
from penstock.model.position import Bookmark, PartitionId
from tests.dynamodb.reading import Reading
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard, Stream

pytestmark = pytest.mark.slow  # two listings, some seconds apart


@pytest.fixture
def server() -> Iterator[StreamsServer]:
    with StreamsServer() as found:
        yield found


class World:
    """S0, half of which was read, and its child S1."""

    def __init__(self, server: StreamsServer, **given: Any) -> None:
        self.server = server
        self.stream: Stream = server.stream("users")
        self.parent: Shard = self.stream.shard()
        self.stream.put(self.parent, "a", at=server.now)
        self.feed = DynamodbFeed(settings_of(server, reads=1000, poll=0.01, **given))
        begun = Reading(self.feed)
        self.read(begun, 1)
        begun.stop()
        self.done: dict[PartitionId, Bookmark] = begun.done
        self.stream.put(self.parent, "b", at=server.now)
        (self.child,) = self.stream.split(self.parent, 1)
        self.stream.put(self.child, "c", at=server.now)

    def leave_out(self, shard: Shard, answers: int) -> None:
        """That many answers do not list the shard."""
        left = [answers]

        def answered(operation: str, _: dict[str, Any]) -> None:
            if operation == "DescribeStream":
                shard.listed = left[0] <= 0
                left[0] -= 1

        self.server.before = answered

    @staticmethod
    def read(reading: Reading, count: int) -> list[str]:
        deadline = time.monotonic() + 60
        while len(reading.found) < count:
            assert time.monotonic() < deadline, reading.found
            reading.read()
        return [key for _, key in reading.found]


@pytest.mark.parametrize("policy", ["fail", "continue"])
@pytest.mark.parametrize("answers", [1, 2, 3])
def test_a_shard_that_is_not_listed_and_can_be_read_is_no_gap(
    server: StreamsServer, policy: str, answers: int
) -> None:
    world = World(server, on_gap=policy)
    world.leave_out(world.parent, answers)
    again = Reading(world.feed, world.done)
    assert world.read(again, 2) == ["b", "c"]
    assert again.gaps.rows() == {}
    again.stop()


def test_a_shard_in_the_middle_that_one_answer_leaves_out_is_read_before_its_child(
    server: StreamsServer,
) -> None:
    world = World(server)
    (last,) = world.stream.split(world.child, 1)
    world.stream.put(last, "d", at=server.now)
    world.leave_out(world.child, 1)
    again = Reading(world.feed, world.done)
    assert world.read(again, 3) == ["b", "c", "d"]
    again.stop()


def test_a_shard_that_is_neither_listed_nor_readable_is_a_gap(server: StreamsServer) -> None:
    world = World(server)
    world.parent.listed, world.parent.gone = False, True
    again = Reading(world.feed, dict(world.done))
    with pytest.raises(PositionLost, match="not there any more"):
        world.read(again, 1)
    again.stop()
    [partition] = again.gaps.rows()
    [gap] = again.gaps.rows()[partition]["gaps"]
    assert (gap["cause"], gap["policy"]) == ("shard_gone", "fail")

    goes_on = DynamodbFeed(settings_of(server, reads=1000, poll=0.01, on_gap="continue"))
    again = Reading(goes_on, dict(world.done))
    assert world.read(again, 1) == ["c"]
    again.stop()
