"""What the log says of poison: each thing once, with what an operator needs."""

from typing import Any

from penstock.ops.announce import Announcement
from penstock.ops.board import Board
from penstock.ops.set_aside import set_aside

TABLE = {"backend": "a", "table": "public.t", "reason": "no-key", "skipped": 3}


def told(*steps: tuple[str, str, dict[str, Any], dict[str, float]]) -> list[Announcement]:
    """What is said after each report."""
    board, found, before = Board("/nowhere"), list[Announcement](), {}
    for number, (kind, name, fields, counts) in enumerate(steps):
        board.post(kind, name, fields, counts, str(number))  # type: ignore[arg-type]
        after = board.snapshot()
        found += set_aside(before, after)
        before = dict(after)
    return found


def table(state: str) -> tuple[str, str, dict[str, Any], dict[str, float]]:
    return "table", "a/public.t", TABLE | {"state": state}, {}


def test_each_state_of_a_table_is_said_once() -> None:
    found = told(table("suspended"), table("suspended"), table("resuming"), table("following"))
    assert [(one.level, one.event) for one in found] == [
        ("warning", "a table is suspended"),
        ("info", "a table resumes with its next change"),
        ("info", "a table is followed again"),
    ]
    assert found[0].fields["table"] == "public.t"


def test_a_table_that_was_suspended_long_ago_is_no_news() -> None:
    assert told(table("following")) == []


def test_dead_letters_are_said_as_they_come() -> None:
    found = told(
        ("sink", "s", {}, {"dead_letters.too-large": 2}),
        ("sink", "s", {"connected": True}, {}),
        ("sink", "s", {}, {"dead_letters.too-large": 1, "dead_letters.no-key": 1}),
    )
    assert sorted((one.fields["reason"], one.fields["changes"]) for one in found) == [
        ("no-key", 1),
        ("too-large", 1),
        ("too-large", 2),
    ]
