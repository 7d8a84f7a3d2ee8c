"""A gap on its way: recorded before it is obeyed, told with its end, found again after a crash."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from penstock.feeds import Following, Gap, GapPolicy, HistoryLost
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, PenstockError
from penstock.model.position import START, Bookmark, PartitionId, Place
from penstock.reading.gaps import GapLog
from penstock.reading.reservoir import Reservoir
from tests.feeds.staged import StagedFeed, StagedFollowing, StagedSettings
from tests.reading.made import P0, positions_of
from tests.waiting import Clock, until


class Lossy(StagedFeed):
    """A feed that has lost something, until it is followed despite that."""

    def __init__(self, policy: GapPolicy, *, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(StagedSettings(changes=30, page=10))
        self.gap = Gap(cause="slot_missing", after="", detail="gone", policy=policy)
        self.despite: Sequence[Gap] = ()
        self._before = before

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Sequence[Gap] = ()
    ) -> Following:
        if not despite:
            raise HistoryLost(self.gap, hint="load it anew")
        self._before()
        self.despite = despite
        following = super().follow(partition, bookmark)
        following.begins = "0B"  # type: ignore[misc]
        return following


def filled(feed: StagedFeed, gaps: GapLog, bookmark: Bookmark = START) -> Reservoir:
    """A reservoir, once it has pages or has given up."""
    reservoir = Reservoir(feed, limit=10**6, gaps=gaps)
    reservoir.open(P0, bookmark)
    until(lambda: row(reservoir)["buffered_events"] or row(reservoir)["last_error"])
    return reservoir


def row(reservoir: Reservoir) -> Mapping[str, Any]:
    return reservoir.rows()[P0]


def failure(reservoir: Reservoir) -> None:
    """Raises what it gave up with."""
    with reservoir.wake:
        reservoir.check()


@pytest.mark.slow
def test_a_gap_is_recorded_before_anything_is_made_anew() -> None:
    store = MemoryStore()
    seen: list[object] = []
    feed = Lossy("continue", before=lambda: seen.append(positions_of(store).gaps.rows()))
    ledger = GapLog(positions_of(store))
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


class Marking(StagedFollowing):
    """One that knows more than is stored, and what was acknowledged to it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.heard: list[Bookmark] = []

    def bookmark(self, place: Place | None) -> Bookmark:
        return Bookmark(place, {"flushed": "read"})

    def acknowledge(self, bookmark: Bookmark) -> None:
        self.heard.append(bookmark)


def test_after_a_reconnect_the_source_is_acknowledged_no_more_than_is_stored() -> None:
    """Or else the slot would be further than the mark when we die before the next save, and taken
    for one that was made anew."""
    followed: list[tuple[Bookmark, Marking]] = []

    class Breaking(StagedFeed):
        def follow(self, *where: Any, **more: Any) -> Following:
            partition, bookmark = where
            followed.append((bookmark, Marking(self, partition, bookmark.place)))
            return followed[-1][1]

    stored = Bookmark(mark={"flushed": "stored"})
    feed = Breaking(StagedSettings(changes=30, page=10, fail_at=[10]))
    reservoir = filled(feed, GapLog(positions_of(MemoryStore())), stored)
    until(lambda: row(reservoir)["buffered_events"] == 30)
    reservoir.stop(5)
    (first, before), (second, after) = followed
    assert (first, before.heard) == (stored, [])
    assert second == Bookmark(Place("p0-000000000000", 9), {"flushed": "read"})
    assert after.heard == [stored]


@pytest.mark.slow
def test_a_gap_is_told_at_once() -> None:
    told: list[int] = []
    ledger = GapLog(report=lambda: told.append(1))
    filled(Lossy("continue"), ledger).stop(5)
    assert len(told) == 2  # and again when its end is known


@pytest.mark.slow
def test_without_a_store_gaps_are_logged_and_remembered_for_as_long_as_we_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = GapLog()
    filled(Lossy("continue"), ledger).stop(5)
    assert "history lost: slot_missing" in caplog.text
    assert ledger.rows()["p0"]["counts"] == {"slot_missing": 1}


def test_a_gap_of_a_position_that_another_instance_moved_is_none() -> None:
    """It moved the slot as well: what looks lost was delivered."""
    store = MemoryStore()
    ours, theirs = positions_of(store), positions_of(store)
    ours.save({P0: Bookmark(Place("0A", 0), {})})
    theirs.load()
    theirs.save({P0: Bookmark(Place("0B", 0), {})}, force=True)
    reservoir = filled(Lossy("continue"), GapLog(ours))
    with pytest.raises(LeaseLost):
        failure(reservoir)
    assert positions_of(store).gaps.rows() == {}
    reservoir.stop(5)


@pytest.mark.slow
def test_what_was_mended_meanwhile_is_seen() -> None:
    store = MemoryStore()

    clock = Clock()
    ledger = GapLog(positions_of(store), clock=clock)
    filled(Lossy("continue"), ledger).stop(5)
    assert ledger.rows()["p0"]["stale"]
    positions_of(store).gaps.clear("p0")
    clock.now += 60
    assert not ledger.rows()["p0"]["stale"]


def test_a_lost_history_pickles_with_its_gap() -> None:
    import pickle

    gap = Gap(cause="slot_lost", after="0A:1", to="0B", detail="gone", policy="continue")
    copy = pickle.loads(pickle.dumps(HistoryLost(gap, hint="load it anew")))
    assert (copy.gap, copy.hint, str(copy)) == (
        gap,
        "load it anew",
        "gone (load it anew) [gap.slot-lost]",
    )
    assert isinstance(copy, PenstockError)
