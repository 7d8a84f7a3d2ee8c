"""A change knows its place, its table and its time; and the command line's places to start from."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.consumer.tail.reader import ALL, NEW, Message, Since, Start, parse_start
from penstock.model.errors import SettingsError

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


NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ALL),
        ("new", NEW),
        ("1234", 1234),
        ("-10", -10),
        ("10m", Since(time=NOW - timedelta(minutes=10))),
        ("2026-11-21", Since(time=datetime(2026, 11, 21, tzinfo=UTC))),
        ("2026-11-21T10:00:00Z", Since(time=datetime(2026, 11, 21, 10, tzinfo=UTC))),
        (
            "2026-11-21T10:00:00+02:00",
            Since(time=datetime(2026, 11, 21, 10, tzinfo=timezone(timedelta(hours=2)))),
        ),
    ],
)
def test_every_way_to_write_a_start_is_understood(text: str, expected: Start) -> None:
    assert parse_start(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "0", "-0", "yesterday", "--5", "1.5"])
def test_anything_else_is_a_settings_error_that_lists_the_ways(text: str) -> None:
    with pytest.raises(SettingsError, match="the last ten"):
        parse_start(text, NOW)
