"""A gap on its way: recorded before it is obeyed, told with its end, found again after a crash."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.errors import LeaseLost, PenstockError, PositionLost
from penstock.feeds import Following, Gap, HistoryLost, Mark
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings, MemoryFollowing
from penstock.leases.memory import MemoryStore
from penstock.page import Page
from penstock.position import PartitionId, Place
from penstock.reading.gap_log import GapLog
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir

P0 = PartitionId("p0")


class Lossy(MemoryFeed):
    """A feed that has lost something, until it is followed despite that."""

    def __init__(self, *, continues: bool, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(MemoryFeedSettings(changes=30, page=10))
        self.gap = Gap(cause="slot_missing", after="", detail="gone", continues=continues)
        self.despite: Gap | None = None
        self._before = before

    def follow(
        self,
        partition: PartitionId,
        after: Place | None,
        mark: Mark | None = None,
        *,
        despite: Gap | None = None,
    ) -> Following:
        if despite is None:
            raise HistoryLost(self.gap, hint="load it anew")
        self._before()
        self.despite = despite
        following = super().follow(partition, after, mark)
        following.begins = "0B"  # type: ignore[misc]
        return following


def positions(store: MemoryStore) -> Positions:
    return Positions(store, "shop/default", interval=5.0, event_count=10, clock=time.monotonic)


def filled(feed: MemoryFeed, ledger: GapLog) -> Reservoir:
    """A reservoir, once it has pages or has given up."""
    wake = threading.Condition()
    reservoir = Reservoir(feed, P0, None, limit=10**6, wake=wake, watch=lambda: None, ledger=ledger)
    reservoir.start()
    until(lambda: reservoir.status()["buffered_events"] or reservoir.status()["last_error"])
    return reservoir


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_gap_is_recorded_before_anything_is_made_anew() -> None:
    store = MemoryStore()
    seen: list[object] = []
    feed = Lossy(continues=True, before=lambda: seen.append(positions(store).gaps.rows()))
    ledger = GapLog(positions(store))
    reservoir = filled(feed, ledger)
    reservoir.stop(5)
    (before,) = seen
    assert isinstance(before, dict)
    assert before["p0"]["gaps"][0]["to"] == ""
    row = ledger.rows()["p0"]
    assert row["stale"]
    assert row["counts"] == {"slot_missing": 1}
    (gap,) = row["gaps"]
    assert (gap["cause"], gap["from"], gap["to"], gap["policy"]) == (
        "slot_missing",
        "",
        "0B",
        "continue",
    )
    assert gap["at"].startswith("20")


def test_a_gap_found_by_what_was_read_is_found_again_by_what_was_stored() -> None:
    """The mark of what was read is ahead of the stored one until the next save, if there is one."""
    store = MemoryStore()
    gap = Gap(cause="slot_missing", after="0A:9", detail="gone", continues=False)
    GapLog(positions(store)).lost(P0, gap, {"flushed": "02"})
    ledger = GapLog(positions(store))
    ledger.lost(P0, gap, {"flushed": "01"})
    ledger.lost(P0, gap, {"flushed": "01"}, to="0B")
    row = ledger.rows()["p0"]
    assert row["counts"] == {"slot_missing": 1}
    assert [each["to"] for each in row["gaps"]] == ["0B"]


class Marking(MemoryFollowing):
    """One that knows more than is stored, and what it is told of that."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.settled: list[Mark | None] = []

    def mark(self, place: Place | None) -> Mark:
        return {"flushed": "read"}

    def settle(self, mark: Mark | None) -> None:
        self.settled.append(mark)


def test_behind_a_reconnect_the_source_is_told_no_more_than_is_stored() -> None:
    """Or else the slot would be further than the mark when we die before the next save, and taken
    for one that was made anew."""
    followed: list[tuple[Mark | None, Marking]] = []

    class Breaking(MemoryFeed):
        def follow(self, *where: Any, **more: Any) -> Following:
            partition, after, mark = where
            followed.append((mark, Marking(self, partition, after)))
            return followed[-1][1]

    stored = positions(MemoryStore())
    stored.marking(lambda _: {P0: {"flushed": "stored"}}, lambda *_: None)
    stored.save({}, 0, force=True)
    feed = Breaking(MemoryFeedSettings(changes=30, page=10, fail_at=[10]))
    reservoir = filled(feed, GapLog(stored))
    until(lambda: reservoir.status()["buffered_events"] == 30)
    reservoir.stop(5)
    (first, before), (second, behind) = followed
    assert (first, before.settled) == ({"flushed": "stored"}, [])
    assert (second, behind.settled) == ({"flushed": "read"}, [{"flushed": "stored"}])


