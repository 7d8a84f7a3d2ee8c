"""How a change is printed; that it knows its place, its table and its time; and the command line's
places to start from.
"""

from datetime import UTC, datetime, timedelta, timezone

import orjson
import pytest

from penstock.consumer.tail.lines import describe, json_line, key_of, line
from penstock.consumer.tail.reader import ALL, NEW, Message, Since, Start, parse_start
from penstock.model.errors import SettingsError

BODY = {
    "event_id": "default:00000000/016B3748:0",
    "backend": "default",
    "schema": "public",
    "collection": "orders",
    "operation": "UPDATE",
    "position": "00000000/016B3748:12",
    "key": {"id": 5},
    "data": {"id": 5, "status": "paid", "total": "12.00"},
    "before": None,
    "committed_at": "2026-11-21T10:00:00.123456Z",
}


def message(**fields: object) -> Message:
    return Message(
        sequence=9,
        subject="cdc.orders.update",
        stored_at=datetime(2026, 11, 21, 10, 0, 1, tzinfo=UTC),
        headers={},
        body={**BODY, **fields},
    )


def test_a_line_shows_operation_table_key_and_row() -> None:
    text = line(message()).plain
    for part in (".123 ", "UPDATE", "public.orders", "id=5", 'status: "paid", total: "12.00"'):
        assert part in text


def test_a_known_before_shows_only_what_changed() -> None:
    before = {"id": 5, "status": "new", "total": "12.00"}
    assert describe({**BODY, "before": before}) == 'status: "new" → "paid"'


def test_a_key_image_that_did_not_change_shows_the_row() -> None:
    assert describe({**BODY, "before": {"id": 5}}) == 'status: "paid", total: "12.00"'


def test_a_delete_shows_its_key() -> None:
    assert "id=5" in line(message(operation="DELETE", data=None, before={"id": 5})).plain


def test_a_truncate_has_neither_key_nor_row() -> None:
    body = {**BODY, "key": None, "data": None}
    assert (key_of(body), describe(body)) == ("", "")


@pytest.mark.parametrize("evil", ["\x1b[2J", "a\nb", "\x9b31m", "\u202ex"])
def test_a_row_cannot_send_control_characters_to_the_terminal(evil: str) -> None:
    text = line(message(data={"id": 5, "note": evil}, collection=evil, key={"id": evil})).plain
    assert text.isprintable()


def test_json_keeps_the_body_and_says_where_it_was_stored() -> None:
    read = orjson.loads(json_line(message(data={"id": 5, "raw": b"\x00\xff"})))
    assert read["sequence"] == 9
    assert read["stored_at"] == "2026-11-21T10:00:01.000000Z"
    assert read["data"] == {"id": 5, "raw": "AP8="}
    assert read["event_id"] == BODY["event_id"]


def test_the_place_is_the_changes_position_whatever_its_id_is() -> None:
    assert message().place == ("00000000/016B3748", 12)
    assert message(event_id="shop:00000000/00000001:0").place == ("00000000/016B3748", 12)


def test_a_cursor_with_a_colon_does_not_confuse_the_place() -> None:
    assert message(position="a:b:12").place == ("a:b", 12)


def test_a_change_without_a_table_has_an_empty_collection() -> None:
    assert message(collection=None).collection == ""
    assert message(collection="users").collection == "users"


def test_a_change_without_a_commit_time_has_none() -> None:
    assert message(committed_at=None).committed_at is None


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
