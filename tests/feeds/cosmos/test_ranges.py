"""Key ranges: names, cuts and lineages, without a server."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.cosmos.ranges import FeedMark, KeyRange, lineages, mark_of
from penstock.model.errors import Malformed
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place

WHOLE = KeyRange("", "FF")
_EDGES = st.lists(st.integers(1, 0xFE), unique=True, max_size=6)


def cut(numbers: list[int]) -> list[KeyRange]:
    return WHOLE.cut([f"{n:02X}" for n in sorted(numbers)])


@given(_EDGES)
def test_a_name_is_read_back(numbers: list[int]) -> None:
    for each in cut(numbers):
        assert KeyRange.of(each.name) == each
        assert each.min < each.middle < each.max


@pytest.mark.parametrize("name", ["", "0", "x-FF", "20-10", "10-10", "-FF", "10-", "0-ff"])
def test_what_is_no_range_is_malformed(name: str) -> None:
    with pytest.raises(Malformed):
        KeyRange.of(PartitionId(name))


def ended(each: KeyRange, **mark: object) -> Bookmark:
    return Bookmark(None, {"rid": "r", "range": list(each), "etag": '"5"', **mark}, ended=True)


def leaves(physical: list[KeyRange], known: Bookmarks) -> list[KeyRange]:
    """Those without a child."""
    found = lineages(physical, known)
    parents = {parent for each in found for parent in each.parents}
    return sorted(KeyRange.of(each.partition) for each in found if each.partition not in parents)


@given(_EDGES, _EDGES, st.booleans())
def test_children_cover_their_parent_without_overlapping(
    before: list[int], now: list[int], marked: bool
) -> None:
    """Whatever the service's own boundaries are by then."""
    for parent in cut(before):
        at = parent.cuts(cut(now))
        mark = {"cuts": at} if marked and at else {}
        known = {parent.name: ended(parent, **mark)}
        found = [each for each in leaves(cut(now), known) if parent.holds(each)]
        assert len(found) > 1
        assert (found[0].min, found[-1].max) == (parent.min, parent.max)
        assert all(a.max == b.min for a, b in itertools.pairwise(found))


@given(_EDGES, _EDGES)
def test_all_keys_are_in_one_leaf(before: list[int], now: list[int]) -> None:
    known = {each.name: Bookmark() for each in cut(before)}
    known |= {each.name: ended(each) for each in cut(before)[::2]}
    found = leaves(cut(now), known)
    assert (found[0].min, found[-1].max) == ("", "FF")
    assert all(a.max == b.min for a, b in itertools.pairwise(found))


def test_children_stay_the_same_whatever_the_service_lists_later() -> None:
    parent = ended(WHOLE, cuts=["20"])
    for physical in ([WHOLE], cut([0x20]), cut([0x10, 0x20, 0x30])):
        assert leaves(physical, {WHOLE.name: parent}) == WHOLE.cut(["20"])


def test_a_child_that_is_known_alone_has_its_sibling() -> None:
    known = {WHOLE.name: ended(WHOLE), KeyRange("20", "FF").name: Bookmark()}
    assert leaves(cut([0x10, 0x20]), known) == WHOLE.cut(["20"])


def test_a_range_that_goes_on_as_a_part_of_a_merged_one_is_listed_as_it_was() -> None:
    known = {each.name: Bookmark() for each in cut([0x20])}
    assert {each.partition for each in lineages([WHOLE], known)} == set(known)


def test_keys_that_nothing_known_has_are_listed_without_a_beginning() -> None:
    known = {KeyRange("", "20").name: Bookmark()}
    found = {each.partition: each for each in lineages(cut([0x20]), known)}
    assert found[KeyRange("20", "FF").name].first is None


def test_a_child_begins_at_its_parents_place_inside_a_page() -> None:
    place = Place(f"{5:020d}/rid", 0)
    parent = ended(WHOLE, within=True, cuts=["20"])._replace(place=place)
    found = {each.partition: each for each in lineages(cut([0x20]), {WHOLE.name: parent})}
    low = found[KeyRange("", "20").name]
    assert low.first is not None
    mark = mark_of(low.first, KeyRange("", "20"))
    assert mark == FeedMark(rid="r", range=("", "20"), etag='"5"', done=place)
    assert mark is not None
    assert mark_of(Bookmark(None, mark.to_json()), KeyRange("", "20")) == mark


@pytest.mark.parametrize("digits", [32, 64, 96])
def test_the_middle_is_inside_also_for_hierarchical_keys(digits: int) -> None:
    for low, high in (("", "FF"), ("20", "7F8"), ("2" * digits, "2" * (digits - 1) + "8")):
        each = KeyRange(low, high)
        left, right = each.cut([each.middle])
        assert left.min < left.max == right.min < right.max
        assert KeyRange.of(left.name) == left and each.holds(left) and each.holds(right)


def test_a_range_that_has_ended_is_not_listed_once_its_children_are_known() -> None:
    low, high = WHOLE.cut(["20"])
    known = {WHOLE.name: ended(WHOLE, cuts=["20"]), low.name: Bookmark()}
    assert WHOLE.name in {each.partition for each in lineages([WHOLE], known)}
    known[high.name] = Bookmark()
    listed = lineages([WHOLE], known)
    assert {each.partition: each.parents for each in listed} == {
        low.name: (WHOLE.name,), high.name: (WHOLE.name,),
    }  # fmt: skip
    del known[WHOLE.name]
    assert [each.partition for each in lineages([WHOLE], known)] == [low.name, high.name]


def test_a_continuation_that_came_with_documents_is_taken_however_it_is_numbered() -> None:
    mark = FeedMark(rid="r", range=WHOLE, etag='"500"')
    assert mark.after('"1"', numbered=False).etag == '"1"'
    assert mark.after('"0"') == mark, "it is a number, too"


def test_the_continuation_of_a_replica_that_lags_behind_changes_nothing() -> None:
    mark = FeedMark(rid="r", range=WHOLE, etag='"10"')
    assert mark.after('"9"') == mark
    assert mark.after('"11"').etag == '"11"'
    assert mark.after("") == mark, "which would be read from the beginning"
    assert mark.after("opaque").etag in ("opaque", '"10"')
