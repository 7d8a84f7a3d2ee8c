"""Which partitions may be read, from listings that may be stale."""

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from penstock.feeds import Lineage, Listing
from penstock.feeds.shared import hole_before
from penstock.model.errors import PositionLost
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId
from penstock.reading.roster import AGAIN, LOOKUP, Absences, Roster, openings
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.reading.made import made, place
from tests.waiting import Clock

READ = Bookmark(place(3), {})
DONE = Bookmark(place(9), {}, ended=True)


def p(*names: str) -> set[PartitionId]:
    return set(map(PartitionId, names))


def known(**bookmarks: Bookmark) -> dict[PartitionId, Bookmark]:
    return {PartitionId(name): each for name, each in bookmarks.items()}


def names(text: str) -> tuple[PartitionId, ...]:
    return tuple(map(PartitionId, text.split()))


def tree(text: str) -> list[Lineage]:
    """`a; b < a c`: b's parents are a and c."""
    found = []
    for each in filter(None, text.split("; ")):
        name, _, parents = each.partition(" < ")
        found.append(Lineage(partition=PartitionId(name), parents=names(parents)))
    return found


def test_a_partition_is_ready_when_its_parents_are_done() -> None:
    listed = tree("a; b < a; c < b")
    assert set(openings(listed, {}, ()).ready) == p("a")
    assert set(openings(listed, known(a=READ), p("a")).ready) == set()
    assert set(openings(listed, known(a=DONE), ()).ready) == p("b")


def test_a_child_begins_where_the_feed_says_that_its_parents_led() -> None:
    first = Bookmark(None, {"since": 7})
    listed = [*tree("a; b"), Lineage(partition=PartitionId("m"), parents=names("a b"), first=first)]
    assert openings(listed, known(a=DONE, b=READ), p("b")).ready == {}
    assert openings(listed, known(a=DONE, b=DONE), ()).ready == {PartitionId("m"): first}


def test_a_partition_that_is_missing_is_ready_only_when_it_is_absent() -> None:
    listed = tree("b < a")
    found = openings(listed, known(a=READ), ())
    assert (found.ready, found.missing) == ({}, p("a"))
    found = openings(listed, known(a=READ), (), p("a"))
    assert (found.ready, found.missing) == (known(a=READ), p("a"))
    assert openings(listed, known(a=READ), p("a")).missing == set()  # it is read already


def test_at_a_first_start_a_child_waits_for_a_parent_that_is_missing_until_that_is_absent() -> None:
    listed = tree("c < b")
    found = openings(listed, {}, ())
    assert (found.ready, found.missing) == ({}, p("b"))
    assert openings(listed, {}, (), p("b")).ready == {PartitionId("c"): START}


def hole(opened: Bookmark) -> bool:
    return hole_before(opened, "fail") is not None


def test_what_descends_from_nothing_known_is_behind_a_hole_once_two_listings_say_so() -> None:
    listed = tree("a; c < b; d < c")
    found = openings(listed, known(a=DONE), ())
    assert (found.ready, found.missing) == ({}, p("b", "c"))
    found = openings(listed, known(a=DONE), (), p("b", "c"))
    assert set(found.ready) == p("c"), "and its own child waits for it"
    assert hole(found.ready[PartitionId("c")])


def test_a_merged_child_with_one_parent_that_was_never_known_is_behind_a_hole() -> None:
    found = openings(tree("a; m < a b"), known(a=DONE), (), p("b", "m"))
    assert hole(found.ready[PartitionId("m")])


def test_when_all_that_was_known_has_ended_and_is_gone_what_is_there_is_behind_a_hole() -> None:
    found = openings(tree("x"), known(a=DONE), (), p("x"))
    assert hole(found.ready[PartitionId("x")])
    assert found.forgotten == [], "what ended stays until a descendant is known"


def test_nothing_from_behind_a_hole_is_opened_while_something_known_is_missing() -> None:
    listed, both = tree("a; c < b"), known(a=DONE, k=READ)
    found = openings(listed, both, (), p("b", "c", "k"))
    assert set(found.ready) == p("k"), "which following says is lost, or not"
    assert openings(listed, both, p("k"), p("b", "c")).ready == {}, "also while it is asked for"
    assert set(openings(listed, known(a=DONE, k=DONE), (), p("b", "c")).ready) == p("c")


def test_what_descends_from_something_known_is_opened_while_another_is_missing() -> None:
    assert set(openings(tree("a; b < a"), known(a=DONE, k=READ), ()).ready) == p("b")


def test_a_new_partition_that_its_feed_begins_itself_is_behind_no_hole() -> None:
    first = Bookmark(None, {"offset": 0})
    listed = [*tree("a"), Lineage(partition=PartitionId("new"), first=first)]
    assert openings(listed, known(a=READ), p("a")).ready == {PartitionId("new"): first}


