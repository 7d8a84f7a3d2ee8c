"""The end of a run over the staged feed: partitions that end, split, merge and are lost."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.feeds import LogEnd
from penstock.feeds.memory import MemoryFollowing
from penstock.microbatch.options import BatchLimits
from penstock.model.errors import PositionLost
from penstock.model.page import Page
from penstock.model.position import Bookmarks
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.microbatch.test_planner import expected, ids
from tests.reading.made import Made, made, place

LIMITS = BatchLimits(50_000, 1 << 24)


def run(parts: Made, feed: StagedFeed, start: Any = None) -> tuple[list[str], Any]:
    """A run to its end; returns the ids of its changes, and its last offset."""
    planner, got = parts.planner, list[str]()
    planner.end_by_itself(feed)
    start = planner.begin(feed.begin()) if start is None else start
    while (end := planner.next(start, LIMITS)) != start:
        got += ids(feed, list(planner.parts(start, end)))  # type: ignore[arg-type]
        start = end
    assert planner.next(start, LIMITS) == start
    return got, start


def test_children_and_their_children_are_read_to_their_end() -> None:
    feed = StagedFeed(StagedSettings(changes=40, page=5, unit=1, generations=2))
    with made(feed) as parts:
        got, end = run(parts, feed)
    assert sorted(got) == sorted(e for name in feed.lineage for e in expected(feed.settings, name))
    with made(feed) as parts:
        assert run(parts, feed, end)[0] == []


def test_many_partitions_without_a_change_are_over_in_seconds() -> None:
    feed = StagedFeed(StagedSettings(changes=0, partitions=200))
    began = time.monotonic()
    with made(feed) as parts:
        assert run(parts, feed)[0] == []
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("by", ["place", "time"])
def test_a_page_that_reaches_over_the_end_is_cut_there(by: str) -> None:
    class Ending(StagedFeed):
        def end(self, known: Bookmarks) -> LogEnd:
            # Change n is committed n milliseconds after the first one.
            time = LogEnd(time=self.decoder_time(57))
            return LogEnd(places={"p0": place(57)}) if by == "place" else time  # type: ignore[dict-item]

        def decoder_time(self, number: int) -> float:
            from penstock.feeds.memory import COMMITTED

            return COMMITTED.timestamp() + number / 1000

    feed = Ending(StagedSettings(changes=100, page=20, unit=1))
    with made(feed) as parts:
        got, end = run(parts, feed)
    assert got == expected(feed.settings)[:58]
    whole = StagedFeed(feed.settings)
    with made(whole) as parts:
        assert run(parts, whole, end)[0] == expected(feed.settings)[58:]


def test_a_read_that_began_before_the_end_was_pinned_proves_nothing() -> None:
    class Late(MemoryFollowing):
        reads = 0

        def read(self, timeout: float) -> Sequence[Page]:
            type(self).reads += 1
            return super().read(timeout) if type(self).reads > 20 else ()

    class Feed(StagedFeed):
        def end(self, known: Bookmarks) -> LogEnd:
            while parts.reservoir.emptied_at("p0") < 0:  # type: ignore[arg-type]
                parts.reservoir.open("p0", known["p0"])  # type: ignore[arg-type,index]
                time.sleep(0.01)
            Late.reads = 100
            return super().end(known)

        def follow(self, *given: Any, **more: Any) -> Any:
            return Late(self, given[0], None)

    feed = Feed(StagedSettings(changes=30, page=10, unit=1))
    with made(feed) as parts:
        assert run(parts, feed)[0] == expected(feed.settings)


@pytest.mark.slow
def test_what_one_partition_lost_ends_the_run_after_the_others() -> None:
    feed = StagedFeed(StagedSettings(changes=50, page=10, partitions=3, trimmed=5))
    got: list[str] = []
    with made(feed) as parts:
        start = parts.planner.begin(feed.begin())
        parts.planner.end_by_itself(feed)
        with pytest.raises(PositionLost):
            while (end := parts.planner.next(start, LIMITS)) != start:
                got += ids(feed, list(parts.planner.parts(start, end)))  # type: ignore[arg-type]
                start = end
    assert sorted(got) == sorted(expected(feed.settings, "p1") + expected(feed.settings, "p2"))
