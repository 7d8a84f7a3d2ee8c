"""What is missing after a gap, and when it is mended; without servers."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.leases.gaps import Gaps
from penstock.leases.memory import MemoryStore
from penstock.service import resnapshots
from penstock.service.resnapshots import Passed, Resnapshots, outdated, passed
from penstock.snapshots.catalog import Known, SnapshotSource
from penstock.snapshots.records import RunRecord, new_id
from penstock.table_schema import TableName, TableSchema

FEED: Any = None
AT = 1_800_000_000.0
GAP = {
    "id": "1", "cause": "slot_missing", "from": "", "to": "00000000/00000020", "detail": "",
    "policy": "resnapshot", "at": "2027-01-15T08:00:00.000+00:00",
}  # fmt: skip


def table(name: str) -> Known:
    schema = TableSchema(schema="public", table=name, name=(name,), version="1", columns=())
    return Known(source=SnapshotSource(backend="shop", feed=FEED, prefix=()), schema=schema)


def record(name: str, state: Any, at: float, lsn: str = "00000000/00000030:0") -> RunRecord:
    return RunRecord(
        snapshot_id=new_id(at), pipeline="p", backend="shop", schema="public", table=name,
        name=(name,), state=state, position=lsn, changed_at=at,
    )  # fmt: skip


def test_an_id_says_when_it_was_made() -> None:
    assert record("a", "done", AT).begun_at == AT


@pytest.mark.parametrize(
    ("records", "asked", "mended"),
    [
        ([], ["a", "b"], False),
        ([record("a", "done", AT + 1)], ["b"], False),
        ([record("a", "done", AT + 1), record("b", "running", AT + 1)], [], False),
        ([record("a", "done", AT + 1), record("b", "failed", AT + 90)], [], False),
        ([record("a", "done", AT + 1), record("b", "failed", AT + 1)], ["b"], False),
        ([record("a", "done", AT + 1), record("b", "done", AT - 1)], ["b"], False),
        ([record("a", "done", AT + 1), record("b", "done", AT + 1, "00000000/00000010:0")],
         ["b"], False),
        ([record("a", "done", AT + 1), record("b", "done", AT + 1, "e0001-00000000/00000020:0")],
         [], True),
    ],
)  # fmt: skip
def test_tables_are_asked_for_until_each_has_a_snapshot_of_after_the_gap(
    records: list[RunRecord], asked: list[str], mended: bool
) -> None:
    found = outdated([table("a"), table("b")], records, Passed("00000000/00000020", AT), AT + 100)
    assert ([each.schema.table for each in found[0]], found[1]) == (asked, mended)


def test_a_part_of_a_table_mends_nothing() -> None:
    part = replace(record("a", "done", AT + 1), options={"where": "id < 3"})
    busy = replace(record("b", "running", AT + 1), options={"columns": ["id"]})
    found = outdated([table("a"), table("b")], [part, busy], Passed("00000000/00000020", AT), AT)
    assert ([each.schema.table for each in found[0]], found[1]) == (["a", "b"], False)


def test_no_table_is_no_proof_that_a_gap_is_mended() -> None:
    assert outdated([], [], Passed("00000000/00000020", AT), AT + 100) == ([], False)


def test_a_table_that_is_not_followed_any_more_is_not_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resnapshots, "_LOOK", 0.0)
    gaps = Gaps(MemoryStore(), "p/shop")
    gaps.record("slot", GAP)
    records = [record("a", "done", AT + 1)]
    asked: list[TableName] = []
    mending = Resnapshots(["shop"], lambda _: gaps)
    for tables in ([table("a"), table("b")], [table("a")], []):
        mending.look(tables, lambda: records, asked.append)
    assert (asked, gaps.rows()["slot"]["stale"]) == ([("b",)] * 3, True)
    records.append(record("b", "done", AT + 1))
    mending.look([table("a"), table("b")], lambda: records, asked.append)
    assert not gaps.rows()["slot"]["stale"]


def test_a_gap_that_is_not_passed_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"stale": True, "gaps": [GAP]}
    assert passed(row) == Passed("00000000/00000020", AT)
    assert passed({"stale": False, "gaps": [GAP]}) is None
    assert passed({"stale": True, "gaps": [{**GAP, "to": ""}]}) is None
    assert passed({"stale": True, "gaps": [{**GAP, "policy": "continue"}]}) is None
    assert passed({"stale": True, "gaps": []}) is None


def test_a_mended_partition_is_not_stale_unless_another_gap_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resnapshots, "_LOOK", 0.0)
    gaps = Gaps(MemoryStore(), "p/shop")
    gaps.record("slot", GAP)
    records: list[RunRecord] = []
    asked: list[TableName] = []
    mending = Resnapshots(["shop"], lambda _: gaps)
    mending.look([table("a")], lambda: records, asked.append)
    assert (asked, gaps.rows()["slot"]["stale"]) == ([("a",)], True)
    records.append(record("a", "done", AT + 1))

    def meanwhile() -> list[RunRecord]:
        gaps.record("slot", {**GAP, "id": "2", "from": "00000000/00000040:1", "to": ""})
        return records

    mending.look([table("a")], meanwhile, asked.append)
    assert gaps.rows()["slot"]["stale"]
    gaps.record("slot", {**GAP, "id": "2", "to": "00000000/00000028"})
    mending.look([table("a")], lambda: records, asked.append)
    assert not gaps.rows()["slot"]["stale"]
    assert asked == [("a",)]
