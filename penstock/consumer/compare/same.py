"""Whether a value of a message is the value that the table holds. Pure.

The table's value is read with psycopg, so that the two sides share no code.
"""

import base64
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from math import isinf, isnan
from typing import Any
from uuid import UUID

import orjson

from penstock.wire.documents import JsonText


def differing(row: Mapping[str, Any], copy: Mapping[str, Any]) -> list[str]:
    """The columns in which a table's row and its copy differ."""
    names = [*row, *(name for name in copy if name not in row)]
    return [
        name
        for name in names
        if name not in row or name not in copy or not same(row[name], copy[name])
    ]


def same(value: Any, copy: Any) -> bool:  # noqa: PLR0911 - one for each type
    """Compares as the message format says; types count: 1 is not true, nor "1", nor 1.0."""
    match value:
        case bool() | None:
            return copy is value
        case float() if isnan(value) or isinf(value):
            return bool(copy == _special(value))
        case Decimal():
            return bool(copy == format(value, "f"))
        case datetime():
            return _same_time(value, copy)
        case date() | UUID():
            return bool(copy == str(value))
        case bytes():
            return bool(copy == value or copy == base64.b64encode(value).decode())
        case list():
            return (
                isinstance(copy, list)
                and len(copy) == len(value)
                and all(same(mine, theirs) for mine, theirs in zip(value, copy, strict=True))
            )
        case dict():
            return isinstance(copy, dict) and not differing(value, copy)
        case JsonText():
            if copy is None or isinstance(copy, str):  # SQL's null; the text itself
                return bool(copy == value)
            return same(
                orjson.loads(value.encode()), copy
            )  # by the same parser, which loses digits
        case _:
            return type(copy) is type(value) and copy == value


def _special(value: float) -> str:
    if isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _same_time(value: datetime, copy: Any) -> bool:
    # timestamptz is written with Z, timestamp without.
    if not isinstance(copy, str) or copy.endswith("Z") != (value.tzinfo is not None):
        return False
    try:
        return datetime.fromisoformat(copy) == value
    except ValueError:
        return False
