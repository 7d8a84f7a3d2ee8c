"""The reservoir over one connection for all partitions: counted, and as exact as over many."""

import pytest

from penstock.position import Bookmark, PartitionId
from penstock.reading.planner import ReadLimits
from tests.reading.made import Made, feed_of, made, place, until

NAMES = [PartitionId(f"p{number}") for number in range(100)]


def buffered(parts: Made, names: list[PartitionId]) -> dict[PartitionId, list[int]]:
    with parts.reservoir.wake:
        return {
            name: [
                int(page.first.cursor.rpartition("-")[2])
                for page in parts.reservoir.beyond(name, None)
            ]
            for name in names
        }


def read_all(parts: Made, changes: int) -> None:
    until(lambda: parts.reservoir.counts["events"] >= changes)


def test_a_hundred_partitions_are_read_over_one_connection_by_one_thread() -> None:
    feed = feed_of(partitions=100, changes=40, shared=True)
    with made(feed) as parts:
        for name in NAMES:
            parts.open(name)
        read_all(parts, 4_000)
        assert buffered(parts, NAMES) == {name: [0, 10, 20, 30] for name in NAMES}
        assert feed.connections == 1
        assert len(parts.reservoir._threads) == 1
    alone = feed_of(partitions=100, changes=40)
    with made(alone) as parts:
        for name in NAMES:
            parts.open(name)
        read_all(parts, 4_000)
    assert alone.connections == 100


def test_one_read_returns_pages_of_several_partitions() -> None:
    feed = feed_of(partitions=100, changes=40, shared=True)
    with made(feed) as parts:
        with parts.reservoir.wake:  # none is read before all are open
            for name in NAMES:
                parts.open(name)
        read_all(parts, 4_000)
        reads = feed.reads
    # 400 pages, 8 in a read; a few reads more that find nothing.
    assert reads < 100


def test_a_lost_connection_is_made_again_and_nothing_is_lost_or_doubled() -> None:
    feed = feed_of(partitions=5, changes=100, fail_at=(55,), shared=True)
    names = NAMES[:5]
    with made(feed) as parts:
        for name in names:
            parts.open(name)
        read_all(parts, 500)
        pages = buffered(parts, names)
        assert parts.reservoir.counts["reconnects"] == 5  # each partition fails once
    for starts in pages.values():
        assert starts[0] == 0
        assert starts == sorted(set(starts))
    assert feed.connections >= 6


def test_partitions_without_room_wait_and_go_on_when_there_is_some() -> None:
    feed = feed_of(partitions=4, changes=2_000, shared=True)
    names = NAMES[:4]
    got: dict[PartitionId, list[str]] = {name: [] for name in names}
    with made(feed, limits=ReadLimits(buffer=200)) as parts:
        for name in names:
            parts.open(name)
        decoder = feed.decoder("json")
        while any(len(each) < 2_000 for each in got.values()):
            with parts.reservoir.wake:
                pages = [page for name in names for page in parts.reservoir.beyond(name, None)]
                assert len(pages) < 400, "the budget holds"
                parts.reservoir.stored({page.partition: page.last for page in pages})
                if not pages:
                    assert parts.reservoir.wake.wait(60)
            for page in pages:
                for batch in decoder.decode(page):
                    got[page.partition] += batch.column("event_id").to_pylist()
    for name in names:
        assert got[name] == [f"memory:{place(n, name)}" for n in range(2_000)]
    assert feed.connections == 1


def test_partitions_join_and_leave_while_others_are_read() -> None:
    feed = feed_of(partitions=3, changes=50, shared=True)
    first, second, third = NAMES[:3]
    with made(feed) as parts:
        parts.open(first)
        read_all(parts, 50)
        parts.open(second)
        parts.open(third, Bookmark(place(29, third)))
        read_all(parts, 120)
        assert buffered(parts, [third])[third] == [30, 40]
        parts.reservoir.close(first)
        assert buffered(parts, [first, second]) == {first: [], second: [0, 10, 20, 30, 40]}
        assert feed.connections == 1


@pytest.mark.parametrize("policy", ["continue", "fail"])
def test_one_that_lost_its_history_does_not_stop_the_others(policy: str) -> None:
    feed = feed_of(partitions=3, changes=50, trimmed=20, on_gap=policy, shared=True)
    with made(feed) as parts:
        for name in NAMES[:3]:
            parts.open(name)
        read_all(parts, 130 if policy == "continue" else 100)
        pages = buffered(parts, NAMES[:3])
    assert pages[NAMES[0]] == ([20, 30, 40] if policy == "continue" else [])
    assert pages[NAMES[1]] == pages[NAMES[2]] == [0, 10, 20, 30, 40]
