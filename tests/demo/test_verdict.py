"""The copy: what each operation does to it, and what cannot be is noted. The verdict finds each
kind of fault, and none where there is none."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.consumer.tail.reader import Message
from penstock.demo.verdict import DemoReplica, judge
from penstock.demo.workload import Key, Ledger, Written

KEYS = {"users": ("id",), "carts": ("id",), "items": ("order_id", "line")}
OLD = {"id": 1, "name": "a", "notes": "long"}
INSERT, UPDATE, DELETE, TRUNCATE = "INSERT", "UPDATE", "DELETE", "TRUNCATE"

Change = dict[str, Any]


def change(
    lsn: int, ordinal: int, operation: str, data: Any = None, before: Any = None, **more: Any
) -> Change:
    place = f"00000000/{lsn:08X}:{ordinal}"
    return {
        "event_id": f"default:{place}",
        "position": place,
        "backend": "default",
        "collection": "users",
        "operation": operation,
        "key": {"id": (data or before).get("id")} if data or before else None,
        "data": data,
        "before": before,
        "unchanged": [],
        "transaction": str(lsn),
        **more,
    }


# Three transactions: two inserts; an update and a key change; a delete.
CHANGES = [
    change(10, 0, INSERT, {"id": 1, "name": "a"}),
    change(10, 1, INSERT, {"id": 2, "name": "b"}),
    change(20, 0, UPDATE, {"id": 1, "name": "A"}),
    change(20, 1, UPDATE, {"id": 3, "name": "b"}, {"id": 2}),
    change(30, 0, DELETE, None, {"id": 1}),
]
LEFT = {(3,): {"id": 3, "name": "b"}}


def copy_of(*changes: Change) -> DemoReplica:
    copy = DemoReplica(KEYS)
    for sequence, body in enumerate(changes, 1):
        stored = datetime(2026, 1, 1, tzinfo=UTC)
        copy.apply(
            Message(sequence=sequence, subject="cdc", stored_at=stored, headers={}, body=body)
        )
    return copy


def ledger() -> Ledger:
    written = Ledger()
    written.enter("10", [Written(INSERT, "users", (1,)), Written(INSERT, "users", (2,))])
    written.enter("20", [Written(UPDATE, "users", (1,)), Written(UPDATE, "users", (3,))])
    written.enter("30", [Written(DELETE, "users", (1,))])
    written.rolled_back.add("25")
    return written


def verdict(
    changes: list[Change],
    rows: dict[Key, dict[str, Any]] | None = None,
    written: Ledger | None = None,
) -> list[str]:
    tables = {"users": LEFT if rows is None else rows, "carts": {}}
    return judge(written or ledger(), copy_of(*changes), tables)


def kinds(found: list[str]) -> set[str]:
    return {problem.partition(":")[0] for problem in found}


def test_nothing_wrong_is_ok() -> None:
    assert verdict(CHANGES) == []
    assert ledger().count == 5


@pytest.mark.parametrize("lost", range(len(CHANGES)))
def test_any_lost_change_is_missing(lost: int) -> None:
    found = verdict([*CHANGES[:lost], *CHANGES[lost + 1 :]])
    assert "missing" in kinds(found)


@pytest.mark.parametrize("again", range(len(CHANGES)))
def test_any_change_that_is_stored_twice_is_found_and_nothing_else(again: int) -> None:
    found = verdict([*CHANGES, CHANGES[again]])
    assert kinds(found) == {"more than once"}
    assert CHANGES[again]["event_id"] in found[0]


def test_a_change_with_a_new_id_is_not_taken_for_the_old_one() -> None:
    renamed = change(30, 7, DELETE, None, {"id": 1})
    assert "never committed" in kinds(verdict([*CHANGES, renamed]))


def test_a_change_of_a_transaction_that_was_rolled_back_is_found() -> None:
    ghost = change(25, 0, UPDATE, {"id": 3, "name": "b"})
    [problem] = verdict([*CHANGES, ghost])
    assert problem.startswith("never committed")
    assert "rolled back" in problem


def test_a_change_that_nobody_wrote_is_found() -> None:
    ghost = change(40, 0, UPDATE, {"id": 3, "name": "b"})
    assert kinds(verdict([*CHANGES, ghost])) == {"never committed"}


@pytest.mark.parametrize(("first", "second"), [(0, 2), (1, 3), (2, 4), (0, 4)])
def test_changes_of_one_key_in_the_wrong_order_are_found(first: int, second: int) -> None:
    swapped = list(CHANGES)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    assert "out of order" in kinds(verdict(swapped))


def test_changes_of_different_keys_may_pass_each_other() -> None:
    assert verdict([CHANGES[1], CHANGES[0], *CHANGES[2:]]) == []


def test_two_writes_of_one_transaction_in_another_order_are_found() -> None:
    names = ("event_id", "position")
    first = CHANGES[0] | {name: CHANGES[1][name] for name in names}
    second = CHANGES[1] | {name: CHANGES[0][name] for name in names}
    assert "another order" in verdict([second, first, *CHANGES[2:]])[0]


def test_a_change_may_not_pass_a_truncate() -> None:
    written = Ledger()
    written.enter("10", [Written(INSERT, "carts", (1,))])
    written.enter("20", [Written(TRUNCATE, "carts", ())])
    written.enter("30", [Written(INSERT, "carts", (2,))])
    changes = [
        change(10, 0, INSERT, {"id": 1}, collection="carts"),
        change(20, 0, TRUNCATE, collection="carts"),
        change(30, 0, INSERT, {"id": 2}, collection="carts"),
    ]
    replica_of = [changes[0], changes[2], changes[1]], [changes[1], changes[0], changes[2]]
    for wrong in replica_of:
        assert "out of order" in kinds(verdict(wrong, {}, written))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({}, "only in the copy"),
        ({(3,): {"id": 3, "name": "c"}}, "in name"),
        ({(3,): {"id": 3, "name": None}}, "in name"),
        ({(3,): {"id": 3, "name": "b", "more": 1}}, "in more"),
        ({(3,): {"id": 3}}, "in name"),
        ({**LEFT, (4,): {"id": 4, "name": "d"}}, "is not in the copy"),
    ],
)
def test_a_differing_row_is_found(rows: dict[Key, dict[str, Any]], said: str) -> None:
    [problem] = verdict(CHANGES, rows)
    assert problem.startswith("differs: users")
    assert said in problem


def test_many_problems_are_counted_and_only_some_are_shown() -> None:
    found = verdict(CHANGES, {(key,): {"id": key} for key in range(100, 150)})
    assert len(found) == 6
    assert found[-1] == "differs: ... and 46 more"


@pytest.mark.parametrize(
    ("operation", "body", "rows"),
    [
        # An update replaces the row, and unchanged is not null.
        ("UPDATE", {"data": {"id": 1, "name": "b", "notes": None}},
         {(1,): {"id": 1, "name": "b", "notes": None}}),
        ("UPDATE", {"data": {"id": 1, "name": "b"}, "unchanged": ["notes"]},
         {(1,): {"id": 1, "name": "b", "notes": "long"}}),
        # A key change removes the old key, and keeps what is unchanged.
        ("UPDATE", {"data": {"id": 9, "name": "a"}, "before": {"id": 1}, "unchanged": ["notes"]},
         {(9,): {"id": 9, "name": "a", "notes": "long"}}),
        ("DELETE", {"before": {"id": 1}}, {}),
        ("TRUNCATE", {}, {}),
    ],
)  # fmt: skip
def test_the_copy_after_a_change(operation: str, body: Change, rows: dict[Key, Change]) -> None:
    item = change(2, 0, "INSERT", {"order_id": 1, "line": 2}, collection="items")
    copy = copy_of(change(1, 0, INSERT, OLD), item, change(3, 0, operation, **body))
    assert copy.tables == {"users": rows, "carts": {}, "items": {(1, 2): item["data"]}}
    assert copy.impossible == []


def test_a_document_has_the_key_of_its_images() -> None:
    key, old = {"id": {"$oid": "5"}}, {"id": "5", "name": "a"}
    new = {**old, "name": "b"}
    made = change(2, 0, INSERT, old, key=key), change(3, 0, UPDATE, new, old, key=key)
    assert copy_of(*made).tables["users"] == {("5",): new}
    copy = copy_of(*made, change(4, 0, DELETE, None, new, key=key))
    assert copy.tables["users"] == {}
    assert copy.impossible == []
    assert {each.keys for each in copy.received.values()} == {(("5",),)}


def test_the_same_event_twice_changes_nothing_and_is_counted() -> None:
    gone = change(2, 0, DELETE, None, {"id": 1})
    copy = copy_of(change(1, 0, INSERT, OLD), gone, gone)
    assert (copy.repeated.total(), copy.count) == (1, 2)
    assert copy.impossible == []


@pytest.mark.parametrize(
    ("operation", "body", "said"),
    [
        ("INSERT", {"data": OLD}, "there already"),
        ("UPDATE", {"data": {**OLD, "id": 2}}, "not there"),
        ("UPDATE", {"data": {"id": 1}, "unchanged": ["color"]}, "never had color"),
        ("UPDATE", {"data": OLD, "before": {**OLD, "name": "z"}}, "old name"),
        ("DELETE", {"before": {"id": 2}}, "not there"),
        ("DELETE", {"before": {**OLD, "notes": None}}, "old notes"),
        ("MESSAGE", {}, "nobody did that"),
        ("INSERT", {"collection": "planets", "data": {"id": 1}}, "planets"),
    ],
)
def test_what_cannot_be_is_noted(operation: str, body: dict[str, Any], said: str) -> None:
    [problem] = copy_of(change(1, 0, INSERT, OLD), change(2, 0, operation, **body)).impossible
    assert said in problem