def test_a_partition_where_a_feed_began_waits_for_no_parent_that_is_missing() -> None:
    assert openings(tree("b < a"), known(b=START), ()).ready == known(b=START)


def test_an_ended_partition_is_forgotten_when_it_is_not_listed_and_its_children_are_known() -> None:
    listed = tree("b < a; c < a; d < b")
    assert openings(listed, known(a=DONE, b=READ), p("b")).forgotten == []
    assert openings(listed, known(a=DONE, b=READ, c=READ), p("b", "c")).forgotten == ["a"]
    assert openings([*tree("a"), *listed], known(a=DONE, b=READ, c=READ), ()).forgotten == []


def test_an_ended_partition_without_a_child_is_kept() -> None:
    assert openings(tree("a"), known(a=DONE), ()).forgotten == []
    assert openings([], known(a=DONE), ()).forgotten == []


def test_an_ancestor_that_was_forgotten_is_done() -> None:
    listed = tree("a; x; b < a; m < a x; d < b")
    assert openings(listed, known(x=READ, d=READ), p("d", "x")).ready == {}
    assert set(openings(listed, known(x=DONE, d=READ), p("d")).ready) == p("m")


def test_only_two_listings_some_seconds_apart_make_a_partition_absent() -> None:
    absences = Absences()
    assert absences.confirmed(p("a"), 10.0) == set()
    assert absences.confirmed(p("a", "b"), 10.0 + AGAIN / 2) == set()
    assert absences.confirmed(p("a", "b"), 10.0 + AGAIN) == p("a")
    assert absences.confirmed(p("b"), 10.1 + AGAIN) == set()  # a was listed again
    assert absences.confirmed(p("a", "b"), 10.0 + 1.5 * AGAIN) == p("b")


def test_a_listing_that_is_not_complete_confirms_no_absence() -> None:
    absences = Absences()
    assert absences.confirmed(p("a"), 10.0, counts=False) == set()
    assert absences.confirmed(p("a"), 10.0 + AGAIN, counts=False) == set()
    assert absences.confirmed(p("a"), 10.0 + AGAIN) == set()
    assert absences.confirmed(p("a"), 10.0 + 1.5 * AGAIN, counts=False) == set()
    assert absences.confirmed(p("a"), 10.0 + 2 * AGAIN) == p("a")


class Listed(StagedFeed):
    """`listed` is what the source lists."""

    listed: Sequence[Lineage] = ()
    complete = True

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        self.listings += 1
        return Listing(lineages=self.listed, complete=self.complete)


def test_the_roster_looks_again_soon_where_a_listing_left_something_out() -> None:
    clock, feed = Clock(), Listed(StagedSettings())
    roster = Roster(feed, clock=clock)
    feed.listed = tree("b < a")
    found = roster.look_up(known(a=READ), ())
    assert found is not None
    assert found.ready == {}
    assert roster.look_up(known(a=READ), ()) is None
    clock.now += AGAIN
    feed.listed = tree("a; b < a")
    found = roster.look_up(known(a=READ), ())
    assert found is not None
    assert found.ready == known(a=READ)
    clock.now += AGAIN
    assert roster.look_up(known(a=READ), p("a")) is None
    clock.now += LOOKUP
    assert roster.look_up(known(a=READ), p("a")) is not None


@pytest.mark.parametrize("listed", ["", "b < a"], ids=["empty", "half of it"])
def test_an_incomplete_listing_is_no_evidence(listed: str) -> None:
    clock, feed = Clock(), Listed(StagedSettings())
    feed.listed, feed.complete = tree(listed), False
    roster = Roster(feed, clock=clock)
    for _ in range(5):
        found = roster.look_up(known(a=READ), ())
        assert found is None or found.ready == {}
        clock.now += AGAIN


def seconds_until(roster: Roster, clock: Clock, bookmarks: dict[PartitionId, Bookmark]) -> float:
    """Until something is opened."""
    began = clock.now
    while not ((found := roster.look_up(bookmarks, ())) and found.ready):
        clock.now += 0.01
        assert clock.now - began < 100
    return clock.now - began


@pytest.mark.parametrize("quiet", [0.5, 60.0, 110.0])
def test_a_late_child_is_opened_two_seconds_after_its_listing_also_after_another(
    quiet: float,
) -> None:
    clock, feed = Clock(), Listed(StagedSettings())
    roster = Roster(feed, clock=clock)
    feed.listed = tree("a")
    bookmarks = known(a=DONE)
    until = clock.now + quiet
    while clock.now < until:
        roster.look_up(bookmarks, ())
        clock.now += 0.01
    feed.listed = tree("a; b < a")
    assert seconds_until(roster, clock, bookmarks) <= AGAIN + 0.02
    bookmarks |= known(b=READ)
    if quiet < 100:  # two minutes after the end
        clock.now += 5.0
        roster.look_up(bookmarks, p("b"))
        feed.listed = tree("a; b < a; c < a")
        began = clock.now
        while not ((found := roster.look_up(bookmarks, p("b"))) and found.ready):
            clock.now += 0.01
        assert clock.now - began <= AGAIN + 0.02
        assert not hole(found.ready[PartitionId("c")])


