"""The contract of a target: where a replica keeps its tables; and how one is found by its URL.

Targets are plug-ins (group `penstock.targets`, by the scheme of the URL).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.model.errors import PenstockError, SettingsError
from penstock.process.plugins import known, plugin
from penstock.tables.fold import ABSENT, Merge, Move, Recount, RowStep
from penstock.tables.target_table import TargetColumn, TargetTable

# The values of some columns, in their order, as the target's encoders made them.
Values = tuple[Any, ...]
# None: the target takes the value of a message as it is.
Encoder = Callable[[Any], Any] | None


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


def single_rows(table: TargetTable, step: Step) -> Iterator[tuple[Step, Mapping[str, Any]]]:
    """A step for each row of a step, and what is known of the row."""
    match step:
        case Merge(gone, parts, whole):
            for key in gone:
                yield Merge([key]), dict(zip(table.key, key, strict=True))
            for unsent, rows in parts.items():
                for row in rows:
                    known = dict(zip(table.names, row, strict=True))
                    for number in unsent:
                        del known[table.names[number]]
                    yield Merge(parts={unsent: [row]}), known
            for row in whole:
                yield Merge(whole=[row]), dict(zip(table.names, row, strict=True))
        case Move(_, row):
            sent = zip(table.names, row, strict=True)
            yield step, {name: value for name, value in sent if value is not ABSENT}
        case Recount(counts):
            for row, count in counts.items():
                yield Recount({row: count}), dict(zip(table.names, row, strict=True))
        case _:
            yield step, {}


def joined(steps: Sequence[Step]) -> Step:
    """Neighbours that `single_rows` made of one step, together."""
    gone, whole, counts = list[Any](), list[Any](), dict[Any, int]()
    parts: defaultdict[Any, list[Any]] = defaultdict(list)
    for step in steps:
        match step:
            case Merge():
                gone += step.gone
                whole += step.whole
                for unsent, rows in step.parts.items():
                    parts[unsent] += rows
            case Recount():
                counts |= step.counts
            case _:
                return step
    return Recount(counts) if counts else Merge(gone, parts, whole)


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """A chunk that is in the rows that are being loaded."""

    chunk: int
    rows: int
    crc32: int


class Target(Protocol):
    """Where a replica keeps its tables; used by one thread. Constructing one does no I/O.

    Each method is one transaction of the target, and what it stores of the table (`TargetTable`) is
    is in that transaction: after a crash a replica goes on from exactly there. Everything raises
    Unavailable, SettingsError; LeaseLost once another replica has opened the same target; `load`,
    `finish` and `apply` TableRefused for what is of one table.
    """

    def open(self, names: Collection[str]) -> Sequence[TargetTable]:
        """Connects, and returns what it has of the tables of these names, whole or half loaded.
        Those that it has besides stay as they are, until a replica names them."""
        ...

    def encoder(self, column: TargetColumn) -> Encoder:
        """What makes a value of the target of a value of a message (not null)."""
        ...

    def begin(self, table: TargetTable) -> Sequence[LoadedChunk]:
        """Prepares for the rows of the table's snapshot, beside the rows that readers see. Returns
        what is loaded of this snapshot already; rows of another one are dropped. Raises
        SettingsError for a name that something else has."""
        ...

    def load(
        self,
        table: TargetTable,
        chunk: LoadedChunk,
        rows: Sequence[Values],
        *,
        is_late: bool = False,
    ) -> None:
        """Adds the rows of a chunk. Those that are late, of the point `table.last_point` and not of
        the first, are kept beside, too, for `RestoreRows`; those of earlier points are not."""
        ...

    def finish(self, table: TargetTable, rows: int | None = None) -> None:
        """Readers see the loaded rows, all at once, instead of what was there before. Raises
        TableRefused if they are not so many as `rows`."""
        ...

    def apply(
        self, work: Sequence[tuple[TargetTable, Sequence[Step]]], positions: Mapping[str, int]
    ) -> None:
        """Changes of tables, in their order, and what is to be stored of them. `positions`: of each
        stream the message up to which all its live tables that are followed are then, unless they
        are past it already."""
        ...

    def count(self, table: TargetTable) -> int:
        """How many rows it has."""
        ...

    def close(self) -> None:
        """Disconnects."""
        ...


def open_target(url: str) -> Target:
    """The target that a URL names; does no I/O. Raises SettingsError."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        kinds = ", ".join(known("targets"))
        raise SettingsError(
            "the target is no URL",
            "tables",
            hint=f"write sqlite:///mirror.db; known kinds: {kinds}",
        )
    found: Target = plugin("targets", scheme)(url)
    return found


def encoders(target: Target, columns: Sequence[TargetColumn]) -> Mapping[str, Encoder]:
    """Those of the columns that need one."""
    made = {column.name: target.encoder(column) for column in columns}
    return {name: encode for name, encode in made.items() if encode is not None}
