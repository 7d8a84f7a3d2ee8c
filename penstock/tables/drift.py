"""What becomes of a target when its source has other columns than before.

Columns are compared by the numbers that the source's catalogue gives them: a column with a known
number and another name was renamed, and one that was dropped and made anew is another column. A
Relation message has no numbers, and the catalogue is read when the message is, so it may be ahead:
it lacks what was dropped since, and has what was added and renamed since. What is certain: columns
come in the order of their numbers; a column that was there before the message, and is there now, is
in the message; of those that were added since, the message has the first ones. This alone decides
where nothing was dropped. A column that was dropped may be in the message: not if an older
transaction dropped it (or only if its name says so), else whatever its name is, as it may have been
renamed before it was dropped. Where the columns fit in two ways, as a name was used again while
changes were on their way, nothing is decided, and the table waits.

It waits as well where no change tells what is in old rows: a column whose default is not constant,
a type whose values may have other texts, a column that was left out so far.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from psycopg import sql
from pydantic import TypeAdapter

from penstock.model.errors import SettingsError
from penstock.tables.lines import (
    RelationColumn,
    SourceCatalog,
    SourceRelation,
    own_type,
    replaced_columns,
)
from penstock.tables.staged import Destination

# The target follows its source; has what it has; or an operator is asked to alter it.
SchemaChanges = Literal["add", "ignore", "ask"]

_SQL, _NAME = sql.SQL, sql.Identifier
_INTEGERS = ("smallint", "integer", "bigint")
_TYPE = re.compile(r"([a-z ]+)(?:\((\d+)(?:,(-?\d+))?\))?")


class KnownColumn(NamedTuple):
    """A column of the source: its number there (0: unknown), and its type as the destination calls
    it, or the number of one that is not built in; `target` is the column that has its values, None
    where they are left out."""

    number: int
    name: str
    type: str
    target: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownColumns:
    """What the ledger has of a table's columns, as of the changes that were applied last.

    `gone`: columns of the target whose columns at the source were dropped. `ignored`: columns of
    the source that the target lacks. `narrow`: columns of the target whose source was as narrow at
    first. `last`: the highest number that the source had given, and
    `file` the one that its rows were in. `is_made`: penstock made the target. `is_resumed`: an
    operator says that the target is right as it is.
    """

    columns: tuple[KnownColumn, ...] = ()
    gone: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    last: int = 0
    file: str = ""
    is_made: bool = False
    is_resumed: bool = False

    @classmethod
    def parse(cls, text: str) -> "KnownColumns":
        """What `to_json` made, or the ledger of a new table."""
        return cls() if text == "[]" else _KNOWN.validate_json(text)

    def to_json(self) -> str:
        return _KNOWN.dump_json(self).decode()

    def renamed(self, old: str, new: str) -> "KnownColumns":
        """The same after a column of the target got another name."""
        return replace(
            self, gone=tuple(new if each == old else each for each in self.gone),
            narrow=tuple(new if each == old else each for each in self.narrow),
            columns=tuple(
                each._replace(target=new) if each.target == old else each for each in self.columns
            ),
        )  # fmt: skip

    def labelled(self, relation: SourceRelation) -> SourceRelation:
        """The relation with the names that its columns have at the target."""
        taken = {each.target for each in self.columns}
        labels = [
            was.target if was is not None and was.target is not None
            else f"{column.name} ({place})" if column.name in taken else column.name
            for place, ((_, was), column) in enumerate(
                zip(_matched(relation, self, trusts_names=True), relation.columns, strict=True)
            )
        ]  # fmt: skip
        return replace(relation, columns=tuple(
            column._replace(name=label)
            for column, label in zip(relation.columns, labels, strict=True)
        ))  # fmt: skip


_KNOWN = TypeAdapter(KnownColumns)


class _Doubt(SettingsError):
    """Nothing tells what the target has to have: it is loaded anew, or an operator knows."""


def numbered(names: Sequence[str], known: KnownColumns, catalog: SourceCatalog) -> list[int] | None:
    """The numbers of a relation's columns; None where they cannot be told, see above."""
    now = {each.number: each.name for each in catalog.columns}
    before = {each.number: each.name for each in known.columns}
    gone = {*catalog.gone}
    # How many names are used up -> (what speaks against it, in how many ways, numbers).
    ways: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 1, ())}
    for number in sorted({*now, *before, *range(known.last + 1, catalog.last + 1)}):
        is_new, is_now = number > known.last, number in now
        fits = {now.get(number), before.get(number)}
        fits_all = not is_now and number not in gone and bool(before)
        found: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        for used, (cost, count, numbers) in ways.items():
            has_all = used == len(names)
            if not (number in before and is_now) and (has_all or not (is_new and is_now)):
                _join(found, used, (cost, count, numbers))
            if not has_all:
                against = 2 * (not fits_all and names[used] not in fits) + (number in gone)
                _join(found, used + 1, (cost + against, count, (*numbers, number)))
        ways = found
    _, count, numbers = ways.get(len(names), (0, 0, ()))
    return list(numbers) if count == 1 else None


