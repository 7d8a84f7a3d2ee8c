"""Which documents or rows differ between a stream and its source, also while both move on.

The stream is read to its end, then the source, then the stream goes on: each row of the source is a
state that its document passes through, so a difference that is not real resolves when the stream
comes to it. The table's values are read with psycopg, so that the two sides share no code.
"""

import base64
import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Generic, TypeVar
from uuid import UUID

import orjson

from penstock.model.images import JsonText
from penstock.tables.fold import EMPTYING, OF_ROWS, Row

K = TypeVar("K", bound=Hashable)

_MISSING_IN_STREAM, _MISSING_IN_SOURCE = "missing in the stream", "missing in the source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found. `differences`: identity -> in which fields, or where it is missing. `since`:
    when the stream's first change of the backend was committed. `older`: documents that no change
    of the stream has, because they are older than it; where `is_proven` is not set, as far as one
    can tell."""

    collection: str
    changes: int
    stream_count: int
    source_count: int
    compared: int
    differences: Mapping[str, str] = field(default_factory=dict)
    since: str | None = None
    older: int = 0
    is_proven: bool = True

    @property
    def same(self) -> bool:
        return not self.differences and self.stream_count == self.source_count

    @property
    def same_since(self) -> bool:
        """Whether the stream has all but what is older than it."""
        return not self.differences and self.stream_count + self.older == self.source_count


class Fold(Generic[K]):
    """Changes of one table or collection, as maps of the layout `penstock`, -> its `rows` with a
    key. `identity` makes the key of a change that has a `key` or a `document_id`."""

    def __init__(self, identity: Callable[[Row], K]) -> None:
        self.changes = 0
        self.rows: dict[K, Row] = {}  # by their keys
        self._identity = identity

    def keys(self, change: Row) -> tuple[K, ...]:
        """The keys that a change names: where it changes the key, the old one and the new one."""
        key, before = change.get("key"), change.get("before") or {}
        if key is None and change.get("document_id") is None:
            return ()
        now = self._identity(change)
        if not key or any(name not in before for name in key):
            return (now,)
        old_key = {name: before[name] for name in key}
        was = self._identity({**change, "key": old_key, "data": before})
        return (now,) if was == now else (was, now)

    def apply(self, change: Row) -> dict[K, Row | None]:
        """Applies a change; returns the keys that it names, with the rows that they had."""
        self.changes += 1
        operation = change["operation"]
        if operation in EMPTYING:
            gone, self.rows = self.rows, {}
            return {**gone}
        keys = self.keys(change) if operation in OF_ROWS else ()
        if not keys:
            return {}
        found = {key: self.rows.get(key) for key in keys}
        old, new = keys[0], keys[-1]
        if operation == "DELETE":
            self.rows.pop(old, None)
        elif data := change.get("data"):  # without it a document was gone when it was looked up
            unsent, known = change.get("unchanged") or (), self.rows.get(old) or {}
            if old != new:
                self.rows.pop(old, None)
            self.rows[new] = {**data, **{name: known[name] for name in unsent if name in known}}
        return found


class Comparison:
    """Of one collection. `apply` what the stream has of it, `add` its rows as they were read, then
    `apply` what the stream still has, until `differences` is empty or nothing comes.
    `identity` as for `Fold`."""

    def __init__(self, identity: Callable[[Mapping[str, Any]], str]) -> None:
        self.fold = Fold(identity)
        self.compared = 0
        self.differences: dict[str, str] = {}
        self._named: set[str] = set()  # by any change
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

    @property
    def unnamed(self) -> set[str]:
        """Of the differences the documents that no change of the stream has."""
        return self.differences.keys() - self._named

    def apply(self, body: Mapping[str, Any]) -> None:
        for identity in self.fold.apply(body):
            self._named.add(identity)
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
