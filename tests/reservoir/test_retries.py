"""How long a lost connection waits for its next try."""

from collections.abc import Iterator
from itertools import count, islice

from penstock.backoff import delays
from penstock.errors import Unavailable
from penstock.feeds import Following, Gap
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.page import Page
from penstock.position import START, Bookmark, PartitionId
from penstock.reading.gap_log import GapLog
from penstock.reservoir.part import PartitionReader

P0 = PartitionId("p0")


class Away(MemoryFeed):
    """Cannot be followed until it is back."""

    def __init__(self) -> None:
        super().__init__(MemoryFeedSettings(changes=10))
        self.is_back = False

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Gap | None = None
    ) -> Following:
        if not self.is_back:
            raise Unavailable("not now")
        return super().follow(partition, bookmark, despite=despite)


class Patient(Away):
    """Waits 100, 101, 102 seconds."""

    def delays(self) -> Iterator[float]:
        return map(float, count(100))


def turn(part: PartitionReader) -> float:
    def read(following: Following) -> list[Page]:
        return list(following.read(0.0))

    return part.turn(read)[1]


def test_a_feed_says_how_long_its_source_is_left_alone_and_a_success_begins_anew() -> None:
    feed = Patient()
    part = PartitionReader(feed, P0, START, GapLog())
    assert [turn(part) for _ in range(3)] == [100.0, 101.0, 102.0]
    feed.is_back = True
    assert turn(part) == 0.0
    feed.is_back = False
    part.disconnect()
    assert turn(part) == 100.0


def test_any_other_source_is_tried_again_soon() -> None:
    part = PartitionReader(Away(), P0, START, GapLog())
    waits = [turn(part) for _ in range(12)]
    assert 0.05 <= waits[0] <= 0.1
    assert 5.0 <= waits[-1] <= 10.0


def test_mongodb_is_left_alone_for_1_to_30_seconds() -> None:
    settings = MongoSettings.model_validate({"connection": "mongodb://h", "database": "shop"})
    waits = list(islice(MongoFeed(settings).delays(), 8))
    most = [1, 2, 4, 8, 16, 30, 30, 30]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, most, strict=True))
    assert next(delays()) < 0.5 <= waits[0]
