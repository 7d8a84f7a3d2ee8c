"""How rows of a source's table become those of a destination: what is the same in any database.

A staged table applies the steps of a fold through temporary tables of its session, in a few
statements whatever the number of rows.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock.model.errors import Rejected
from penstock.tables.fold import Clear, Merge, Move, Recount, RowStep
from penstock.tables.lines import RelationColumn, SourceRelation

SID = "sid"
# The comment on a table that penstock made.
MADE = "made by penstock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A table of the target's database, as it is: the types of its `columns`, those that are
    `generated`, those that are `required` (not null, without a default), its `primary` key, and
    the sets of columns that are unique (`keys`). `is_made`: its comment says `MADE`."""

    schema: str
    table: str
    columns: Mapping[str, str]
    generated: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    primary: frozenset[str] = frozenset()
    keys: frozenset[frozenset[str]] = frozenset()
    is_made: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMapping:
    """How rows of a relation become those of a destination. `computed`: SQL for columns of the
    destination, over the source's; where there are some, only these are written. `filter`: which
    rows are in the destination. `sid`: what its column for the source's name has, if there is one.
    `columns`: those that are written, if not all that both have. `source`: its name, for SQL."""

    sid: str | None = None
    source: str = ""
    columns: Sequence[str] | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    filter: str = ""

    @property
    def has_expressions(self) -> bool:
        """Whether rows go through SQL of the user, over the columns `META` and `_sid` as well."""
        return bool(self.computed or self.filter)


# What expressions call the source's name.
OWN_SID = RelationColumn("_sid", "text")
# Columns that lines have before the source's, where there are expressions.
META = (RelationColumn("_operation", "text"), RelationColumn("_committed_at", "timestamptz"))


def widened(relation: SourceRelation) -> SourceRelation:
    """The relation with the columns `META` before its own."""
    return replace(relation, columns=(*META, *relation.columns))


class StagedRows(ABC):
    """Applies steps to one destination, in the transaction of a cursor. Methods raise the driver's
    errors, and Rejected. `rows` and `keys` are its temporary tables; `number` tells those of a
    session apart."""

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int
    ) -> None:
        self.destination, self.mapping = destination, mapping
        self.relation = widened(relation) if mapping.has_expressions else relation
        self.written = _written(relation, destination, mapping)
        self.key = _target_key(relation, destination, mapping)
        self.rows, self.keys = f"penstock_rows_{number}", f"penstock_keys_{number}"

    @property
    def moves(self) -> bool:
        """Whether the destination has columns that nothing fills: rows keep them."""
        filled = self.written | self.destination.generated | self.fixed.keys()
        return bool(self.destination.columns.keys() - filled)

    @property
    def unique(self) -> Sequence[str]:
        """The columns of which the destination has a unique index, if rows have a key."""
        return [*self.key, *([] if self.mapping.sid is None else [SID])] if self.key else []

    def apply(self, cursor: Any, steps: Sequence[RowStep]) -> None:
        """Applies the steps, in their order."""
        for step in steps:
            match step:
                case Clear():
                    self.clear(cursor)
                case Merge():
                    self._merge(cursor, step)
                case Move(old, row):
                    self._move(cursor, old, row)
                case Recount(counts):
                    self._recount(cursor, counts)

    @property
    def fixed(self) -> Mapping[str, str]:
        """Columns of the destination with one value in all rows of the source that are loaded."""
        return {} if self.mapping.sid is None else {SID: self.mapping.sid}

    def form(self, *, merges: bool) -> tuple[Sequence[str], bytes]:
        """What lines are that `load` takes: these columns of the source, after a prefix."""
        if self.mapping.has_expressions:
            own = self.relation.names[len(META) :]
            return own, prefix(["READ", str(datetime.now(UTC))], own).encode()
        if merges:
            return self.relation.names, b""
        columns = [name for name in self.relation.names if name in self.written]
        return columns, prefix(map(escaped, self.fixed.values()), columns).encode()

    @property
    def takes_lines(self) -> bool:
        """Whether lines are rows of the destination as they are."""
        return not self.mapping.has_expressions and self.written >= {*self.relation.names}

    @property
    def kept(self) -> Mapping[str, str]:
        """The source's columns that the destination has as they are, by name, and what it calls
        them."""
        own = self.mapping.computed or {name: name for name in self.written}
        return {value.strip().strip('"'): name for name, value in own.items()}

    def refuse_unsent(self, unsent: Iterable[str]) -> None:
        """Raises UnsentValue where an expression needs one of these columns, and the destination
        does not have its value either."""
        texts = [*self.mapping.computed.values(), self.mapping.filter]
        for name in sorted(set(unsent) - self.kept.keys()):
            if any(mentions(text, name) for text in texts):
                raise UnsentValue(f"`set` or `filter` needs the column {name}", hint=SENDS_ALL)

    def _names_of(self, numbers: Iterable[int]) -> list[str]:
        return [self.relation.names[number] for number in numbers]

    @property
    def _key_names(self) -> list[str]:
        return [column.name for column in self.relation.columns if column.is_key]

    @abstractmethod
    def make(self, cursor: Any) -> None:
        """Makes the temporary tables, which last as long as the session."""

    @abstractmethod
    def stage(self, cursor: Any, rows: Iterable[Any], keys: Sequence[Any] = ()) -> None:
        """The staged rows are these, and the staged keys."""

    @abstractmethod
    def copy(self, cursor: Any, rows: Sequence[Any]) -> None:
        """New rows, straight into the destination; only where it `takes_lines`."""

    @abstractmethod
    def clear(self, cursor: Any) -> None:
        """All rows go: those of the source, where there are several."""

    @abstractmethod
    def _merge(self, cursor: Any, step: Merge) -> None: ...

    @abstractmethod
    def _move(self, cursor: Any, old: Any, row: Any) -> None: ...

    @abstractmethod
    def _recount(self, cursor: Any, counts: Mapping[Any, int]) -> None: ...


class UnsentValue(Rejected):
    """A change of a row lacks a value that the source did not send, and that is needed."""


SENDS_ALL = "ALTER TABLE ... REPLICA IDENTITY FULL at the source sends all values"


def mentions(text: str, name: str) -> bool:
    """Whether SQL may use a column: its name is in it."""
    return re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text, re.IGNORECASE) is not None


def _written(
    relation: SourceRelation, destination: Destination, mapping: RowMapping
) -> frozenset[str]:
    """The columns of the destination that are written, besides `sid`."""
    if mapping.computed:
        return frozenset(mapping.computed)
    names = relation.names if mapping.columns is None else mapping.columns
    both = destination.columns.keys() & set(relation.names) & set(names)
    own = {SID} if mapping.sid is not None else set()
    return frozenset(both - destination.generated - own)


def _target_key(
    relation: SourceRelation, destination: Destination, mapping: RowMapping
) -> tuple[str, ...]:
    """The columns by which a row of the destination is found, besides `sid`."""
    if mapping.computed and relation.key:
        return tuple(sorted(destination.primary - {SID}))
    return tuple(relation.columns[number].name for number in relation.key)


def prefix(cells: Iterable[str], columns: Collection[object]) -> str:
    """What comes before a line of these columns, so that it has the cells as well."""
    before = "\t".join(cells)
    return f"{before}\t" if before and columns else before


def escaped(text: str) -> str:
    """A text as a cell of a line."""
    for character, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(character, written)
    return text
