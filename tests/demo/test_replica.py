"""The consumer's copy: what each operation does to it, and what cannot be is noted."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.consumer.tail.message import Message
from penstock.demo.replica import DemoReplica

OLD = {"id": 1, "name": "a", "notes": "long"}


KEYS = {"users": ("id",), "items": ("order_id", "line")}


def message(number: int, operation: str, *, collection: str = "users", **body: Any) -> Message:
    row = body.get("data") or body.get("before")
    key = row and {name: row[name] for name in KEYS.get(collection, ())}
    return Message(
        sequence=number,
        subject="cdc",
        stored_at=datetime(2026, 1, 1, tzinfo=UTC),
        headers={},
        body={
            "event_id": f"default:00000000/{number:08X}:0",
            "position": f"00000000/{number:08X}:0",
            "backend": "default",
            "transaction": str(number),
            "collection": collection,
            "operation": operation,
            "key": key,
            "data": None,
            "before": None,
            "unchanged": [],
            **body,
        },
    )


@pytest.fixture
def replica() -> DemoReplica:
    """A copy that holds one row."""
    copy = DemoReplica(KEYS)
    copy.apply(message(1, "INSERT", data=OLD))
    return copy


def test_an_update_replaces_the_row(replica: DemoReplica) -> None:
    replica.apply(message(2, "UPDATE", data={"id": 1, "name": "b", "notes": None}))
    assert replica.tables["users"] == {(1,): {"id": 1, "name": "b", "notes": None}}
    assert replica.impossible == []


def test_unchanged_is_not_null(replica: DemoReplica) -> None:
    replica.apply(message(2, "UPDATE", data={"id": 1, "name": "b"}, unchanged=["notes"]))
    assert replica.tables["users"] == {(1,): {"id": 1, "name": "b", "notes": "long"}}


def test_a_key_change_removes_the_old_key_and_keeps_what_is_unchanged(replica: DemoReplica) -> None:
    replica.apply(
        message(2, "UPDATE", data={"id": 9, "name": "a"}, before={"id": 1}, unchanged=["notes"])
    )
    assert replica.tables["users"] == {(9,): {"id": 9, "name": "a", "notes": "long"}}
    assert replica.received[-1].keys == ((1,), (9,))


def test_a_document_has_the_key_of_its_images(replica: DemoReplica) -> None:
    key, old = {"id": {"$oid": "5"}}, {"id": "5", "name": "a"}
    replica.apply(message(2, "INSERT", key=key, data=old))
    replica.apply(message(3, "UPDATE", key=key, data={**old, "name": "b"}, before=old))
    assert replica.tables["users"][("5",)] == {"id": "5", "name": "b"}
    replica.apply(message(4, "DELETE", key=key, before={**old, "name": "b"}))
    assert list(replica.tables["users"]) == [(1,)]
    assert replica.impossible == []
    assert replica.received[-1].keys == (("5",),)


def test_a_delete_removes_the_row(replica: DemoReplica) -> None:
    replica.apply(message(2, "DELETE", before={"id": 1}))
    assert replica.tables["users"] == {}
    assert replica.impossible == []


def test_a_truncate_empties_its_table_only(replica: DemoReplica) -> None:
    replica.apply(message(2, "INSERT", collection="items", data={"order_id": 1, "line": 2}))
    replica.apply(message(3, "TRUNCATE"))
    assert replica.tables == {"users": {}, "items": {(1, 2): {"order_id": 1, "line": 2}}}


def test_the_same_event_twice_changes_nothing_and_is_counted(replica: DemoReplica) -> None:
    replica.apply(message(2, "DELETE", before={"id": 1}))
    replica.apply(message(2, "DELETE", before={"id": 1}))
    assert replica.duplicates.total() == 1
    assert replica.count == 2
    assert replica.impossible == []


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
def test_what_cannot_be_is_noted(
    replica: DemoReplica, operation: str, body: dict[str, Any], said: str
) -> None:
    replica.apply(message(2, operation, **body))
    [problem] = replica.impossible
    assert said in problem
