"""How much remains at the source, in the status."""

import threading
from types import MappingProxyType
from typing import Any

from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.remaining import Remaining
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.reading.made import P0, P1, feed_of, place
from tests.waiting import until

GONE = PartitionId("p2")


class Away(StagedFeed):
    """`p1` cannot be asked."""

    def remaining(self, partition: PartitionId, bookmark: Bookmark) -> int | None:
        if partition == P1:
            raise Unavailable("not now")
        return super().remaining(partition, bookmark)


class Reading:
    """What is stored, as a test says it."""

    durable: Bookmarks = MappingProxyType({})


def test_what_remains_is_asked_again_and_again_for_each_partition_that_is_not_over() -> None:
    reading = Reading()
    reading.durable = {
        P0: Bookmark(place(39)),
        P1: Bookmark(),
        GONE: Bookmark(place(39, "p2"), ended=True),
    }
    feed = Away(StagedSettings(changes=100, unit=1, partitions=3))
    with Remaining(feed, reading, every=0.001) as remaining:
        assert remaining.of(P0) == {}
        remaining.open()
        remaining.open()
        until(lambda: remaining.of(P0) == {"lag": 60, "lag_unit": "changes"})
        reading.durable = {P0: Bookmark(place(99)), P1: Bookmark()}
        until(lambda: remaining.of(P0) == {"lag": 0, "lag_unit": "changes"})
        assert remaining.of(P1) == remaining.of(GONE) == {}


def test_a_feed_that_cannot_be_asked_has_no_thread() -> None:
    class Without:
        """No method of the protocol."""

        backend = "x"

    feed: Any = Without()
    before = threading.active_count()
    with Remaining(feed, Reading(), every=0.0) as remaining:
        remaining.open()
        assert remaining.of(P0) == {}
        assert threading.active_count() == before
    assert feed_of().remaining(P0, Bookmark()) == 100
