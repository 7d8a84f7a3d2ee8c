"""How a change is printed: one line for people, or one line of JSON for programs. Pure."""

from collections.abc import Mapping
from typing import Any

import orjson
from rich.text import Text

from penstock.consumer.tail.reader import Message
from penstock.model.images import base64_of

COLORS = {
    "INSERT": "green",
    "READ": "green",
    "UPDATE": "yellow",
    "REPLACE": "yellow",
    "DELETE": "red",
    "TRUNCATE": "bold red",
    "MESSAGE": "cyan",
}


def json_line(message: Message) -> bytes:
    """The body, with where and when it was stored in front; binary values as base64."""
    place = {
        "sequence": message.sequence,
        "subject": message.subject,
        "stored_at": message.stored_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    return orjson.dumps({**place, **message.body}, default=base64_of)


def line(message: Message) -> Text:
    """time, operation, table, key and what changed."""
    color = COLORS.get(message.operation, "")
    when = message.committed_at or message.stored_at
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{when.astimezone():%H:%M:%S}.{when.microsecond // 1000:03d} ", style="dim")
    text.append(f"{message.operation:<9}", style=color)
    text.append(f"{table_of(message.body):<22} ", style="bold")
    text.append(f"{key_of(message.body):<14} ", style="cyan")
    text.append(describe(message.body))
    return text


def key_of(body: Mapping[str, Any]) -> str:
    """`id=5`, or "" for a change without a key."""
    key = body.get("key")
    return " ".join(f"{name}={_value(value)}" for name, value in key.items()) if key else ""


def describe(body: Mapping[str, Any]) -> str:
    """The new row; or, where the old one is known, what changed in it."""
    data = body.get("data")
    if not isinstance(data, Mapping):
        return "" if data is None else _value(data)
    cells = changed_columns(body)
    key = () if any(old for _, old, _ in cells) else body.get("key") or {}
    return ", ".join(
        f"{name}: {f'{old} → ' if old else ''}{new}" for name, old, new in cells if name not in key
    )


def changed_columns(body: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value of before and value now of the columns that changed, where the row of before is
    known; else of each column. Empty where there is none."""
    data, before = body.get("data"), body.get("before")
    now = data if isinstance(data, Mapping) else {}
    old = before if isinstance(before, Mapping) else {}
    changed = [name for name in now if name in old and old[name] != now[name]]
    if changed or not now:
        return [
            (name, _value(old[name]), _value(now[name]) if now else "") for name in changed or old
        ]
    return [(name, "", _value(value)) for name, value in now.items()]


def table_of(body: Mapping[str, Any]) -> str:
    """`schema.table`, or as much of it as there is."""
    parts = (body.get("schema"), body.get("collection"))
    return printable(".".join(str(part) for part in parts if part))


def _value(value: Any) -> str:
    return printable(
        orjson.dumps(value, default=base64_of, option=orjson.OPT_NON_STR_KEYS).decode()
    )


def printable(text: str) -> str:
    """Escapes control characters: a row must not control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
