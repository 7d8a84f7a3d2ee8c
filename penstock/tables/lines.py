"""Rows as lines of COPY: images of the form `text`, and the fold of such changes. Pure.

A line has the cells of all columns of its relation: `\\N` is null, `\\U` a value that the source
did not send. Lines are never parsed but where a change has unsent values or another key.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

NULL, UNSENT = "\\N", "\\U"
EMPTYING = ("TRUNCATE", "DROP")
_BUILT_IN = {"name": ""}


class RelationColumn(NamedTuple):
    """A column as the source has it. `type` is a name, `oid` and `modifier` are PostgreSQL's, and
    say what a built-in type is; 0: the name says it."""

    name: str
    type: str
    is_key: bool = False
    oid: int = 0
    modifier: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRelation:
    """What lines are of: a version of a source's table."""

    schema: str
    table: str
    columns: tuple[RelationColumn, ...]
    version: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "SourceRelation":
        """The relation in the first change of a page."""
        types = document.get("types") or {}
        columns = tuple(
            RelationColumn(
                each["name"], types.get(str(each["type"]), _BUILT_IN)["name"], each["key"],
                each["type"], each["modifier"],
            )
            for each in document["columns"]
        )  # fmt: skip
        return cls(
            schema=document["schema"], table=document["table"], columns=columns,
            version=document["version"] or "",
        )  # fmt: skip

    def to_json(self) -> str:
        """The relation as text; `SourceRelation.of` reads it."""
        columns = [
            {"name": each.name, "type": each.oid, "key": each.is_key, "modifier": each.modifier}
            for each in self.columns
        ]
        types = {str(each.oid): {"name": each.type} for each in self.columns if each.type}
        document = {"schema": self.schema, "table": self.table, "version": self.version}
        return orjson.dumps(document | {"columns": columns, "types": types}).decode()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns, in their order."""
        return tuple(column.name for column in self.columns)

    @property
    def key(self) -> tuple[int, ...]:
        """Which columns are the key."""
        return tuple(number for number, column in enumerate(self.columns) if column.is_key)


def replaced_columns(
    before: Sequence[str], now: Sequence[str]
) -> list[tuple[list[str], list[str]]]:
    """Columns that are gone, and those that stand where they were: a renamed column keeps its place
    among the others, and a new one is after all of them. So between columns that stayed they were
    renamed; at the end they may have been."""
    stay = set(before) & set(now)
    pairs = zip(_between(before, stay), _between(now, stay), strict=True)
    return [(gone, new) for gone, new in pairs if gone and new]


def _between(names: Sequence[str], stay: Collection[str]) -> list[list[str]]:
    """The names before, between and after those that stay."""
    found: list[list[str]] = [[]]
    for name in names:
        if name in stay:
            found.append([])
        else:
            found[-1].append(name)
    return found


class LineChange(NamedTuple):
    """A change. `has_unsent`: `after` has unsent values. `committed_at`: microseconds since 1970;
    `cursor` and `ordinal` are its place, and its transaction's changes have one cursor."""

    operation: str
    key: str | None
    before: str | None
    after: str | None
    has_unsent: bool = False
    committed_at: int | None = None
    cursor: str = ""
    ordinal: int = 0
    event_id: str = ""

    def old_key(self, key: Sequence[int]) -> str:
        """The key that the row had before; `key`: which columns are the key."""
        if self.before is None:
            return str(self.key)
        cells = self.before.split("\t")
        return "\t".join([cells[number] for number in key])


def completed(line: str, *before: str | None) -> str:
    """The line with the values that it lacks from the first of the lines before that has them."""
    for known in before:
        if known is not None:
            line = "\t".join(
                was if cell == UNSENT else cell
                for cell, was in zip(line.split("\t"), known.split("\t"), strict=True)
            )
    return line


def by_unsent(lines: Iterable[str]) -> dict[tuple[int, ...], list[str]]:
    """Lines by the values that they lack, which are null in them then."""
    found: dict[tuple[int, ...], list[str]] = {}
    for line in lines:
        cells = line.split("\t")
        unsent = tuple(number for number, cell in enumerate(cells) if cell == UNSENT)
        found.setdefault(unsent, []).append(
            "\t".join(NULL if cell == UNSENT else cell for cell in cells)
        )
    return found


