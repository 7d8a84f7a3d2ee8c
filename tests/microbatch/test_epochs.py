"""Epochs over the memory feed: what is durable is saved and acknowledged while they run."""

import threading
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from penstock.feeds import Listing
from penstock.leases.memory import MemoryStore
from penstock.microbatch.draw import OpenDraw
from penstock.microbatch.epochs import SAVE, SHORT, WARM_UP, BufferedEpochs, Lengths
from penstock.microbatch.run_folder import write_task_slots
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.positions import Positions
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.reading.made import P0, P1, Made, feed_of, made, options_of, place
from tests.waiting import Clock, until


class Saving(Positions):
    """Positions that save only when they are open, or forced to."""

    is_open = True

    def is_due(self, changes: int) -> bool:
        super().is_due(changes)
        return self.is_open


def saving(store: MemoryStore | None = None) -> Saving:
    return Saving(store or MemoryStore(), "shop", interval=0, event_count=1, clock=Clock())


def tickets(lengths: Lengths, number: int) -> list[tuple[float, float]]:
    return [(each.seconds, each.most) for each in lengths.next(number)]


def test_the_first_epochs_are_short() -> None:
    lengths = Lengths(options_of(epoch=30.0))
    assert tickets(lengths, 1) == tickets(lengths, WARM_UP) == [(SHORT, 60.0)]
    assert tickets(lengths, WARM_UP + 1) == [(30.0, 60.0)]


@pytest.mark.slow
def test_a_thousand_partitions_are_one_ticket() -> None:
    with made(feed_of(partitions=1000), positions=saving()) as parts:
        assert len(parts.epochs().plan(1)) == 1


@pytest.mark.parametrize("is_spread", [False, True])
def test_without_a_slot_epochs_are_short_so_that_all_have_their_turn(
    tmp_path: Path, *, is_spread: bool
) -> None:
    lengths = Lengths(options_of(epoch=30.0, runtime=str(tmp_path)), is_spread=is_spread)
    assert tickets(lengths, WARM_UP + 1) == [(30.0, 60.0)], "it is not known how many there are"
    for slots, planned in ((0, [(SHORT, SHORT)]), (2, [(30.0, 60.0)] * (1 + is_spread))):
        write_task_slots(tmp_path, slots)
        assert tickets(lengths, WARM_UP + 2) == planned
        assert not lengths.ends_early(), "it was planned so"
    write_task_slots(tmp_path, int(is_spread))  # one less than there are groups
    assert lengths.ends_early()
    write_task_slots(tmp_path, 3)
    assert lengths.ends_early() == is_spread, "there may be more tasks"


def drawn(draw: OpenDraw, count: int) -> list[str]:
    """The places of the pages that hold so many changes, as they come."""
    pages = []
    deadline = time.monotonic() + 60
    while sum(page.count for page in pages) < count:
        assert time.monotonic() < deadline, pages
        more, _ = draw.next(1.0)
        pages += more
    return [str(page.last) for page in pages]


def test_an_epoch_begins_after_what_is_stored() -> None:
    with made(feed_of(), positions=saving()) as parts:
        epochs = parts.epochs()
        epochs.plan(1)
        assert drawn(epochs.draw(0, 1), 100)[0] == str(place(9))
        epochs.stored({P0: place(19)})
        assert drawn(epochs.draw(0, 1), 80)[0] == str(place(29))


def test_a_draw_gives_each_page_once() -> None:
    with made(feed_of(changes=1000), positions=saving()) as parts:
        epochs = parts.epochs()
        epochs.plan(1)
        assert len(drawn(epochs.draw(0, 1), 1000)) == 100


@pytest.mark.slow
def test_a_task_that_is_left_over_takes_no_page_from_the_next() -> None:
    with made(feed_of(), positions=saving()) as parts:
        epochs = parts.epochs()
        epochs.plan(1)
        zombie, new = epochs.draw(0, 1), epochs.draw(0, 1)
        assert drawn(zombie, 100) == drawn(new, 100)


def test_a_start_goes_on_from_its_bookmarks() -> None:
    with made(feed_of(), positions=saving()) as parts:
        epochs = parts.epochs()
        epochs.begin({P0: Bookmark(place(89))})
        epochs.plan(1)
        assert drawn(epochs.draw(0, 1), 10) == [str(place(99))]


def running(parts: Made, **given: Any) -> BufferedEpochs:
    """Epochs, once all is read."""
    epochs = parts.epochs(**given)
    epochs.plan(1)
    until(lambda: parts.row()["buffered_events"] == 100)
    return epochs


def test_stored_pages_are_released_at_once() -> None:
    """What is stored makes room for more, whoever saves and whenever."""
    positions = saving()
    positions.is_open = False
    with made(feed_of(), positions=positions) as parts:
        epochs = running(parts)
        epochs.stored({P0: place(19)})
        assert parts.row()["buffered_events"] == 80


def test_what_is_stored_is_saved_and_only_then_acknowledged() -> None:
    source, positions = feed_of(), saving()
    positions.is_open = False
    with made(source, positions=positions) as parts:
        epochs = running(parts)
        epochs.stored({P0: place(19)})
        assert source.acknowledged == {}
        epochs.save()
        assert source.acknowledged == {P0: place(19)}
        assert positions.load() == {P0: Bookmark(place(19), {})}