def test_an_ended_partition_is_forgotten_only_after_two_listings() -> None:
    clock, feed = Clock(), Listed(StagedSettings())
    roster = Roster(feed, clock=clock)
    feed.listed = tree("b < a")
    bookmarks = known(a=DONE, b=READ)
    found = roster.look_up(bookmarks, p("b"))
    assert found is not None
    assert found.forgotten == []
    clock.now += AGAIN
    found = roster.look_up(bookmarks, p("b"))
    assert found is not None
    assert found.forgotten == ["a"]


def test_look_ups_of_a_settled_source_are_seldom() -> None:
    clock, feed = Clock(), Listed(StagedSettings())
    roster = Roster(feed, clock=clock)
    feed.listed = tree("a; b < a")
    bookmarks = known(a=DONE, b=READ)
    for _ in range(20_000):
        roster.look_up(bookmarks, p("b"))
        clock.now += 0.05
    assert feed.listings < 1_000 / LOOKUP + 200


@pytest.mark.slow
def test_reading_says_that_a_partition_is_gone() -> None:
    given = {"changes": 20, "unit": 1, "partitions": 1, "unlisted": ("p0",)}
    feed = StagedFeed(StagedSettings.model_validate(given))
    with made(feed) as parts:
        with pytest.raises(PositionLost, match="no longer lists"):
            parts.planner.advance({PartitionId("p0"): READ}, patience=60.0)
        [gap] = parts.gaps.rows()["p0"]["gaps"]
        assert (gap["cause"], gap["from"]) == ("partition_gone", str(READ.place))


class ListsChildrenToo(Listed):
    """Notes of which partitions children were asked for."""

    def __init__(self) -> None:
        super().__init__(StagedSettings())
        self.asked: list[PartitionId] = []

    def children(self, known: Bookmarks, of: Sequence[PartitionId]) -> Listing:
        self.asked += of
        return Listing(lineages=self.listed, complete=False)


@pytest.mark.slow
def test_whole_listings_are_seldom_where_a_feed_lists_children() -> None:
    """While one of 1,000 shards ends every 14 seconds."""
    clock, feed = Clock(), ListsChildrenToo()
    roster = Roster(feed, clock=clock)
    bookmarks: dict[PartitionId, Bookmark] = {}
    lineages, opened = [], set[PartitionId]()
    for number in range(100):
        old, new = PartitionId(f"{number}"), PartitionId(f"{number}.0")
        bookmarks |= {old: DONE}
        lineages += [Lineage(partition=old), Lineage(partition=new, parents=(old,), first=READ)]
        feed.listed = tuple(lineages)
        until = clock.now + 14
        while clock.now < until:
            found = roster.look_up(bookmarks, opened)
            if found is not None:
                bookmarks |= found.ready
                opened |= found.ready.keys()
            clock.now += 0.2
        assert new in opened
    assert feed.listings <= 1400 / LOOKUP + 2
    assert len(feed.asked) < 30 * 100


def test_what_a_listing_of_children_leaves_out_is_looked_up_whole() -> None:
    clock, feed = Clock(), ListsChildrenToo()
    roster = Roster(feed, clock=clock)
    feed.listed = tree("a; b")
    bookmarks = known(a=READ, b=READ)
    roster.look_up(bookmarks, p("a", "b"))
    bookmarks |= known(a=DONE)
    feed.listed = tree("a; b; d < c")  # its parent is in no listing
    for _ in range(3):
        clock.now += AGAIN
        found = roster.look_up(bookmarks, p("b"))
    assert feed.listings == 3
    assert found is not None
    assert hole(found.ready[PartitionId("d")])


def test_a_look_up_takes_time_linear_in_what_is_listed() -> None:
    """Counted, and not measured: what is walked through."""

    class Counted(dict[PartitionId, Bookmark]):
        walks = 0

        def __iter__(self) -> Iterator[PartitionId]:
            Counted.walks += 1
            return super().__iter__()

        def keys(self) -> Any:
            Counted.walks += 1
            return super().keys()

    counts = []
    for size in (50, 200):
        text = "; ".join(f"a{n}; b{n} < a{n}; c{n} < b{n}" for n in range(size))
        listed = tree(text)
        bookmarks = Counted({each.partition: DONE for each in listed})
        Counted.walks = 0
        openings(listed, bookmarks, ())
        counts.append(Counted.walks)
    assert counts[0] == counts[1]
