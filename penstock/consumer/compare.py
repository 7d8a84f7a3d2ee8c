"""Which documents or rows differ between a stream and its source, also while both move on.

The stream is read to its end, then the source, then the stream goes on: each row of the source is a
state that its document passes through, so a difference that is not real resolves when the stream
comes to it. The table's values are read with psycopg, so that the two sides share no code.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

import orjson

from penstock.tables.fold import Fold
from penstock.wire.documents import JsonText

_MISSING_IN_STREAM, _MISSING_IN_SOURCE = "missing in the stream", "missing in the source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found. `differences`: identity -> in which fields, or where it is missing."""

    collection: str
    changes: int
    stream_count: int
    source_count: int
    compared: int
    differences: Mapping[str, str] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        return not self.differences and self.stream_count == self.source_count


class Comparison:
    """Of one collection. `add` its rows as they were read, then `apply` what the stream still has,
    until `differences` is empty or nothing comes."""

    def __init__(self, fold: Fold[str]) -> None:
        self.fold = fold
        self.compared = 0
        self.differences: dict[str, str] = {}
        self._rows: dict[str, Mapping[str, Any] | None] = {}

    def add(self, rows: Iterable[tuple[str, Mapping[str, Any]]], *, every: bool) -> None:
        """Compares rows of the source; `every`: they are all that it has."""
        seen = set()
        for identity, row in rows:
            seen.add(identity)
            self._compare(identity, row)
        if every:
            for identity in [name for name in self.fold.rows if name not in seen]:
                self._compare(identity, None)

    def apply(self, body: Mapping[str, Any]) -> None:
        """The stream goes on."""
        for identity in self.fold.apply(body):
            if identity in self.differences:
                self._judge(identity, self._rows[identity])

    def _compare(self, identity: str, row: Mapping[str, Any] | None) -> None:
        self.compared += 1
        self._judge(identity, row)
        if identity in self.differences:
            self._rows[identity] = row

    def _judge(self, identity: str, row: Mapping[str, Any] | None) -> None:
        copy = self.fold.rows.get(identity)
        if row is None:
            problem = "" if copy is None else _MISSING_IN_SOURCE
        elif copy is None:
            problem = _MISSING_IN_STREAM
        else:
            problem = ", ".join(differing(row, copy))
        if problem:
            self.differences[identity] = problem
        else:
            self.differences.pop(identity, None)


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
        case float() if not isfinite(value):
            return bool(copy == json.dumps(value))  # NaN, Infinity, -Infinity
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


def _same_time(value: datetime, copy: Any) -> bool:
    # timestamptz is written with Z, timestamp without.
    if not isinstance(copy, str) or copy.endswith("Z") != (value.tzinfo is not None):
        return False
    try:
        return datetime.fromisoformat(copy) == value
    except ValueError:
        return False