def changes_of(batch: pa.RecordBatch) -> list[LineChange]:
    """The changes of a batch whose images are lines."""
    columns: Any = batch.column
    unchanged = columns("unchanged")
    has_unsent: Iterable[bool] = repeat(False)
    if len(unchanged.flatten()):
        has_unsent = [bool(count) for count in pc.list_value_length(unchanged).to_pylist()]
    return list(
        map(
            LineChange, columns("operation").to_pylist(), columns("key").to_pylist(),
            columns("before").to_pylist(), columns("after").to_pylist(), has_unsent,
            columns("committed_at").cast(pa.int64()).to_pylist(), columns("cursor").to_pylist(),
            columns("ordinal").to_pylist(), columns("event_id").to_pylist(),
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Clear:
    """All rows go."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The rows with the keys `gone` go; then those of `parts` get the values of columns that their
    line has (by the columns that it lacks); then the rows of `whole` are new, or replace those with
    their keys."""

    gone: Sequence[str] = ()
    parts: Mapping[tuple[int, ...], Sequence[str]] = field(default_factory=dict)
    whole: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """The row with the key `old` gets the values that the line has, another key among them."""

    old: str
    line: str


@dataclass(frozen=True, slots=True)
class Recount:
    """Rows without a key: of each line so many more, or fewer."""

    counts: Mapping[str, int]


LineStep = Clear | Merge | Move | Recount


class LineFold:
    """`add` the changes of a table in their order, then take the `steps`: they leave the same rows.

    `moves`: a row that gets another key stays the row that it is (the target has columns that
    nothing fills). `keeps`: rows are never deleted (append).
    """

    def __init__(
        self, relation: SourceRelation, *, moves: bool = False, keeps: bool = False
    ) -> None:
        self._key, self._moves, self._keeps = relation.key, moves, keeps
        self._steps: list[LineStep] = []
        self._gone: dict[str, None] = {}  # a set in order
        self._parts: dict[str, str] = {}  # lines that lack values, by key
        self._whole: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def add(self, change: LineChange) -> None:
        """Adds the next change."""
        operation = change.operation
        if operation in EMPTYING:
            if not self._keeps:
                self._forget()
                self._steps = [Clear()]
        elif not self._key:
            self._count(change)
        elif operation == "DELETE":
            if not self._keeps:
                self._drop(str(change.key))
        elif change.after is not None:
            self._change(change, change.after)

    def steps(self) -> list[LineStep]:
        """What to do, in order; the fold is empty then."""
        self._flush()
        steps, self._steps = self._steps, []
        return steps

    def _change(self, change: LineChange, line: str) -> None:
        key, old = str(change.key), change.old_key(self._key)
        if change.has_unsent:
            line = self._completed(change, old, line)
            if UNSENT in line.split("\t"):
                self._put_part(old, key, line)
                return
        if old != key:
            if self._moves and old not in self._whole:
                self._move(old, line)
                return
            self._drop(old)
        self._put(key, line)

    def _completed(self, change: LineChange, old: str, line: str) -> str:
        """The line with the values that are known from before."""
        return completed(line, self._whole.get(old), change.before, self._parts.get(old))

    def _put(self, key: str, line: str) -> None:
        if self._parts:
            self._parts.pop(key, None)
        self._whole[key] = line

    def _put_part(self, old: str, key: str, line: str) -> None:
        if old != key:
            self._move(old, line)
        else:
            self._parts[key] = line

    def _move(self, old: str, line: str) -> None:
        self._flush()
        self._steps.append(Move(old, line))

    def _drop(self, key: str) -> None:
        self._whole.pop(key, None)
        self._parts.pop(key, None)
        self._gone[key] = None

    def _count(self, change: LineChange) -> None:
        line = change.after
        if change.before is not None and not (self._keeps and change.operation == "DELETE"):
            self._counts[change.before] -= 1
            if change.has_unsent and line is not None:
                line = self._completed(change, "", line)
        if line is not None and change.operation != "DELETE":
            self._counts[line] += 1

    def _flush(self) -> None:
        if self._gone or self._parts or self._whole:
            self._steps.append(
                Merge([*self._gone], by_unsent(self._parts.values()), [*self._whole.values()])
            )
        if counts := {line: count for line, count in self._counts.items() if count}:
            self._steps.append(Recount(counts))
        self._forget()

    def _forget(self) -> None:
        self._gone, self._parts, self._whole = {}, {}, {}
        self._counts.clear()
