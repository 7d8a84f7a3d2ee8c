"""Values of messages -> what databases take: see the types in docs/reference/messages.md. Pure."""

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson

# What makes a value of the database of a value of messages; None: it takes that as it is.
Encoder = Callable[[Any], Any] | None

_YEAR = re.compile(r"([+-]?\d+)(-\d\d-\d\d)(?:T([\d:.]+))?(Z?)")


def as_bytes(value: Any) -> Any:
    """Bytes are base64 in messages of JSON."""
    return base64.b64decode(value) if isinstance(value, str) else value


def as_document(value: Any) -> str:
    """The text of a json or jsonb: a string is that text, and what was read exactly has it."""
    if isinstance(value, str) or type(value) is int:  # of any size
        return str(value)
    text: str | None = getattr(value, "text", None)
    return as_json(value) if text is None else text


def as_json(value: Any) -> str:
    return orjson.dumps(value, _plain, orjson.OPT_NON_STR_KEYS).decode()


def as_text(value: Any) -> Any:
    """Arrays, and values of types that the target does not have, as JSON; text as it is."""
    return value if isinstance(value, str) else as_json(value)


def as_documents(value: Any) -> str:
    """An array of json or jsonb as JSON: a list of texts."""

    def texts(values: Sequence[Any]) -> list[Any]:
        return [
            one if one is None else texts(one) if isinstance(one, list) else as_document(one)
            for one in values
        ]

    return value if isinstance(value, str) else as_json(texts(value))


def _plain(value: Any) -> str | float:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):  # one that knows its text
        return float(value)
    raise TypeError


def as_time(value: str) -> str:
    """As PostgreSQL reads it: ISO 8601 has other forms for years before 1 and after 9999."""
    if value[0] not in "+-" and not value.startswith("0000"):
        return value
    if (match := _YEAR.fullmatch(value)) is None:  # -infinity
        return value
    year, day, clock, zone = match.groups()
    era = " BC" if int(year) < 1 else ""
    number = 1 - int(year) if era else int(year)
    return f"{number:04d}{day}{f' {clock}' if clock else ''}{'+00' if zone else ''}{era}"


# How elements of PostgreSQL's arrays are written; others are text, numbers or booleans.
_ELEMENTS: dict[str, Callable[[Any], str]] = {
    "bytea": lambda value: "\\x" + bytes(as_bytes(value)).hex(),
    "json": as_document,
    "jsonb": as_document,
    "date": as_time,
    "timestamp": as_time,
}


def array_of(kind: str) -> Callable[[Any], str]:
    """An encoder of PostgreSQL's arrays of a type; one that is text already stays as it is."""
    element = _ELEMENTS.get(kind.partition("(")[0].partition(" ")[0], _element)
    delimiter = ";" if kind == "box" else ","

    def array(value: Sequence[Any]) -> str:
        if element is _element and delimiter == "," and set(map(type, value)) == {str}:
            text = '","'.join(value)
            if "\\" not in text and text.count('"') == 2 * len(value) - 2:
                return f'{{"{text}"}}'
        return "{" + delimiter.join(map(part, value)) + "}"

    def part(one: Any) -> str:
        if one is None:
            return "NULL"
        if isinstance(one, list):
            return array(one)
        text = element(one).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{text}"'

    return lambda value: value if isinstance(value, str) else array(value)


def _element(value: Any) -> str:
    if isinstance(value, bool):
        return "t" if value else "f"
    return str(as_text(value))
