"""What a host asks the sink before it opens a partition that it took: where a feed moves bookmarks,
what the last owner stored must not be read again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from penstock.errors import SettingsError, Unavailable
from penstock.feeds.memory import MemoryFeed
from penstock.leases.memory import MemoryStore
from penstock.position import Bookmark, PartitionId
from penstock.reading.assignments import Assignments
from penstock.reading.epochs import Lengths
from penstock.reading.shared import SharedPositions
from penstock.reading.shared_epochs import SharedEpochs
from penstock.reading.sharing import SharedPartitions
from penstock.reading.taken import TakenPartitions
from penstock.sinks import Record
from tests.reading.made import P0, Clock, feed_of, place
from tests.reading.test_shared_epochs import PREFIX, SHARING, Member, pass_time, row

SAVED, STORED = Bookmark(place(9), {}), Bookmark(place(29), {})


class Moving(MemoryFeed):
    """Goes on where the sink is."""

    def moved(self, saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
        return stored


class StoringSink:
    """Says how far it has partitions, after `before`."""

    def __init__(self, **has: Bookmark) -> None:
        self.has = has
        self.asked: list[Sequence[PartitionId]] = []
        self.before: Callable[[], None] = lambda: None

    def records(
        self, backend: str, partitions: Sequence[PartitionId]
    ) -> Mapping[PartitionId, Record]:
        self.asked.append(partitions)
        self.before()
        return {
            name: Record(bookmark=self.has.get(name), begun=name in self.has) for name in partitions
        }


def moving(**given: Any) -> Moving:
    return Moving(feed_of(polled=True, **given).settings)


def taken(sink: Any, feed: MemoryFeed | None = None) -> TakenPartitions:
    return TakenPartitions(feed or moving(), sink)


def test_a_partition_is_ready_after_what_the_sink_has() -> None:
    sink = StoringSink(p0=STORED)
    found = taken(sink)
    other = Bookmark(place(3, "p1"), {})
    found.add({P0: SAVED, PartitionId("p1"): other})
    assert found.ready() == {}
    found.ask()
    assert found.ready() == {P0: STORED, "p1": other}
    assert found.ready() == {}
    found.ask()
    assert len(sink.asked) == 1, "of all that was taken at once"


def test_a_feed_that_does_not_move_bookmarks_asks_nothing() -> None:
    sink = StoringSink(p0=STORED)
    found = taken(sink, feed_of(polled=True))
    found.add({P0: SAVED})
    assert found.ready() == {P0: SAVED}
    assert sink.asked == []


@pytest.mark.parametrize("error", [Unavailable("away"), SettingsError("not there")])
def test_while_the_sink_does_not_answer_nothing_is_ready(error: Exception) -> None:
    sink, ends = StoringSink(p0=STORED), [error]

    def fails() -> None:
        if ends:
            raise ends.pop()

    sink.before = fails
    found = taken(sink)
    found.add({P0: SAVED})
    assert found.ask() < 60
    assert (found.ready(), found.error) == ({}, str(error))
    found.ask()
    assert (found.ready(), found.error) == ({P0: STORED}, "")


def test_what_is_given_up_while_the_sink_is_asked_is_not_ready() -> None:
    sink = StoringSink(p0=STORED)
    found = taken(sink)
    found.add({P0: SAVED})
    sink.before = lambda: found.discard(P0)
    found.ask()
    assert found.ready() == {}
    again = Bookmark(place(19), {})
    sink.before = lambda: found.add({P0: again})  # taken again meanwhile: an answer of before
    found.add({P0: SAVED})
    found.ask()
    assert found.ready() == {}
    sink.before = lambda: None
    found.ask()
    assert found.ready() == {P0: STORED}


class Mover(Member):
    """A host whose feed moves bookmarks."""

    def __init__(self, name: str, store: MemoryStore, clock: Clock, sink: Any) -> None:
        self.clock, self.number = clock, 0
        self.positions = SharedPositions(store, PREFIX, name, clock=clock)
        self.shared = SharedPartitions(moving(), self.positions, SHARING, sink=sink, clock=clock)
        self.assignments = Assignments(1 << 20)
        self.epochs = SharedEpochs(
            self.assignments, self.shared, self.positions, Lengths(30.0), clock
        )
        self.epochs.begin({})


def test_what_a_host_that_is_gone_stored_is_not_read_again() -> None:
    store, clock, sink = MemoryStore(), Clock(), StoringSink()
    a = Mover("a", store, clock, sink)
    pass_time(3, a)
    assert a.reads == {P0}
    sink.has = {"p0": STORED}  # and not saved: `a` ends here
    b = Mover("b", store, clock, sink)
    pass_time(15, b)
    assert b.reads == {P0}
    assert b.epochs.durable == {P0: STORED}
    b.epochs.save()
    assert STORED.place is not None
    assert STORED.place.cursor in row(store).continuation


def test_a_lease_that_was_lost_while_the_sink_was_away_opens_nothing() -> None:
    store, clock, sink = MemoryStore(), Clock(), StoringSink()

    def away() -> None:
        raise Unavailable("the sink is away")

    sink.before = away
    a = Mover("a", store, clock, sink)
    pass_time(3, a)
    assert a.reads == set()
    assert a.shared.status()["last_error"] == "the sink is away"
    sink.before = lambda: None
    clock.now += 11  # frozen for longer than the lease lasts
    a.shared.discover()
    a.epochs.watch()
    assert a.reads == set(), "another host may have it"
    a.plan()
    pass_time(3, a)
    assert a.reads == {P0}