def test_what_was_stored_too_soon_to_be_saved_is_saved_later_in_the_epoch() -> None:
    source, positions, clock = feed_of(), saving(), Clock()
    positions.is_open = False
    with made(source, positions=positions) as parts:
        epochs = running(parts, clock=clock)
        epochs.stored({P0: place(19)})
        epochs.watch()
        positions.is_open = True
        epochs.watch()
        assert source.acknowledged == {}  # it was just looked at
        clock.now += SAVE
        epochs.watch()
        assert source.acknowledged == {P0: place(19)}


def test_what_is_new_is_saved_at_the_next_look() -> None:
    source = feed_of()
    with made(source, positions=saving()) as parts:
        epochs = running(parts)
        for number in (19, 29):
            epochs.stored({P0: place(number)})
            epochs.watch()
            assert source.acknowledged == {P0: place(number)}


def test_nobody_waits_while_positions_are_saved() -> None:
    began, disk = threading.Event(), threading.Event()

    class Slow(Saving):
        def save(self, *given: Any, **more: Any) -> Bookmarks:
            began.set()
            assert disk.wait(20)
            return super().save(*given, **more)

    source = feed_of()
    positions = Slow(MemoryStore(), "shop", interval=0, event_count=1, clock=Clock())
    with made(source, positions=positions) as parts:
        epochs = running(parts)
        epochs.stored({P0: place(9)})
        thread = threading.Thread(target=epochs.watch)
        thread.start()
        assert began.wait(20)
        epochs.stored({P0: place(19)})
        epochs.plan(2)
        assert drawn(epochs.draw(0, 1), 80)[0] == str(place(29))
        assert source.acknowledged == {}
        disk.set()
        thread.join(20)
        epochs.watch()
        assert source.acknowledged == {P0: place(19)}


def test_a_late_report_of_an_earlier_place_takes_nothing_back() -> None:
    with made(feed_of(), positions=saving()) as parts:
        epochs = running(parts)
        epochs.stored({P0: place(19)})
        epochs.stored({P0: place(9)})
        assert epochs.durable[P0].place == place(19)


def test_a_child_joins_while_the_epoch_is_open_and_not_before_its_parent_is_stored() -> None:
    with made(feed_of(partitions=2, chained=True), positions=saving()) as parts:
        epochs = parts.epochs()
        epochs.plan(1)
        draw = epochs.draw(0, 1)
        drawn(draw, 100)
        epochs.watch()
        assert draw.next(0.05) == ([], False)  # read, but not stored
        epochs.stored({P0: place(99)})
        epochs.watch()
        assert drawn(draw, 10)[0] == str(place(9, "p1"))
        assert epochs.durable[P0] == Bookmark(place(99), {}, ended=True)
        assert parts.positions is not None
        assert parts.positions.load()[P0].ended


def test_the_end_of_a_parent_and_its_childs_beginning_are_saved_before_the_child_is_read() -> None:
    with made(feed_of(partitions=2, chained=True), positions=saving()) as parts:
        positions = parts.positions
        assert isinstance(positions, Saving)
        positions.is_open = False  # it is never time to save
        epochs = parts.epochs()
        epochs.plan(1)
        draw = epochs.draw(0, 1)
        drawn(draw, 100)
        epochs.stored({P0: place(99)})
        epochs.watch()
        assert drawn(draw, 10)[0] == str(place(9, "p1"))
        saved = positions.load()
        assert saved[P0] == Bookmark(place(99), {}, ended=True)
        assert saved[P1].place is None


def test_a_partition_that_ends_without_a_change_has_its_children_read() -> None:
    class Empty(StagedFeed):
        def follow(self, partition: PartitionId, *args: Any, **more: Any) -> Any:
            following: Any = super().follow(partition, *args, **more)
            if partition == P0:
                following.next = 100
            return following

    feed = Empty(StagedSettings(changes=100, page=10, unit=1, partitions=2, chained=True))
    with made(feed, positions=saving()) as parts:
        epochs = parts.epochs()
        epochs.plan(1)
        until(lambda: parts.reservoir.ended)
        epochs.watch()
        assert drawn(epochs.draw(0, 1), 10)[0] == str(place(9, "p1"))


def test_children_that_the_source_lists_late_are_looked_for_again() -> None:
    class Late(StagedFeed):
        looks = 0

        def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
            self.looks += 1
            if self.looks == 2:
                raise Unavailable("it does not answer now")
            listed = list(super().partitions(known))[: 1 if self.looks < 5 else 2]
            return Listing(lineages=listed)

    feed = Late(StagedSettings(changes=100, page=10, unit=1, partitions=2, chained=True))
    with made(feed, positions=saving()) as parts:
        epochs = parts.epochs()
        epochs.plan(1)
        draw = epochs.draw(0, 1)
        drawn(draw, 100)
        epochs.stored({P0: place(99)})

        def joined() -> bool:
            epochs.watch()
            return P1 in parts.reservoir.open_partitions

        until(joined)
        assert feed.looks == 5
