"""Epochs over the memory feed: what is durable is saved and acknowledged while they run."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.position import DRAINED, PartitionId, Place, Position
from penstock.reading.epochs import SETTLE, SHORT, WARM_UP, Epochs
from penstock.reading.planner import Planner, ReadLimits

P0, P1 = PartitionId("p0"), PartitionId("p1")


class Saved:
    """A `Save` that notes what it was given, and saves it only if told to or forced."""

    def __init__(self) -> None:
        self.position: Position = {}
        self.open = True
        self.now = 0.0

    def __call__(self, durable: Position, changes: int, *, force: bool = False) -> Position:
        if self.open or force:
            self.position = dict(durable)
        return self.position


@contextmanager
def epochs(
    feed: MemoryFeed, saved: Saved, slots: Callable[[], int | None] = lambda: None
) -> Iterator[tuple[Epochs, Planner]]:
    planner = Planner(feed, limits=ReadLimits(), save=saved)
    made = Epochs(planner, seconds=30.0, slots=slots, clock=lambda: saved.now)
    try:
        yield made, planner
    finally:
        planner.stop()


def feed(**settings: object) -> MemoryFeed:
    return MemoryFeed(MemoryFeedSettings(changes=100, page=10, unit=1, **settings))  # type: ignore[arg-type]


def test_the_first_epochs_are_short() -> None:
    with epochs(feed(), Saved()) as (made, _):
        assert [epoch.seconds for epoch in made.plan(1)] == [SHORT]
        assert [(epoch.seconds, epoch.most) for epoch in made.plan(WARM_UP)] == [(SHORT, 60.0)]
        assert [epoch.seconds for epoch in made.plan(WARM_UP + 1)] == [30.0]


@pytest.mark.parametrize(("slots", "seconds"), [(0, SHORT), (1, SHORT), (2, 30.0), (None, 30.0)])
def test_with_fewer_tasks_than_partitions_all_of_them_have_their_turn(
    slots: int | None, seconds: float
) -> None:
    with epochs(feed(partitions=2), Saved(), lambda: slots) as (made, _):
        planned = made.plan(WARM_UP + 1)
        assert [epoch.seconds for epoch in planned] == [seconds] * 2
        assert all(epoch.most == (SHORT if seconds == SHORT else 60.0) for epoch in planned)


def test_an_open_epoch_is_cut_short_when_slots_are_gone_and_not_when_it_was_short_anyway() -> None:
    slots = [2]
    with epochs(feed(partitions=2), Saved(), lambda: slots[0]) as (made, _):
        made.plan(WARM_UP + 1)
        assert not made.is_cut_short()
        slots[0] = 1
        assert made.is_cut_short()
        assert [epoch.seconds for epoch in made.plan(WARM_UP + 2)] == [SHORT] * 2
        assert not made.is_cut_short()


def test_epochs_are_long_again_when_slots_come() -> None:
    slots = [0]
    with epochs(feed(partitions=2), Saved(), lambda: slots[0]) as (made, _):
        assert [epoch.seconds for epoch in made.plan(WARM_UP + 1)] == [SHORT] * 2
        slots[0] = 2
        assert [epoch.seconds for epoch in made.plan(WARM_UP + 2)] == [30.0] * 2


def test_an_epoch_begins_behind_what_is_stored() -> None:
    with epochs(feed(), Saved()) as (made, _):
        assert [(epoch.partition, epoch.after) for epoch in made.plan(1)] == [(P0, None)]
        made.stored(P0, Place("p0-000000000009", 0))
        assert [epoch.after for epoch in made.plan(2)] == [Place("p0-000000000009", 0)]


def test_a_start_goes_on_from_its_position() -> None:
    with epochs(feed(), Saved()) as (made, planner):
        made.begin({P0: Place("p0-000000000089", 0)})
        (epoch,) = made.plan(1)
        pages, _ = planner.draw(P0, epoch.after, None, 20.0)
        assert pages[0].first == Place("p0-000000000090", 0)


def until_connected(planner: Planner) -> None:
    deadline = time.monotonic() + 60
    while not planner.status()["connected"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_is_stored_is_saved_and_only_then_acknowledged() -> None:
    source, saved = feed(), Saved()
    saved.open = False
    with epochs(source, saved) as (made, planner):
        made.plan(1)
        until_connected(planner)
        made.stored(P0, Place("p0-000000000019", 0))
        assert source.acknowledged == {}
        made.settle()
        assert source.acknowledged == saved.position == {P0: Place("p0-000000000019", 0)}


def test_what_was_stored_too_soon_to_be_saved_is_saved_later_in_the_epoch() -> None:
    source, saved = feed(), Saved()
    saved.open = False
    with epochs(source, saved) as (made, planner):
        made.plan(1)
        until_connected(planner)
        made.stored(P0, Place("p0-000000000019", 0))
        made.watch()
        saved.open = True
        made.watch()
        assert source.acknowledged == {}  # it was just looked at
        saved.now += SETTLE
        made.watch()
        assert source.acknowledged == {P0: Place("p0-000000000019", 0)}


def test_what_is_new_is_saved_at_the_next_look() -> None:
    source, saved = feed(), Saved()
    with epochs(source, saved) as (made, planner):
        made.plan(1)
        until_connected(planner)
        for place in (Place("p0-000000000019", 0), Place("p0-000000000029", 0)):
            made.stored(P0, place)
            made.watch()
            assert source.acknowledged == saved.position == {P0: place}


def test_nobody_waits_while_positions_are_saved() -> None:
    saving, disk = threading.Event(), threading.Event()

    class Slow(Saved):
        def __call__(self, durable: Position, changes: int, *, force: bool = False) -> Position:
            saving.set()
            assert disk.wait(20)
            return super().__call__(durable, changes, force=force)

    source = feed()
    with epochs(source, Slow()) as (made, _):
        made.plan(1)
        made.stored(P0, Place("p0-000000000009", 0))
        thread = threading.Thread(target=made.watch)
        thread.start()
        assert saving.wait(20)
        made.stored(P0, Place("p0-000000000019", 0))
        assert [epoch.after for epoch in made.plan(2)] == [Place("p0-000000000019", 0)]
        assert source.acknowledged == {}
        disk.set()
        thread.join(20)
        assert source.acknowledged == {P0: Place("p0-000000000009", 0)}
        made.watch()
        assert source.acknowledged == {P0: Place("p0-000000000019", 0)}


def test_late_word_of_an_earlier_place_takes_nothing_back() -> None:
    with epochs(feed(), Saved()) as (made, _):
        made.plan(1)
        made.stored(P0, Place("p0-000000000019", 0))
        made.stored(P0, Place("p0-000000000009", 0))
        assert made.durable == {P0: Place("p0-000000000019", 0)}


def test_children_begin_in_the_epoch_after_their_parent_is_drained_and_durable() -> None:
    with epochs(feed(partitions=2, chained=True), Saved()) as (made, planner):
        assert [epoch.partition for epoch in made.plan(1)] == [P0]
        after: Place | None = None
        over = False
        while not over:
            pages, over = planner.draw(P0, after, None, 20.0)
            after = pages[-1].last if pages else after
        assert [epoch.partition for epoch in made.plan(2)] == [P0]  # read, but not stored
        assert after is not None
        made.stored(P0, after)
        assert [epoch.partition for epoch in made.plan(3)] == [P1]
        assert made.durable[P0] == DRAINED
