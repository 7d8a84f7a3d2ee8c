"""Gaps on record: nothing is counted twice, nothing is forgotten until somebody mends it."""

from pathlib import Path

import pytest

from penstock.leases import Lease
from penstock.leases.gaps import Gaps, gap_id
from penstock.leases.memory import MemoryStore
from penstock.leases.sqlite import SqliteStore
from penstock.model.errors import LeaseLost, Malformed

GAP = {
    "id": "1", "cause": "slot_missing", "from": "0A:1", "to": "", "policy": "fail",
    "at": "2026-11-21T10:00:00Z",
}  # fmt: skip


def test_a_partition_that_lost_nothing_has_no_row() -> None:
    assert Gaps(MemoryStore(), "shop/default").rows() == {}


def test_a_gap_makes_its_partition_stale_and_is_counted() -> None:
    gaps = Gaps(MemoryStore(), "shop/default")
    gaps.record("slot", GAP)
    gaps.record("slot", {**GAP, "id": "2", "cause": "slot_lost"})
    gaps.record("slot", {**GAP, "id": "3", "from": "0A:2"})
    row = gaps.rows()["slot"]
    assert row["stale"] is True
    assert row["counts"] == {"slot_missing": 2, "slot_lost": 1}
    assert [gap["id"] for gap in row["gaps"]] == ["1", "2", "3"]


def test_the_same_gap_is_counted_once_and_learns_its_end() -> None:
    gaps = Gaps(MemoryStore(), "shop/default")
    gaps.record("slot", GAP)
    gaps.announced("slot", "1")
    gaps.record("slot", {**GAP, "to": "0B", "at": "later"})
    row = gaps.rows()["slot"]
    assert row["counts"] == {"slot_missing": 1}
    assert row["gaps"] == [{**GAP, "to": "0B", "announced": True}]


def test_a_gap_before_which_we_stood_still_is_to_be_told_again_when_we_go_on() -> None:
    gaps = Gaps(MemoryStore(), "shop/default")
    gaps.record("slot", GAP)
    gaps.announced("slot", "1")
    assert gaps.record("slot", {**GAP, "policy": "continue"})["gaps"][0]["announced"] is False
    gaps.announced("slot", "1")
    again = gaps.record("slot", {**GAP, "policy": "continue", "to": "0B"})
    assert again["gaps"][0]["announced"] is True
    assert again["counts"] == {"slot_missing": 1}


def test_a_hole_that_is_found_by_less_is_the_same_hole() -> None:
    """All that was read found it; what was stored of it finds it again, after a restart."""
    gaps = Gaps(MemoryStore(), "shop/default")
    gaps.record("slot", {**GAP, "from": "0A:10"})
    gaps.announced("slot", "1")
    gaps.record("slot", {**GAP, "id": "2", "from": "0A:10", "policy": "continue"})
    row = gaps.record("slot", {**GAP, "id": "2", "from": "0A:9", "policy": "continue", "to": "0B"})
    assert row["counts"] == {"slot_missing": 1}
    assert row["gaps"] == [
        {**GAP, "from": "0A:9", "policy": "continue", "to": "0B", "announced": False}
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"from": "0A:2"}),
        ({}, {"cause": "slot_lost"}),
        ({"to": "0B"}, {}),
    ],
    ids=["after progress", "of another cause", "after one that was passed"],
)
def test_a_hole_is_another_one(first: dict[str, str], second: dict[str, str]) -> None:
    gaps = Gaps(MemoryStore(), "shop/default")
    gaps.record("slot", GAP | first)
    row = gaps.record("slot", GAP | second | {"id": "2"})
    assert sum(row["counts"].values()) == len(row["gaps"]) == 2


def test_what_is_mended_stays_on_record_and_may_break_again() -> None:
    gaps = Gaps(MemoryStore(), "shop/default")
    gaps.record("slot", GAP)
    gaps.clear("slot")
    assert gaps.rows()["slot"]["stale"] is False
    assert len(gaps.rows()["slot"]["gaps"]) == 1
    row = gaps.record("slot", {**GAP, "id": "2"})
    assert row["stale"] is True
    assert row["counts"] == {"slot_missing": 2}


def test_the_record_is_bounded_and_its_counts_are_not() -> None:
    gaps = Gaps(MemoryStore(), "shop/default")
    for number in range(50):
        gaps.record("slot", {**GAP, "id": str(number), "from": f"0A:{number}"})
    row = gaps.rows()["slot"]
    assert len(row["gaps"]) < 50
    assert row["gaps"][-1]["id"] == "49"
    assert row["counts"] == {"slot_missing": 50}


def test_gaps_are_no_positions(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "positions.db")
    Gaps(store, "shop/default").record("slot", GAP)
    assert list(store.list("shop/")) == []
    assert list(Gaps(store, "shop").rows()) == ["default/slot"]


def test_two_writers_lose_nothing_of_each_other() -> None:
    class Contended(MemoryStore):
        refusals = 3

        def put(self, lease: Lease) -> Lease:
            if self.refusals:
                self.refusals -= 1
                raise LeaseLost("somebody was faster")
            return super().put(lease)

    gaps = Gaps(Contended(), "shop/default")
    gaps.record("slot", GAP)
    assert list(gaps.rows()) == ["slot"]


def test_a_row_of_somebody_else_is_malformed() -> None:
    store = MemoryStore()
    store.put(Lease(name="gaps:shop/default/slot", continuation="[]"))
    with pytest.raises(Malformed):
        Gaps(store, "shop/default").rows()


def test_a_hole_has_one_id_and_another_hole_another() -> None:
    mark = {"flushed": "00000000/00000010"}
    one = gap_id("slot", "slot_missing", "0A:1", mark)
    assert one == gap_id("slot", "slot_missing", "0A:1", dict(mark))
    others = {
        gap_id("slot", "slot_lost", "0A:1", mark),
        gap_id("slot", "slot_missing", "0A:2", mark),
        gap_id("slot", "slot_missing", "0A:1", {}),
        gap_id("other", "slot_missing", "0A:1", mark),
    }
    assert len(others - {one}) == 4
