"""What is done to a table of a replica, step by step, and what a target refuses of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from penstock.consumer.mirror.target_table import TargetColumn, TargetTable
from penstock.model.errors import PenstockError, SettingsError
from penstock.tables.fold import ABSENT, VALUES, Merge, Move, Recount, RowFold, RowStep
from penstock.tables.lines import LineChange

# The values of some columns, in their order, as the target's encoders made them.
Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class AlterColumns:
    """The table has other columns from here on: `added` are null, `dropped` go."""

    added: Sequence[TargetColumn] = ()
    dropped: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RestoreRows:
    """Gives the rows with these keys, or all, the values that the snapshot's last point in the log
    has of them. Keys without such a row stay as they are."""

    keys: Sequence[Values] | None


@dataclass(frozen=True, slots=True)
class ForgetLate:
    """Nothing is restored any more."""


Step = RowStep | AlterColumns | RestoreRows | ForgetLate
# Steps of tables, in their order.
Work = Sequence[tuple[TargetTable, Iterable[Step]]]
# A part of a table's work: the change of a single row, or a step that is not of rows.
Piece = tuple[TargetTable, LineChange | Step]


class TableRefused(SettingsError):
    """The target does not take something of one `table`; the others are not concerned."""

    def __init__(self, message: str, code: str = "", *, hint: str = "", table: str = "") -> None:
        super().__init__(message, code, hint=hint)
        self.table = table


def refused(
    table: TargetTable, row: Mapping[str, Any], column: str, error: Exception
) -> TableRefused:
    """Names the column and the row, by its key, if there are any. No other value is in it: the text
    of an error that is not ours may have some."""
    ours = (
        error if isinstance(error, PenstockError) else TableRefused(type(error).__name__, "tables")
    )
    key = ", ".join(f"{name}={row[name]}" for name in table.key if name in row)[:200]
    what = ".".join(filter(None, (table.backend, table.schema, table.table)))
    what = f"the row with the key {key} of {what}" if key else what
    what = f"column {column} of {what}" if column else what
    text, hint = f"{what} is refused: {ours.message}", ours.hint or _REMEDY
    return TableRefused(text, ours.code, hint=hint, table=table.name)


_REMEDY = "mend it at the source, or make the table in the target fit; it is loaded again by itself"


def key_of(table: TargetTable) -> Callable[[Values], Values]:
    """What takes the key out of a row."""
    numbers = [table.names.index(name) for name in table.key]
    first = min(numbers, default=0)  # a slice of one is a tuple, too
    parts = numbers if len(numbers) > 1 else [slice(first, first + 1)]
    return itemgetter(*parts)


def pieces(work: Work) -> list[Piece]:
    """The changes of single rows that come to this work."""
    return [(table, one) for table, steps in work for step in steps for one in _rows(table, step)]


def joined(some: Iterable[Piece]) -> Iterator[tuple[TargetTable, Sequence[Step]]]:
    """The work that pieces come to."""
    for (_, is_row), group in groupby(some, lambda one: (id(one[0]), type(one[1]) is LineChange)):
        tables, given = zip(*group, strict=True)
        if is_row:
            fold = RowFold([*map(tables[0].names.index, tables[0].key)], VALUES)
            for change in given:
                fold.add(change)
            given = (*fold.steps(),)
        yield tables[0], given


def row_of(table: TargetTable, piece: LineChange | Step) -> Mapping[str, Any]:
    """What is known of a row that changes."""
    if not isinstance(piece, LineChange):
        return {}
    row = piece.before if piece.after is None else piece.after
    if row is None:
        return dict(zip(table.key, piece.key, strict=True))
    pairs = zip(table.names, row, strict=True)
    return {name: value for name, value in pairs if value is not ABSENT}


def _rows(table: TargetTable, step: Step) -> Iterator[LineChange | Step]:
    key = key_of(table)
    match step:
        case Merge(gone, parts, whole):
            yield from (LineChange("DELETE", one, None, None) for one in gone)
            for unsent, rows in parts.items():
                for row in rows:
                    cells = [ABSENT if n in unsent else cell for n, cell in enumerate(row)]
                    yield LineChange("UPDATE", key(row), None, tuple(cells), True)
            yield from (LineChange("INSERT", key(row), None, row) for row in whole)
        case Move(old, row):
            yield LineChange("UPDATE", key(row), None, row, True, old=old)
        case Recount(counts):
            for row, count in counts.items():
                yield from [LineChange("INSERT", None, None, row)] * count
                yield from [LineChange("DELETE", None, row, None)] * -count
        case _:
            yield step


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """A chunk that is in the rows that are being loaded."""

    chunk: int
    rows: int
    crc32: int
