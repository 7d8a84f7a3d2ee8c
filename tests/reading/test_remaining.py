"""How much remains at the source, in the status."""

import threading
from types import MappingProxyType
from typing import Any

import pytest

from penstock.feeds import Feed
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.remaining import Remaining, estimate
from tests.cosmos.reading import feed_of as cosmos_feed
from tests.cosmos.server import CosmosServer
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


@pytest.mark.parametrize("what", ["split", "split of two", "merge", "throttled", "away"])
def test_at_least_one_remains_where_a_range_is_gone_or_cannot_be_asked_and_no_host_runs(
    what: str,
) -> None:
    """An autoscaler that starts nothing at 0 would wait for ever."""
    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        if what != "split":
            orders.split()
        feed = cosmos_feed(server)
        begun = feed.begin("now")
        assert left(feed, begun) == 0
        if what.startswith("split"):
            orders.split()
        elif what == "merge":
            orders.merge(*orders.ranges)
        elif what == "throttled":
            server.fail("feed", 429, times=100)
        else:
            server.fail("feed", 503, times=100)
        orders.put({"id": "a", "pk": "a"})
        assert left(feed, begun) >= 1


def left(feed: Feed, bookmarks: Bookmarks) -> int:
    found = estimate(feed, bookmarks)
    assert found is not None
    return found.total


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
