"""What a feed promises that reads several partitions over one connection: see `FollowsMany`."""

import pickle
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest

from penstock.errors import Unavailable
from penstock.feeds import Following, FollowsMany, HistoryLost, SharedConnection
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.page import Page
from penstock.position import Bookmark, PartitionId, Place

PARTITIONS = 12
CHANGES = 30


def a_feed(**settings: object) -> MemoryFeed:
    given = {"partitions": PARTITIONS, "changes": CHANGES, "page": 7, "unit": 4, "shared": True}
    return MemoryFeed(MemoryFeedSettings.model_validate({**given, **settings}))


def connection(feed: MemoryFeed) -> SharedConnection:
    assert isinstance(feed, FollowsMany)
    found = feed.shared_connection()
    assert found is not None
    return found


def names(feed: MemoryFeed) -> list[PartitionId]:
    return [each.partition for each in feed.partitions()]


def read(
    shared: SharedConnection, followings: Sequence[Following], count: int
) -> dict[PartitionId, list[Page]]:
    """Pages of each partition, until there are `count` changes in all."""
    found: dict[PartitionId, list[Page]] = defaultdict(list)
    deadline = time.monotonic() + 60
    while sum(page.count for pages in found.values() for page in pages) < count:
        assert time.monotonic() < deadline
        for page in shared.read(followings, 0.2):
            found[page.partition].append(page)
    return found


def events(feed: MemoryFeed, pages: Sequence[Page]) -> list[str]:
    decoder = feed.decoder("json")
    return [e for p in pages for b in decoder.decode(p) for e in b.column("event_id").to_pylist()]


def alone(feed: MemoryFeed, partition: PartitionId) -> list[str]:
    pages: list[Page] = []
    following = feed.follow(partition)
    while more := following.read(0.0):
        pages += more
    return events(feed, pages)


def test_together_they_give_what_each_gives_alone() -> None:
    feed = a_feed()
    shared = connection(feed)
    found = read(shared, [shared.follow(name) for name in names(feed)], PARTITIONS * CHANGES)
    assert {name: events(feed, pages) for name, pages in found.items()} == {
        name: alone(feed, name) for name in names(feed)
    }


def test_a_connection_costs_nothing_until_the_first_is_followed_and_then_is_one() -> None:
    feed = a_feed()
    shared = connection(feed)
    assert feed.connections == 0
    for name in names(feed):
        shared.follow(name)
    assert feed.connections == 1


def test_a_read_is_bounded_and_leaves_none_of_them_out() -> None:
    feed = a_feed(changes=10_000, partitions=50)
    shared = connection(feed)
    followings = [shared.follow(name) for name in names(feed)]
    seen: set[PartitionId] = set()
    for _ in range(len(followings)):
        pages = shared.read(followings, 0.0)
        assert len(pages) <= 8
        seen |= {page.partition for page in pages}
    assert seen == set(names(feed))


def test_after_each_place_the_rest_follows_while_others_are_read() -> None:
    feed = a_feed(partitions=2)
    first, other = names(feed)
    expected = alone(feed, first)
    for number in range(1, CHANGES):
        place = Place.parse(expected[number - 1].removeprefix("memory:"))
        shared = connection(pickle.loads(pickle.dumps(feed)))
        followings = [shared.follow(first, Bookmark(place)), shared.follow(other)]
        found = read(shared, followings, CHANGES - number + CHANGES)
        assert events(feed, found[first]) == expected[number:]
        assert events(feed, found[other]) == alone(feed, other)


def test_a_partition_that_is_not_read_just_now_loses_nothing() -> None:
    feed = a_feed(partitions=2)
    shared = connection(feed)
    first, other = (shared.follow(name) for name in names(feed))
    read(shared, [first], CHANGES)
    assert not shared.read([first], 0.0)
    other.keep_alive()
    found = read(shared, [first, other], CHANGES)
    assert events(feed, found[PartitionId("p1")]) == alone(feed, PartitionId("p1"))


def test_a_lost_connection_ends_all_its_followings_and_the_next_one_goes_on() -> None:
    feed = a_feed(partitions=3, fail_at=[12])
    copy: MemoryFeed = pickle.loads(pickle.dumps(a_feed(partitions=3)))
    shared = connection(feed)
    got: dict[PartitionId, list[Page]] = defaultdict(list)
    losses = 0
    while sum(page.count for pages in got.values() for page in pages) < 3 * CHANGES:
        followings = [
            shared.follow(name, Bookmark(got[name][-1].last if got[name] else None))
            for name in names(feed)
        ]
        try:
            while pages := shared.read(followings, 0.0):
                for page in pages:
                    got[page.partition].append(page)
        except Unavailable:
            losses += 1
            assert not any(each.status()["connected"] for each in followings)
            with pytest.raises(Unavailable):
                shared.read(followings[:1], 0.0)
    assert losses == feed.connections - 1 == 3
    assert {name: events(feed, pages) for name, pages in got.items()} == {
        name: alone(copy, name) for name in names(feed)
    }


def test_lost_history_is_found_by_following() -> None:
    feed = a_feed(trimmed=9, on_gap="continue")
    shared = connection(feed)
    with pytest.raises(HistoryLost) as caught:
        shared.follow(PartitionId("p0"))
    following = shared.follow(PartitionId("p0"), despite=caught.value.gap)
    found = read(shared, [following], CHANGES - 9)
    assert len(events(feed, found[PartitionId("p0")])) == CHANGES - 9


def test_a_feed_that_does_not_want_one_has_none() -> None:
    assert a_feed(shared=False).shared_connection() is None
