"""The planner over the memory feed: every change once, the same splits again, in order."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from penstock.errors import PositionLost
from penstock.feeds import Following
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.handover.split import Split, bounded
from penstock.position import DRAINED, PartitionId, Place, Position
from penstock.reading.planner import Planner, ReadLimits
from penstock.reading.positions import in_spark

P0 = PartitionId("p0")
Offset = dict[PartitionId, Place]


@contextmanager
def planning(
    feed: MemoryFeed, *, limits: ReadLimits | None = None, save: Callable[..., Position] = in_spark
) -> Iterator[Planner]:
    planner = Planner(feed, limits=limits or ReadLimits(patience=5.0), save=save)
    try:
        yield planner
    finally:
        planner.stop()


def ids(feed: MemoryFeed, splits: list[Split]) -> list[str]:
    decoder = feed.decoder("json")
    return [
        event
        for split in splits
        for page in split.pages
        for batch in bounded(page, decoder.decode(page), split.after, split.until)
        for event in batch.column("event_id").to_pylist()
    ]


def expected(settings: MemoryFeedSettings, partition: str = "p0") -> list[str]:
    return [
        f"memory:{partition}-{n // settings.unit:012d}:{n % settings.unit}"
        for n in range(settings.changes)
    ]


def drain(planner: Planner, feed: MemoryFeed, batches: list[tuple[Offset, Offset]]) -> list[str]:
    """Runs micro-batches until one is empty, as Spark does; notes their offsets."""
    got: list[str] = []
    start: Offset = {}
    total = feed.settings.changes * feed.settings.partitions
    while True:
        end = planner.advance(start, patience=60.0 if len(got) < total else 0.5)
        if end == start:
            return got
        got += ids(feed, planner.splits(start, end))
        batches.append((start, end))
        start = end


def test_every_change_is_in_exactly_one_batch_in_order() -> None:
    settings = MemoryFeedSettings(changes=2_345, page=100, unit=7)
    feed = MemoryFeed(settings)
    with planning(feed, limits=ReadLimits(events=300)) as planner:
        batches: list[tuple[Offset, Offset]] = []
        assert drain(planner, feed, batches) == expected(settings)
    assert len(batches) > 5


def test_a_batch_is_bounded_but_never_empty() -> None:
    settings = MemoryFeedSettings(changes=1_000, page=100)
    feed = MemoryFeed(settings)
    with planning(feed, limits=ReadLimits(events=10)) as planner:
        batches: list[tuple[Offset, Offset]] = []
        assert drain(planner, feed, batches) == expected(settings)
    assert len(batches) == 10  # one page each: a page always passes


def test_a_cold_planner_builds_the_same_batches_from_other_pages() -> None:
    settings = MemoryFeedSettings(changes=500, page=40, unit=3)
    feed = MemoryFeed(settings)
    batches: list[tuple[Offset, Offset]] = []
    with planning(feed, limits=ReadLimits(events=90)) as planner:
        drain(planner, feed, batches)
    other = MemoryFeed(MemoryFeedSettings(changes=500, page=17, unit=3))
    for start, end in batches:
        with planning(other) as cold:
            got = ids(other, cold.splits(start, end))
        low = start[P0] if start else Place("", 0)
        assert got == [event for event in expected(settings) if low < _place(event) <= end[P0]]
    assert len(batches) > 3


def _place(event: str) -> Place:
    return Place.parse(event.removeprefix("memory:"))


def test_a_batch_may_begin_in_the_middle_of_a_page_after_a_crash() -> None:
    settings = MemoryFeedSettings(changes=100, page=50, unit=10)
    feed = MemoryFeed(settings)
    middle = {P0: _place(expected(settings)[24])}
    with planning(feed) as cold:
        first = ids(feed, cold.splits({}, middle))
        end = cold.advance(middle)
        rest = ids(feed, cold.splits(middle, end))
    assert first == expected(settings)[:25]
    assert rest == expected(settings)[25 : 25 + len(rest)]
    assert rest


def test_a_source_that_fails_is_followed_again_and_nothing_is_lost() -> None:
    settings = MemoryFeedSettings(changes=400, page=50, fail_at=(0, 120, 121, 399))
    feed = MemoryFeed(settings)
    with planning(feed) as planner:
        got: list[str] = []
        start: Offset = {}
        while len(got) < settings.changes:
            end = planner.advance(start)
            got += ids(feed, planner.splits(start, end))
            start = end
        assert got == expected(settings)
        assert planner.status()["reconnects"] == 4
    assert len(feed.failures) == 4


def test_children_start_when_their_parent_is_drained_and_durable() -> None:
    settings = MemoryFeedSettings(changes=50, page=20, partitions=3, chained=True)
    feed = MemoryFeed(settings)
    with planning(feed) as planner:
        got: list[str] = []
        start: Offset = {}
        while start.get(PartitionId("p2")) != DRAINED:
            end = planner.advance(start)
            fresh = ids(feed, planner.splits(start, end))
            for event in fresh:
                child = int(event[len("memory:p")])
                assert all(start[PartitionId(f"p{n}")] == DRAINED for n in range(child))
            got += fresh
            start = end
    assert got == [event for n in range(3) for event in expected(settings, f"p{n}")]


def test_a_drained_parent_stays_drained_after_a_crash() -> None:
    settings = MemoryFeedSettings(changes=50, page=20, partitions=2, chained=True)
    feed = MemoryFeed(settings)
    done: Offset = {P0: DRAINED}
    with planning(feed) as cold:
        end = cold.advance(done)
        assert end[P0] == DRAINED
        assert ids(feed, cold.splits(done, end))[0] == expected(settings, "p1")[0]


def test_the_buffer_is_bounded_and_then_the_source_is_not_read() -> None:
    feed = MemoryFeed(MemoryFeedSettings(changes=1_000_000, page=1_000))
    limit = 200_000
    with planning(feed, limits=ReadLimits(buffer=limit, patience=5.0)) as planner:
        start: Offset = {}
        end = planner.advance(start)
        most = 0
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            most = max(most, planner.status()["buffered_bytes"])
        # One read may return several pages on top of a buffer that is nearly full.
        assert limit <= most < limit + 100_000
        assert planner.splits(start, end)


def test_only_what_is_saved_is_acknowledged() -> None:
    feed = MemoryFeed(MemoryFeedSettings(changes=300, page=100))
    saved: Offset = {}

    def never(durable: Position, changes: int, *, force: bool = False) -> Position:
        return saved

    with planning(feed, limits=ReadLimits(events=100, patience=5.0), save=never) as planner:
        first = planner.advance({})
        planner.splits({}, first)
        second = planner.advance(first)
        assert feed.acknowledged == {}
        saved.update(first)
        planner.advance(second, patience=0)
        assert feed.acknowledged == first


def test_what_the_source_refuses_for_good_reaches_the_caller() -> None:
    class Gone(MemoryFeed):
        def follow(self, *args: object, **more: object) -> Following:
            raise PositionLost("the shard is trimmed")

    with (
        planning(Gone(MemoryFeedSettings())) as planner,
        pytest.raises(PositionLost, match="trimmed"),
    ):
        planner.advance({})


def test_an_idle_source_ends_a_trigger_after_its_patience() -> None:
    feed = MemoryFeed(MemoryFeedSettings(changes=0))
    with planning(feed) as planner:
        before = time.monotonic()
        assert planner.advance({}, patience=0.2) == {}
        assert 0.2 <= time.monotonic() - before < 30


def test_positions_are_settled_while_partitions_are_opened() -> None:
    feed = MemoryFeed(MemoryFeedSettings(changes=40, page=1, unit=1, partitions=40))
    planner = Planner(feed, limits=ReadLimits(), save=in_spark)
    opened = threading.Event()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def settle() -> None:
        while not opened.is_set():
            planner.settle({})
            planner.marks({})
            planner.status()

    try:
        with ThreadPoolExecutor(1) as thread:
            settling = thread.submit(settle)
            planner.open({})
            opened.set()
            settling.result(20)
    finally:
        opened.set()
        sys.setswitchinterval(before)
        planner.stop()
