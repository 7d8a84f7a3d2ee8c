"""The contract of a target: where a replica keeps its tables; and how one is found by its URL.

Targets are plug-ins (group `penstock.targets`, by the scheme of the URL).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.errors import SettingsError
from penstock.plugins import known, plugin
from penstock.replica.mirrored import MirrorColumn, MirrorTable

# The values of some columns, in their order, as the target's encoders made them.
Values = tuple[Any, ...]
# None: the target takes the value of a message as it is.
Encoder = Callable[[Any], Any] | None


@dataclass(frozen=True, slots=True)
class ClearRows:
    """Removes all rows."""


@dataclass(frozen=True, slots=True)
class UpsertRows:
    """Rows by their key: each is new, or replaces the one that has its key."""

    rows: Sequence[Values]


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """Sets some columns, which may be those of the key, of the rows with these keys. A key without
    a row changes nothing; a row that has the new key already makes room."""

    columns: tuple[str, ...]
    keys: Sequence[Values]
    rows: Sequence[Values]


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Removes the rows with these keys."""

    keys: Sequence[Values]


@dataclass(frozen=True, slots=True)
class InsertRows:
    """Adds rows of a table without a key."""

    rows: Sequence[Values]


@dataclass(frozen=True, slots=True)
class RemoveRows:
    """Removes, for each of these, one row that equals it in all columns."""

    rows: Sequence[Values]


@dataclass(frozen=True, slots=True)
class AlterColumns:
    """The table has other columns from here on: `added` are null, `dropped` go."""

    added: Sequence[MirrorColumn] = ()
    dropped: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RestoreRows:
    """Gives the rows with these keys, or all, the values that the snapshot's last point in the log
    has of them. Keys without such a row stay as they are."""

    keys: Sequence[Values] | None


@dataclass(frozen=True, slots=True)
class ForgetLate:
    """Nothing is restored any more."""


Step = (
    ClearRows | UpsertRows | UpdateRows | DeleteRows | InsertRows | RemoveRows | AlterColumns
    | RestoreRows | ForgetLate
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """A chunk that is in the rows that are being loaded."""

    chunk: int
    rows: int
    crc32: int


class Target(Protocol):
    """Where a replica keeps its tables; used by one thread. Constructing one does no I/O.

    Each method is one transaction of the target, and what it stores of the table (`MirrorTable`) is
    in that transaction: after a crash a replica goes on from exactly there. Everything raises
    Unavailable, SettingsError; LeaseLost once another replica has opened the same target.
    """

    def open(self, names: Collection[str]) -> Sequence[MirrorTable]:
        """Connects, and returns what it has of the tables of these names, whole or half loaded.
        Those that it has besides stay as they are, until a replica names them."""
        ...

    def encoder(self, column: MirrorColumn) -> Encoder:
        """What makes a value of the target of a value of a message (not null)."""
        ...

    def begin(self, table: MirrorTable) -> Sequence[LoadedChunk]:
        """Prepares for the rows of the table's snapshot, beside the rows that readers see. Returns
        what is loaded of this snapshot already; rows of another one are dropped. Raises
        SettingsError for a name that something else has."""
        ...

    def load(
        self,
        table: MirrorTable,
        chunk: LoadedChunk,
        rows: Sequence[Values],
        *,
        is_late: bool = False,
    ) -> None:
        """Adds the rows of a chunk. Those that are late, of the point `table.settled` and not of
        the first, are kept beside, too, for `RestoreRows`; those of earlier points are not."""
        ...

    def finish(self, table: MirrorTable) -> None:
        """Readers see the loaded rows, all at once, instead of what was there before."""
        ...

    def apply(self, work: Sequence[tuple[MirrorTable, Sequence[Step]]], sequence: int) -> None:
        """Changes of tables, in their order, and what is to be stored of them. All live tables that
        are followed are at `sequence` then, unless they are past it already."""
        ...

    def count(self, table: MirrorTable) -> int:
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
            "the target is no URL", hint=f"write sqlite:///mirror.db; known kinds: {kinds}"
        )
    found: Target = plugin("targets", scheme)(url)
    return found


def encoders(target: Target, columns: Sequence[MirrorColumn]) -> Mapping[str, Encoder]:
    """Those of the columns that need one."""
    made = {column.name: target.encoder(column) for column in columns}
    return {name: encode for name, encode in made.items() if encode is not None}