def _join(
    found: dict[int, tuple[int, int, tuple[int, ...]]],
    used: int,
    way: tuple[int, int, tuple[int, ...]],
) -> None:
    cost, count, _ = found.get(used, (way[0] + 1, 0, ()))
    if way[0] < cost:
        found[used] = way
    elif way[0] == cost:
        found[used] = cost, count + way[1], way[2]


def _matched(
    relation: SourceRelation, known: KnownColumns, *, trusts_names: bool
) -> list[tuple[int, KnownColumn | None]]:
    """The number of each column, and what is known of it. Raises _Doubt, unless names are trusted
    where numbers cannot be told."""
    names, catalog = relation.names, relation.catalog
    by_name = {each.name: each for each in known.columns}
    by_number = {each.number: each for each in known.columns}
    is_numbered = 0 not in by_number
    numbers = None
    if catalog is not None:
        numbers = numbered(names, known if is_numbered else KnownColumns(), catalog)
    if numbers is not None and is_numbered:
        return [(number, by_number.get(number)) for number in numbers]
    if not trusts_names and catalog is not None and is_numbered and by_name:
        raise _Doubt(
            "a name of a column was used again at the source, for another column", "tables"
        )
    for gone, new in () if trusts_names else replaced_columns([*by_name], names):
        raise _Doubt(f"{', '.join(gone)} may be called {', '.join(new)} now", "tables")
    now = {name: each.number for name, each in by_name.items()}
    now |= {each.name: each.number for each in catalog.columns} if catalog is not None else {}
    return [
        (number or now.get(name, 0), by_name.get(name))
        for name, number in zip(names, numbers or [0] * len(names), strict=True)
    ]


