"""Log lines for poison: dead letters as they come, and each change of a table's state."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.announce import Announcement, LogLevel
from penstock.ops.board import Snapshot

# A sink's counters, one for each reason of a dead letter.
LETTERS = "dead_letters."
_TABLES: Mapping[str, tuple[LogLevel, str]] = {
    "suspended": ("warning", "a table is suspended"),
    "resuming": ("info", "a table resumes with its next change"),
    "following": ("info", "a table is followed again"),
}
_SHOWN = ("backend", "table", "reason", "error", "since", "skipped")


def set_aside(before: Snapshot, now: Snapshot) -> Iterator[Announcement]:
    """What changed from one snapshot to the next. Pure."""
    for key, entry in now.items():
        known = before[key].fields if key in before else {}
        if key[0] == "sink":
            yield from _letters(key[1], known, entry.fields)
        elif key[0] == "table" and entry.fields.get("state") != known.get("state"):
            yield from _table(known, entry.fields)


def _letters(
    sink: str, known: Mapping[str, Any], fields: Mapping[str, Any]
) -> Iterator[Announcement]:
    for name, count in fields.items():
        more = count - known.get(name, 0) if name.startswith(LETTERS) else 0
        if more > 0:
            letters = {"sink": sink, "reason": name.removeprefix(LETTERS), "changes": more}
            yield Announcement("warning", "changes were set aside as dead letters", letters)


def _table(known: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[Announcement]:
    state = str(fields.get("state"))
    # A table that is followed at a start is not logged.
    if state in _TABLES and (known or state != "following"):
        level, event = _TABLES[state]
        yield Announcement(level, event, {name: fields.get(name) for name in _SHOWN})
