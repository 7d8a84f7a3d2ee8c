"""Changes of a table, folded by key: as few steps as leave the same rows. Pure.

What was not sent is not null, a key change removes the old key, TRUNCATE empties, and without a key
equal rows are counted. Rows are lines of COPY, or tuples of values: see `RowForm`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.tables.lines import NULL, UNSENT, LineChange

EMPTYING = ("TRUNCATE", "DROP")
OF_ROWS = ("INSERT", "READ", "UPDATE", "REPLACE", "DELETE")
# The value of a column that the source did not send, in a tuple.
ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT"})()
Row = Mapping[str, Any]


class RowForm:
    """How the rows of a fold are held: as tuples of values, and so are their keys."""

    null: Any = None
    absent = ABSENT

    def cells(self, row: Any) -> Sequence[Any]:
        return row  # type: ignore[no-any-return]

    def row(self, cells: Iterable[Any]) -> Any:
        return tuple(cells)

    def unsent(self, row: Any) -> tuple[int, ...]:
        """Which values a row lacks; the fold keeps such a row as a part of one."""
        return tuple(number for number, cell in enumerate(self.cells(row)) if cell == self.absent)

    def completed(self, row: Any, *before: Any) -> Any:
        """The row with what it lacks from the first of those before (or None) that has it."""
        for known in before:
            if known is not None:
                pairs = zip(self.cells(row), self.cells(known), strict=True)
                row = self.row([was if cell == self.absent else cell for cell, was in pairs])
        return row

    def nulled(self, row: Any) -> Any:
        """The row with null where it lacks a value."""
        return self.row([self.null if one == self.absent else one for one in self.cells(row)])


class LineForm(RowForm):
    """Rows are lines of COPY."""

    null = NULL
    absent = UNSENT

    def cells(self, row: str) -> Sequence[str]:
        return row.split("\t")

    def row(self, cells: Iterable[str]) -> str:
        return "\t".join(cells)


LINES, VALUES = LineForm(), RowForm()


def form_of(row: Any) -> RowForm:
    """How a row of a table is held."""
    return LINES if isinstance(row, str) else VALUES


def by_unsent(rows: Iterable[Any], form: RowForm = LINES) -> dict[tuple[int, ...], list[Any]]:
    """Rows by the values that they lack, which are null in them then."""
    found: dict[tuple[int, ...], list[Any]] = {}
    for row in rows:
        found.setdefault(form.unsent(row), []).append(form.nulled(row))
    return found


@dataclass(frozen=True, slots=True)
class Clear:
    """All rows go."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The rows with the keys `gone` go; then those of `parts` get the values of columns that they
    have there (by the columns that are lacking); then the rows of `whole` are new, or replace those
    with their keys."""

    gone: Sequence[Any] = field(default_factory=list)
    parts: Mapping[tuple[int, ...], Sequence[Any]] = field(default_factory=dict)
    whole: Sequence[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Move:
    """The row with the key `old` gets the values that `row` has, another key among them."""

    old: Any
    row: Any


@dataclass(frozen=True, slots=True)
class Recount:
    """Rows without a key: of each so many more, or fewer."""

    counts: Mapping[Any, int]


RowStep = Clear | Merge | Move | Recount


class RowFold:
    """`add` the changes of a table in their order, then take the `steps`: they leave the same rows.
    Until then `whole` are the rows by their keys, as far as changes gave all of their values.

    `key`: which columns are the key. `moves`: a row that gets another key stays the row that it is
    (the target has columns that nothing fills). `keeps`: rows are never deleted (append).
    """

    def __init__(
        self, key: Sequence[int], form: RowForm = LINES, *, moves: bool = False, keeps: bool = False
    ) -> None:
        self.whole: dict[Any, Any] = {}
        self.gone: dict[Any, None] = {}  # a set in order
        self._key, self._form, self._moves, self._keeps = key, form, moves, keeps
        self._steps: list[RowStep] = []
        self._parts: dict[Any, Any] = {}  # rows that lack values, by key
        self._counts: Counter[Any] = Counter()

    def add(self, change: LineChange) -> None:
        operation = change.operation
        if operation in EMPTYING:
            if not self._keeps:
                self._forget()
                self._steps = [Clear()]
        elif not self._key:
            self._count(change)
        elif operation == "DELETE":
            if not self._keeps:
                self._drop(change.key)
        elif change.after is not None:
            self._change(change, change.after)

    def steps(self) -> list[RowStep]:
        """What to do, in order; the fold is empty then."""
        self._flush()
        steps, self._steps = self._steps, []
        return steps

    def _change(self, change: LineChange, row: Any) -> None:
        key, old = change.key, change.old_key(self._key)
        if change.has_unsent:
            row = self._completed(change, old, row)
            if self._form.unsent(row):
                if old != key:
                    self._move(old, key, row)
                else:
                    self._parts[key] = row
                return
        if old != key:
            if self._moves and old not in self.whole:
                self._move(old, key, row)
                return
            self._drop(old)
        self.put(key, row)

    def put(self, key: Any, row: Any) -> None:
        """Adds a whole row, which is new or replaces that with its key."""
        if self._parts:
            self._parts.pop(key, None)
        self.whole[key] = row

    def _completed(self, change: LineChange, old: Any, row: Any) -> Any:
        """The row with the values that are known from before."""
        return self._form.completed(row, self.whole.get(old), change.before, self._parts.get(old))

    def _move(self, old: Any, key: Any, row: Any) -> None:
        self._flush()
        if self._keeps:  # a row with the key may be left from before it was deleted
            self._steps.append(Merge([key]))
        self._steps.append(Move(old, row))

    def _drop(self, key: Any) -> None:
        self.whole.pop(key, None)
        self._parts.pop(key, None)
        self.gone[key] = None

    def _count(self, change: LineChange) -> None:
        row = change.after
        if change.before is not None and not (self._keeps and change.operation == "DELETE"):
            self._counts[change.before] -= 1
            if change.has_unsent and row is not None:
                row = self._completed(change, None, row)
        if row is not None and change.operation != "DELETE":
            self._counts[row] += 1

    def _flush(self) -> None:
        if self.gone or self._parts or self.whole:
            parts = by_unsent(self._parts.values(), self._form)
            self._steps.append(Merge([*self.gone], parts, [*self.whole.values()]))
        if counts := {row: count for row, count in self._counts.items() if count}:
            self._steps.append(Recount(counts))
        self._forget()

    def _forget(self) -> None:
        self.gone, self._parts, self.whole = {}, {}, {}
        self._counts.clear()
