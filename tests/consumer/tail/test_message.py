"""A change knows its place, its table and its time."""

from datetime import UTC, datetime

from penstock.consumer.tail.message import Message

CHANGE = {
    "event_id": "shop:any-text", "backend": "shop", "operation": "MESSAGE",
    "position": "00000000/016B3748:12",
}  # fmt: skip


def message(**fields: object) -> Message:
    return Message(
        sequence=1,
        subject="cdc.x",
        stored_at=datetime(2026, 1, 1, tzinfo=UTC),
        headers={},
        body={**CHANGE, **fields},
    )


def test_the_place_is_the_changes_position_whatever_its_id_is() -> None:
    assert message().place == ("00000000/016B3748", 12)
    assert message(event_id="shop:00000000/00000001:0").place == ("00000000/016B3748", 12)


def test_a_cursor_with_a_colon_does_not_confuse_the_place() -> None:
    assert message(position="a:b:12").place == ("a:b", 12)


def test_a_change_without_a_table_has_an_empty_collection() -> None:
    assert message(collection=None).collection == ""
    assert message(collection="users").collection == "users"


def test_a_change_without_a_commit_time_has_none() -> None:
    assert message().committed_at is None