class Broken(MemoryFollowing):
    def read(self, timeout: float) -> Sequence[Page]:
        raise PositionLost("the slot can't be read any more")


def test_a_position_that_is_lost_while_it_is_read_is_looked_at_again() -> None:
    class Losing(Lossy):
        followed = 0

        def follow(self, *args: Any, **more: Any) -> Following:
            self.followed += 1
            if self.followed == 1:
                return Broken(self, P0, None)
            return super().follow(*args, **more)

    ledger = GapLog(positions(MemoryStore()))
    reservoir = filled(Losing(continues=True), ledger)
    until(lambda: reservoir.status()["buffered_events"] == 30)
    reservoir.stop(5)
    assert ledger.rows()["p0"]["counts"] == {"slot_missing": 1}


def test_a_position_that_is_lost_again_though_all_looks_well_ends_the_partition() -> None:
    class Losing(MemoryFeed):
        followed = 0

        def follow(self, *args: Any, **more: Any) -> Following:
            self.followed += 1
            return Broken(self, P0, None)

    feed = Losing(MemoryFeedSettings(changes=30))
    reservoir = filled(feed, GapLog())
    with pytest.raises(PositionLost, match="can't be read"):
        until(lambda: list(reservoir.beyond(None)))
    assert feed.followed == 2
    reservoir.stop(5)


def test_a_gap_that_is_not_to_be_passed_stops_the_partition() -> None:
    ledger = GapLog(positions(MemoryStore()))
    feed = Lossy(continues=False)
    reservoir = filled(feed, ledger)
    with pytest.raises(PositionLost, match="gone") as caught:
        list(reservoir.beyond(None))
    assert caught.value.hint == "load it anew"
    assert feed.despite is None
    assert ledger.rows()["p0"]["gaps"][0]["policy"] == "fail"
    reservoir.stop(5)


def test_a_gap_is_told_at_once() -> None:
    told: list[int] = []
    ledger = GapLog(tell=lambda: told.append(1))
    filled(Lossy(continues=True), ledger).stop(5)
    assert len(told) == 2  # and again when its end is known


def test_without_a_store_gaps_are_logged_and_remembered_for_as_long_as_we_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = GapLog()
    filled(Lossy(continues=True), ledger).stop(5)
    assert "history lost: slot_missing" in caplog.text
    assert ledger.mark(P0) is None
    assert ledger.rows()["p0"]["counts"] == {"slot_missing": 1}


def test_a_gap_of_a_position_that_another_instance_moved_is_none() -> None:
    """It moved the slot as well: what looks lost was delivered."""
    store = MemoryStore()
    ours, theirs = positions(store), positions(store)
    ours.save({P0: Place("0A", 0)}, 1)
    theirs.load()
    theirs.save({P0: Place("0B", 0)}, 1, force=True)
    reservoir = filled(Lossy(continues=True), GapLog(ours))
    with pytest.raises(LeaseLost):
        list(reservoir.beyond(None))
    assert positions(store).gaps.rows() == {}
    reservoir.stop(5)


def test_what_was_mended_meanwhile_is_seen() -> None:
    store = MemoryStore()

    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()
    ledger = GapLog(positions(store), clock=clock)
    filled(Lossy(continues=True), ledger).stop(5)
    assert ledger.rows()["p0"]["stale"]
    positions(store).gaps.clear("p0")
    clock.now += 60
    assert not ledger.rows()["p0"]["stale"]


def test_a_lost_history_pickles_with_its_gap() -> None:
    import pickle

    gap = Gap(cause="slot_lost", after="0A:1", to="0B", detail="gone", continues=True)
    copy = pickle.loads(pickle.dumps(HistoryLost(gap, hint="load it anew")))
    assert (copy.gap, copy.hint, str(copy)) == (gap, "load it anew", "gone (load it anew)")
    assert isinstance(copy, PenstockError)