@dataclass(slots=True, kw_only=True)
class ColumnChanges:
    """Compares the columns of a relation with those that were `known`, and with the destination:
    `compare`, then `statements` alter it, and `reasons` say why. `fills`: what old rows have in new
    columns. `types`: of the relation's columns, as the destination calls them. `wanted`: the
    columns that are written, if not all; `reserved`: those that have another use. `is_shared`: rows
    of other sources are in the destination, too. `is_trusted`: its rows are right, whatever is
    known, or are to be loaded; `is_emptied`: it has none then."""

    relation: SourceRelation
    types: Mapping[str, str]
    known: KnownColumns
    destination: Destination
    policy: SchemaChanges
    wanted: Collection[str] | None
    reserved: Collection[str]
    is_shared: bool
    is_trusted: bool
    is_emptied: bool
    statements: list[sql.Composed] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    renames: list[tuple[str, str]] = field(default_factory=list)
    fills: dict[str, str] = field(default_factory=dict)
    # The columns of the target, after the statements so far, and which of them have old values.
    _there: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    _narrow: set[str] = field(default_factory=set)

    def compare(self) -> KnownColumns:
        """What is known afterwards. Raises SettingsError where the table has to wait."""
        matched = _matched(self.relation, self.known, trusts_names=self.is_trusted)
        stay = {was for _, was in matched if was is not None}
        left = [each for each in self.known.columns if each not in stay]
        self._gone = {*self.known.gone, *(each.target for each in left if each.target is not None)}
        self._there, columns, ignored = {*self.destination.columns}, list[KnownColumn](), []
        for (number, was), column in zip(matched, self.relation.columns, strict=True):
            name, target = column.name, None
            if name not in self.reserved and (self.wanted is None or name in self.wanted):
                target = self._target(column, number, was)
                if target is None or any(each.target == target for each in columns):
                    target = None
                    ignored.append(name)
                elif self.known.columns and target != (was and was.target):
                    self._fit(target, column, f"{name} is new")
            elif was is not None and was.target is not None and name != was.name:
                self._doubt(f"{was.name} is called {name} now: correct `columns` in the map")
            columns.append(KnownColumn(number, name, self._type(column), target))
        gone = self._gone & self._there - {each.target for each in columns}
        for name in sorted(gone & self.destination.required - self.destination.primary):
            self._alter(f"{name} was dropped", "ALTER COLUMN {} DROP NOT NULL", _NAME(name))
        catalog, known = self.relation.catalog, self.known
        is_current = catalog is not None and self.relation.names == tuple(
            each.name for each in catalog.columns
        )
        return KnownColumns(
            columns=tuple(columns), gone=tuple(sorted(gone)), ignored=tuple(ignored),
            narrow=tuple(sorted(self._narrow.union(known.narrow) - gone)),
            last=catalog.last if catalog is not None and is_current
            else max(known.last, *(each.number for each in columns), 0),
            # Until a column is in the catalogue, the file is that of before.
            file=catalog.file if catalog is not None and is_current else known.file,
            is_made=known.is_made,
        )  # fmt: skip

    def _target(self, column: RelationColumn, number: int, was: KnownColumn | None) -> str | None:
        """The column of the target for a column of the source; None where there is none."""
        if was is None:
            return self._of_new(column, number)
        if was.target is not None:
            return self._of_known(column, was, was.target)
        if column.name in self._there or self.policy != "ignore":
            self._doubt(f"{column.name} was left out so far, and rows lack its values")
        return self._found(column)

    def _of_new(self, column: RelationColumn, number: int) -> str | None:
        name, known = column.name, {each.target for each in self.known.columns}
        if name not in self._there:
            value = None if self.policy == "ignore" else self._value_before(number, name)
            return self._found(column, value)
        if name in self._gone | known:
            self._doubt(f"{name} is another column now, and the target has values of the old one")
        elif (value := self._value_before(number, name)) is not None:
            self.fills[name] = value
        return name

    def _of_known(self, column: RelationColumn, was: KnownColumn, target: str) -> str | None:
        name, there = column.name, self._there
        if target not in there:
            if name not in there or name == was.name:  # else it was renamed by hand
                self._doubt(f"the target has no column {target} any more")
            return self._found(column)
        self._retype(was, target, column)
        if name in (was.name, target):
            return target
        if name in there:
            self._doubt(f"{was.name} is called {name} now, and the target has a column {name}")
            return name
        self._alter(f"{was.name} is called {name} now", "RENAME COLUMN {} TO {}",
                    _NAME(target), _NAME(name))  # fmt: skip
        self.renames.append((target, name))
        self._there = there - {target} | {name}
        return name

    def _found(self, column: RelationColumn, value: str | None = None) -> str | None:
        """The column of its name; it is added where it may be, with its value in old rows: that is
        a default, unless other rows are there."""
        name = column.name
        if name in self._there or self.policy == "ignore":
            return name if name in self._there else None
        self._there |= {name}
        own, kind = _NAME(name), _SQL(self.types[name])
        if value is None or self.is_shared:
            self._alter(f"{name} is new", "ADD COLUMN {} {}", own, kind)
            self.fills |= {} if value is None else {name: value}
            return name
        self._alter(f"{name} is new", "ADD COLUMN {} {} DEFAULT {}", own, kind, sql.Literal(value))
        self._alter("", "ALTER COLUMN {} DROP DEFAULT", own)
        return name

    def _value_before(self, number: int, name: str) -> str | None:
        """What all rows of before have at the source in a new column; None for null."""
        catalog, known = self.relation.catalog, self.known
        if not known.columns:
            return None
        columns = catalog.columns if catalog is not None else ()
        found = [each.missing for each in columns if each.number == number]
        if found and found[0] is not None:
            return found[0]
        # A table that is written anew stores the values that its older columns lack.
        is_as_added = any(each.missing is not None and each.number < number for each in columns)
        is_as_known = catalog is not None and catalog.file == known.file != ""
        if not found or not (is_as_added or is_as_known):
            self._doubt(f"{name} is new, and old rows may have values in it that no change has")
        return None

    def _type(self, column: RelationColumn) -> str:
        """What tells its type from others: names of the source's own types do not."""
        return str(own) if (own := own_type(column.oid)) else self.types[column.name]

    def _retype(self, was: KnownColumn, target: str, column: RelationColumn) -> None:
        """Widens a column of the target, where that of the source was."""
        own, kind = self.destination.columns[target], self._type(column)
        if kind not in (was.type, own):
            is_rewritten = own != was.type and _digits(was.type) != _digits(kind)
            if is_rewritten or not widens(was.type, kind):
                self._doubt(f"{was.name} is {kind} now, was {was.type}: values may be other ones")
            self._fit(target, column, f"{was.name} is {kind} now")

    def _fit(self, target: str, column: RelationColumn, reason: str) -> None:
        """A column of the target gets a type that has all values of the source's column."""
        kind = self.types[column.name]
        own = self.destination.columns.get(target, kind)
        # What is too large for a narrower column is refused, but digits are rounded.
        is_left = self.policy == "ignore" and not ("numeric" in kind or rounds(kind, own))
        if own in ("text", kind) or widens(kind, own):
            return
        if is_left:
            self._narrow |= {target}
            return
        action = "ALTER COLUMN {} TYPE {}" + (" USING NULL" if self.is_emptied else "")
        self._alter(reason, action, _NAME(target), _SQL(kind))

    def _alter(self, reason: str, action: str, *parts: sql.Composable) -> None:
        statement = _SQL("ALTER TABLE {} ").format(
            _NAME(self.destination.schema, self.destination.table)
        )
        self.statements.append(statement + _SQL(action).format(*parts))
        self.reasons += [reason] if reason else []

    def _doubt(self, reason: str) -> None:
        if not self.is_trusted:
            raise _Doubt(reason, "tables")


