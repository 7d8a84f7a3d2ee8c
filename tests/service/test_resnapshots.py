"""What is missing after a gap, and when it is mended; without servers."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.leases.gaps import GapRow, Gaps, losses, to_mend, unpublished
from penstock.leases.memory import MemoryStore
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.model.table_schema import TableName, TableSchema
from penstock.service import snapshots
from penstock.service.snapshots import Resnapshots, outdated
from penstock.snapshots.followed_tables import FollowedTable, SnapshotSource
from penstock.snapshots.records import RunRecord, new_id

FEED: Any = None
AT = 1_800_000_000.0
GAP = {
    "id": "1", "cause": "trimmed", "from": "", "to": "00000000/00000020", "detail": "",
    "policy": "resnapshot", "at": "2027-01-15T08:00:00.000+00:00",
}  # fmt: skip


def table(name: str) -> FollowedTable:
    schema = TableSchema(schema="public", table=name, name=(name,), version="1", columns=())
    return FollowedTable(source=SnapshotSource(backend="shop", feed=FEED, prefix=()), schema=schema)


def record(name: str, state: Any, gap: str, at: float = AT) -> RunRecord:
    return RunRecord(
        snapshot_id=new_id(at), pipeline="p", backend="shop", schema="public", table=name,
        name=(name,), state=state, gap=gap, changed_at=at,
    )  # fmt: skip


class Mending:
    """The gaps of a backend, and what is asked for."""

    def __init__(self) -> None:
        self.gaps = Gaps(MemoryStore(), "p/shop")
        self.records: list[RunRecord] = []
        self.asked: list[TableName] = []
        self.waits = False
        owned: Any = SimpleNamespace(
            gaps=lambda _: self.gaps, unpublished=lambda *_: ["slot"] if self.waits else []
        )
        self.resnapshots = Resnapshots(owned, ["shop"])
        self.requests: Any = SimpleNamespace(
            records=SimpleNamespace(all=lambda: self.records),
            take_again=lambda name, _: self.asked.append(name),
        )

    def look(self, *tables: str) -> list[TableName]:
        """What is asked for now."""
        self.asked.clear()
        known = [table(name) for name in tables]
        self.resnapshots.look(self.requests, known)
        return list(self.asked)

    def taken(self, *tables: str, state: Any = "done") -> None:
        """Snapshots that begin now."""
        self.records += [record(name, state, self.lost) for name in tables]

    @property
    def lost(self) -> str:
        return losses(self.gaps.rows())

    @property
    def stale(self) -> list[str]:
        return [name for name, row in self.gaps.rows().items() if row["stale"]]


@pytest.fixture
def mending(monkeypatch: pytest.MonkeyPatch) -> Mending:
    monkeypatch.setattr(snapshots, "_LOOK", 0.0)
    return Mending()


@pytest.mark.parametrize(
    ("records", "asked", "mended"),
    [
        ([], ["a", "b"], False),
        ([record("a", "done", "now")], ["b"], False),
        ([record("a", "done", "now"), record("b", "running", "before")], [], False),
        ([record("a", "done", "now"), record("b", "failed", "now", AT + 90)], [], False),
        ([record("a", "done", "now"), record("b", "failed", "now")], ["b"], False),
        ([record("a", "done", "now"), record("b", "done", "before")], ["b"], False),
        ([record("a", "done", "now"), record("b", "done", "")], ["b"], False),
        ([record("a", "done", "now"), record("b", "done", "now", AT - 900)], [], True),
    ],
)  # fmt: skip
def test_tables_are_asked_for_until_each_has_a_snapshot_of_after_the_gap(
    records: list[RunRecord], asked: list[str], mended: bool
) -> None:
    """Which gaps a run began after counts, and not when: clocks of hosts differ."""
    found = outdated([table("a"), table("b")], records, "now", AT + 100)
    assert ([each.schema.table for each in found[0]], found[1]) == (asked, mended)


def test_a_part_of_a_table_mends_nothing() -> None:
    part = replace(record("a", "done", "now"), options={"where": "id < 3"})
    busy = replace(record("b", "running", "now"), options={"columns": ["id"]})
    found = outdated([table("a"), table("b")], [part, busy], "now", AT)
    assert ([each.schema.table for each in found[0]], found[1]) == (["a", "b"], False)


def test_no_table_is_no_proof_that_a_gap_is_mended() -> None:
    assert outdated([], [], "now", AT + 100) == ([], False)


def test_a_table_that_is_not_followed_any_more_is_not_mended(mending: Mending) -> None:
    mending.gaps.record("slot", GAP)
    mending.taken("a")
    assert mending.look("a", "b") == [("b",)]
    assert mending.look("a") == [("b",)]
    assert mending.look() == [("b",)]
    assert mending.stale == ["slot"]
    mending.taken("b")
    mending.look("a", "b")
    assert mending.stale == []


def test_a_gap_that_is_not_passed_waits() -> None:
    rows: Mapping[str, GapRow] = {"s": {"stale": True, "gaps": [GAP]}}
    assert to_mend(rows) == rows
    assert to_mend({"s": {"stale": False, "gaps": [GAP]}}) == {}
    assert to_mend({"s": {"stale": True, "gaps": [{**GAP, "to": ""}]}}) == {}
    assert to_mend({"s": {"stale": True, "gaps": [{**GAP, "policy": "continue"}]}}) == {}
    assert to_mend({"s": {"stale": True, "gaps": []}}) == {}
    late = {"stale": True, "gaps": [{**GAP, "to": ""}]}
    assert to_mend({**rows, "t": late}) == {}, "one snapshot mends both"


def test_a_mended_partition_is_not_stale_unless_another_gap_came(mending: Mending) -> None:
    mending.gaps.record("slot", GAP)
    assert (mending.look("a"), mending.stale) == ([("a",)], ["slot"])
    mending.taken("a")

    def meanwhile() -> list[RunRecord]:
        mending.gaps.record("slot", {**GAP, "id": "2", "from": "00000000/00000040:1", "to": ""})
        return mending.records

    mending.requests.records.all, before = meanwhile, mending.requests.records.all
    mending.look("a")
    mending.requests.records.all = before
    assert mending.stale == ["slot"]
    mending.gaps.record("slot", {**GAP, "id": "2", "to": "00000000/00000048"})
    assert mending.look("a") == [("a",)], "what was taken before has not what was lost since"
    mending.taken("a")
    assert (mending.look("a"), mending.stale) == ([], [])


def test_one_snapshot_mends_all_partitions_and_a_later_gap_of_one_needs_another(
    mending: Mending,
) -> None:
    for shard in ("s/1", "s/2", "s/3"):
        mending.gaps.record(shard, {**GAP, "id": shard})
    assert mending.look("users") == [("users",)]
    mending.taken("users", state="running")
    assert mending.look("users") == []
    mending.records.clear()
    mending.taken("users")
    assert (mending.look("users"), mending.stale) == ([], [])
    mending.gaps.record("s/4", {**GAP, "id": "s/4", "to": "tip at 2027-01-15T08:00:00Z"})
    assert (mending.look("users"), mending.stale) == ([("users",)], ["s/4"])


def test_the_same_gap_found_again_after_a_snapshot_needs_another(mending: Mending) -> None:
    """A crash before the new position was saved, and a day until the next start: what was written
    after the snapshot is lost as well."""
    mending.gaps.record("s/1", GAP)
    mending.taken("users")
    mending.look("users")
    assert mending.stale == []
    mending.gaps.record("s/1", {**GAP, "to": ""})
    assert (mending.look("users"), mending.stale) == ([], ["s/1"]), "it is not passed again yet"
    mending.gaps.record("s/1", {**GAP, "to": "00000000/00000099"})
    assert (mending.look("users"), mending.stale) == ([("users",)], ["s/1"])
    # Where it goes on at the same place, nothing more was lost.
    mending.gaps.record("s/1", GAP)
    assert (mending.look("users"), mending.stale) == ([], [])


def test_a_gap_of_long_ago_that_is_found_again_is_told_from_the_last(mending: Mending) -> None:
    mending.gaps.record("s/1", GAP)
    mending.gaps.record("s/1", {**GAP, "id": "2"})
    before = mending.lost
    mending.gaps.record("s/1", {**GAP, "to": "00000000/00000030"})
    assert mending.lost != before


def test_changes_from_before_a_gap_are_published_before_a_snapshot(mending: Mending) -> None:
    mending.gaps.record("s/1", GAP)
    mending.waits = True
    assert mending.look("users") == []
    mending.waits = False
    assert mending.look("users") == [("users",)]


@pytest.mark.parametrize(
    ("start", "saved", "late"),
    [
        ("05:0", Bookmark(Place("04", 0)), True),
        ("05:0", Bookmark(Place("05", 0)), False),
        ("05:0", Bookmark(Place("06", 0)), False),
        ("05:0", Bookmark(None, {}), True),
        ("05:0", Bookmark(Place("04", 0), ended=True), False),
        ("05:0", None, False),
        ("", Bookmark(None, {}), False),
    ],
)
def test_what_was_read_before_a_gap_is_published_once_it_is_saved(
    start: str, saved: Bookmark | None, late: bool
) -> None:
    row: GapRow = {"stale": True, "gaps": [{**GAP, "from": start}]}
    bookmarks = {} if saved is None else {PartitionId("s/1"): saved}
    assert unpublished({"s/1": row}, bookmarks) == (["s/1"] if late else [])
    assert unpublished({"s/1": {**row, "stale": False}}, bookmarks) == []
