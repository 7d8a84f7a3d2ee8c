"""Which partitions may be read, from listings that may be stale."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PositionLost
from penstock.feeds import Lineage
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.position import START, Bookmark, PartitionId
from penstock.reading.roster import AGAIN, LOOKUP, Absences, Roster, lease_changes, openings
from tests.reading.made import Clock, made, place

READ = Bookmark(place(3), {})
DONE = Bookmark(place(9), {}, ended=True)


def p(*names: str) -> set[PartitionId]:
    return set(map(PartitionId, names))


def known(**bookmarks: Bookmark) -> dict[PartitionId, Bookmark]:
    return {PartitionId(name): each for name, each in bookmarks.items()}


def tree(text: str) -> list[Lineage]:
    """`a; b < a c`: b's parents are a and c."""
    found = []
    for each in filter(None, text.split("; ")):
        name, _, parents = each.partition(" < ")
        found.append(
            Lineage(partition=PartitionId(name), parents=tuple(map(PartitionId, parents.split())))
        )
    return found


def test_a_partition_is_ready_when_its_parents_are_done() -> None:
    listed = tree("a; b < a; c < b")
    assert set(openings(listed, {}, ()).ready) == p("a")
    assert set(openings(listed, known(a=READ), p("a")).ready) == set()
    assert set(openings(listed, known(a=DONE), ()).ready) == p("b")


def test_a_child_begins_with_the_last_bookmarks_of_its_parents() -> None:
    found = openings(tree("a; b; m < a b"), known(a=DONE, b=DONE), ())
    parents = {"a": DONE.to_json(), "b": DONE.to_json()}
    assert found.ready == {PartitionId("m"): Bookmark(None, {"parents": parents})}


def test_a_partition_that_is_missing_is_ready_only_when_it_is_absent() -> None:
    listed = tree("b < a")
    found = openings(listed, known(a=READ), ())
    assert (found.ready, found.missing) == ({}, p("a"))
    found = openings(listed, known(a=READ), (), p("a"))
    assert (found.ready, found.missing) == (known(a=READ), p("a"))
    assert openings(listed, known(a=READ), p("a")).missing == set()  # it is read already


def test_a_child_waits_for_a_parent_that_is_missing_until_that_is_absent() -> None:
    listed = tree("a; c < b")
    found = openings(listed, known(a=DONE), ())
    assert (found.ready, found.missing) == ({}, p("b"))
    found = openings(listed, known(a=DONE), (), p("b"))
    assert found.ready == {PartitionId("c"): START}


def test_a_partition_where_a_feed_began_waits_for_no_parent_that_is_missing() -> None:
    assert openings(tree("b < a"), known(b=START), ()).ready == known(b=START)


def test_a_partition_is_leased_when_its_parents_are_done() -> None:
    listed = tree("a; b < a; c < a; d < b")
    assert lease_changes(listed, {}) == (["a"], [])
    assert lease_changes(listed, known(a=READ)) == ([], [])
    assert lease_changes(listed, known(a=DONE)) == (["b", "c"], [])


def test_a_lease_that_is_done_goes_when_its_children_have_theirs() -> None:
    listed = tree("a; b < a; c < a; d < b")
    assert lease_changes(listed, known(a=DONE, b=START)) == (["c"], [])
    assert lease_changes(listed, known(a=DONE, b=START, c=START)) == ([], ["a"])
    # Its shard is listed for a day after that, and gets none again.
    assert lease_changes(listed, known(b=DONE, c=READ)) == (["d"], [])
    assert lease_changes(listed, known(d=READ, c=READ)) == ([], [])


def test_a_child_whose_lease_went_before_counts_as_leased() -> None:
    listed = tree("a; x; b < a; m < a x; d < b")
    assert lease_changes(listed, known(a=DONE, x=READ, d=READ)) == ([], [])
    assert lease_changes(listed, known(a=DONE, x=DONE, d=READ, m=START)) == ([], ["a", "x"])


def test_the_lease_of_a_done_leaf_goes_when_it_is_not_listed_any_more() -> None:
    assert lease_changes(tree("a"), known(a=DONE)) == ([], [])
    assert lease_changes([], known(a=DONE)) == ([], ["a"])


@given(st.lists(st.lists(st.integers(0, 20), max_size=2), max_size=20), st.randoms())
def test_over_any_lineage_each_partition_is_leased_once_after_its_parents(
    drawn: list[list[int]], random: Random
) -> None:
    listed = [
        Lineage(
            partition=PartitionId(f"p{number}"),
            parents=tuple({PartitionId(f"p{each}") for each in parents if each < number}),
        )
        for number, parents in enumerate(drawn)
    ]
    parents = {each.partition: each.parents for each in listed}
    leases: dict[PartitionId, Bookmark] = {}
    done: set[PartitionId] = set()
    while len(done) < len(listed):
        changes = lease_changes(random.sample(listed, len(listed)), leases)
        for name in changes.made:
            assert name not in done | leases.keys()
            assert done.issuperset(parents[name])
            leases[name] = START
        for name in changes.dropped:
            del leases[name]
        running = sorted(leases.keys() - done)
        assert running
        ended = random.choice(running)
        done.add(ended)
        leases[ended] = DONE
    while dropped := lease_changes(listed, leases).dropped:
        for name in dropped:
            del leases[name]
    leaves = parents.keys() - {parent for of in parents.values() for parent in of}
    assert leases.keys() == leaves


def test_only_two_listings_some_seconds_apart_make_a_partition_absent() -> None:
    absences = Absences()
    assert absences.confirmed(p("a"), 10.0) == set()
    assert absences.confirmed(p("a", "b"), 10.0 + AGAIN / 2) == set()
    assert absences.confirmed(p("a", "b"), 10.0 + AGAIN) == p("a")
    assert absences.confirmed(p("b"), 10.1 + AGAIN) == set()  # a was listed again
    assert absences.confirmed(p("a", "b"), 10.0 + 1.5 * AGAIN) == p("b")


class Listing(MemoryFeed):
    """`listed` is what the source lists."""

    listed: Sequence[Lineage] = ()

    def partitions(self) -> Sequence[Lineage]:
        return self.listed


def test_the_roster_looks_again_soon_where_a_listing_left_something_out() -> None:
    clock, feed = Clock(), Listing(MemoryFeedSettings())
    roster = Roster(feed, clock=clock)
    feed.listed = tree("b < a")
    found = roster.look(known(a=READ), ())
    assert found is not None
    assert found.ready == {}
    assert roster.look(known(a=READ), ()) is None
    clock.now += AGAIN
    feed.listed = tree("a; b < a")
    found = roster.look(known(a=READ), ())
    assert found is not None
    assert found.ready == known(a=READ)
    clock.now += AGAIN
    assert roster.look(known(a=READ), p("a")) is None
    clock.now += LOOKUP
    assert roster.look(known(a=READ), p("a")) is not None


def test_reading_says_that_a_partition_is_gone() -> None:
    given = {"changes": 20, "unit": 1, "partitions": 1, "unlisted": ("p0",)}
    feed = MemoryFeed(MemoryFeedSettings.model_validate(given))
    with made(feed) as parts:
        with pytest.raises(PositionLost, match="no longer lists"):
            parts.planner.advance({PartitionId("p0"): READ}, patience=60.0)
        [gap] = parts.gaps.rows()["p0"]["gaps"]
        assert (gap["cause"], gap["from"]) == ("partition_gone", str(READ.place))