def _digits(kind: str) -> str | None:
    """After the point: all values of such a type have so many."""
    found = _TYPE.fullmatch(kind)
    return found and found[3]


# Digits after the point that values may have, by type; of others they are exact or refused.
_DIGITS = {"numeric": 1000, "timestamp": 6, "time": 6, "interval": 6, "money": 2}
_FLOATS = ("real", "double precision")


def rounds(kind: str, own: str) -> bool:
    """Whether values of a type may lose something in a column of another one, without an error."""
    old, new = _parted(kind), _parted(own)
    if kind.endswith("[]") != own.endswith("[]") or old == new:
        return False
    (name, most), (other, digits) = old, new
    if other in _FLOATS:
        return name in ("numeric", "bigint") or (name, other) in (
            ("integer", "real"), ("double precision", "real")
        )  # fmt: skip
    if other in ("date", "time"):
        return name == "timestamp" or (name == other and most > digits)
    is_alike = name == other or (name in _FLOATS and other == "numeric")
    return other in _DIGITS and digits < most and (is_alike or other == "money")


def _parted(kind: str) -> tuple[str, int]:
    """The name of a type, without a time zone, and how many digits its values may have."""
    found = _PARTS.match(kind.removesuffix("[]"))
    name = found[1].strip() if found else kind
    most = _DIGITS.get(name, 0 if name not in _FLOATS else 300)
    if found is None or found[2] is None:
        return name, most
    return name, int(found[3] or 0) if name == "numeric" else int(found[2])


_PARTS = re.compile(r"([a-z ]+?)(?:\((\d+)(?:,(-?\d+))?\))?(?: with(?:out)? time zone)?$")


def widens(old: str, new: str) -> bool:
    """Whether all values of a type are values of another one, with the same text (numeric: with
    more digits, as the source writes them from then on)."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) <= _INTEGERS.index(new)
    before, after = _TYPE.fullmatch(old), _TYPE.fullmatch(new)
    if before is None or after is None:
        return False
    (kind, size, scale), (other, most, digits) = before.groups(), after.groups()
    if kind == other == "numeric":
        return most is None or (size is not None and (
            int(digits) >= int(scale) and int(most) - int(digits) >= int(size) - int(scale)
        ))  # fmt: skip
    if kind not in ("character varying", "text") or other not in ("character varying", "text"):
        return False
    return most is None or (size is not None and int(size) <= int(most))
