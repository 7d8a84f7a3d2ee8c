"""How rows of a source's table become those of a destination: what is the same in any database.

A staged table applies the steps of a fold through temporary tables of its session, in a few
statements whatever the number of rows.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from psycopg import sql

from penstock.model.errors import Rejected, SettingsError
from penstock.tables.fold import Clear, Merge, Move, Recount, RowFold, form_of
from penstock.tables.lines import LineChange, RelationColumn, SourceRelation

_SQL, _COMMA, _NOTHING = sql.SQL, sql.SQL(", "), sql.SQL("")

SID = "sid"
# The comment on a table that penstock made.
MADE = "made by penstock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A table of the target's database, as it is: the types of its `columns`, those that are
    `generated`, those that no UPDATE may set (`identity`: GENERATED ALWAYS AS IDENTITY), those that
    are `required` (not null, without a default), its `primary` key, and the sets of columns that
    are unique (`keys`), or are so when a constraint that is `deferrable` says so. `is_made`: its
    comment says `MADE`. `is_referenced`: foreign keys refer to it."""

    schema: str
    table: str
    columns: Mapping[str, str]
    generated: frozenset[str] = frozenset()
    identity: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    primary: frozenset[str] = frozenset()
    keys: frozenset[frozenset[str]] = frozenset()
    deferrable: frozenset[frozenset[str]] = frozenset()
    is_made: bool = False
    is_referenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMapping:
    """How rows of a relation become those of a destination. `computed`: SQL for columns of the
    destination, over the source's; where there are some, only these are written. `filter`: which
    rows are in the destination. `sid`: what its column for the source's name has, if there is one,
    which is called `sid_column`. `columns`: those that are written, if not all that both have.
    `source`: its name, for SQL; `backend`: that of its backend."""

    sid: str | None = None
    sid_column: str = SID
    source: str = ""
    backend: str = ""
    columns: Sequence[str] | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    filter: str = ""

    @property
    def own(self) -> Mapping[str, str]:
        """The column for the source's name, and what it has, if there is one."""
        return {} if self.sid is None else {self.sid_column: self.sid}

    @property
    def has_expressions(self) -> bool:
        """Whether rows go through SQL of the user, over the columns `META` and `_sid` as well."""
        return bool(self.computed or self.filter)


# What expressions call the source's name.
OWN_SID = RelationColumn("_sid", "text")
# Columns that lines have before the source's, where there are expressions.
META = (RelationColumn("_operation", "text"), RelationColumn("_committed_at", "timestamptz"))
# What a source's columns cannot be called then.
OWN_NAMES = {OWN_SID.name, *(column.name for column in META), "_place"}


def widened(relation: SourceRelation) -> SourceRelation:
    """The relation with the columns `META` before its own."""
    return replace(relation, columns=(*META, *relation.columns))


class StagedRows(ABC):
    """Applies steps to one destination, in the transaction of a cursor. Methods raise the driver's
    errors, and Rejected. `_rows` and `_keys` (`keys`) are its temporary tables, in the schema
    `_temporary`, as a user may have tables of these names; `number` tells those of a session apart.
    `_place`: what the database calls the place of a row. `_made`: how a temporary table is made,
    and `_no_columns` which one without columns has."""

    add_key = "ALTER TABLE {target} ADD PRIMARY KEY ({names});"
    _place: str
    _temporary: str
    _made: str
    _no_columns: Mapping[str, str] = {}
    _overriding = _fence = _NOTHING

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int
    ) -> None:
        self.destination, self.mapping = destination, mapping
        self.relation = widened(relation) if mapping.has_expressions else relation
        self.written = _written(relation, destination, mapping)
        self.key = _target_key(relation, destination, mapping)
        self.target = sql.Identifier(destination.schema, destination.table)
        self.keys = f"{self._temporary}.penstock_keys_{number}"
        self._rows, self._keys = (
            sql.Identifier(self._temporary, f"penstock_{name}_{number}")
            for name in ("rows", "keys")
        )

    @property
    def moves(self) -> bool:
        """Whether rows that get another key stay themselves: the destination has columns that
        nothing fills, or other tables refer to it."""
        filled = self.written | self.destination.generated | self.fixed.keys()
        is_filled = self.destination.columns.keys() <= filled
        return not is_filled or self.destination.is_referenced

    @property
    def finds_rows(self) -> bool:
        """Whether changes are applied to the rows that they change."""
        return True

    def problems(self) -> Iterator[SettingsError]:
        """What else is wrong with the destination for these rows."""
        yield from ()

    @property
    def unique(self) -> Sequence[str]:
        """The columns of which the destination has a unique index, if rows have a key."""
        return [*self.key, *self.mapping.own] if self.key else []

    def plan(self, changes: Iterable[LineChange], *, keeps: bool = False) -> Sequence[Any]:
        """The steps that changes come to; `keeps`: rows are never deleted. Pure."""
        fold = RowFold(self.relation.key, moves=self.moves, keeps=keeps)
        for one in changes:
            fold.add(one)
        return fold.steps()

    def early(self, cursor: Any, steps: Sequence[Any]) -> Callable[[], None] | None:
        """The part of `apply` that does not use the cursor; None: there is none. It may run in
        another thread, within the cursor's transaction. `apply` has its result, or its error."""
        return None

    def apply(self, cursor: Any, steps: Sequence[Any]) -> None:
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
        return self.mapping.own

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
        """The source's columns that the destination has as they are -> their names there."""
        own = {name: text.strip().strip('"') for name, text in self.mapping.computed.items()}
        own = own or {name: name for name in self.written}
        same = {name: name for name, value in own.items() if name == value}
        return {value: name for name, value in own.items()} | same

    def refuse_unsent(self, unsent: Iterable[str]) -> None:
        """Raises UnsentValue where an expression needs one of these that the destination lacks."""
        texts = [*self.mapping.computed.values(), self.mapping.filter]
        for name in sorted(set(unsent) - self.kept.keys()):
            if any(mentions(text, name) for text in texts):
                raise UnsentValue(
                    f"`set` or `filter` needs the column {name}", "tables", hint=SENDS_ALL
                )

    def _names_of(self, numbers: Iterable[int]) -> list[str]:
        return [self.relation.names[number] for number in numbers]

    @property
    def _key_names(self) -> list[str]:
        return [column.name for column in self.relation.columns if column.is_key]

    def make(self, cursor: Any) -> None:
        """Makes the temporary tables, which last as long as the session."""
        kinds = self.kinds(cursor)
        self._make_temporary(cursor, self._rows, kinds)
        self._make_temporary(cursor, self._keys, {name: kinds[name] for name in self._key_names})

    def kinds(self, cursor: Any) -> dict[str, str]:
        """Staged columns' types: the source's under expressions, else the destination's, if any."""
        own = {} if self.mapping.has_expressions else self.destination.columns
        kinds = {
            column.name: own[column.name] if column.name in own.keys() & self.written
            else self._type_at(cursor, column)
            for column in self.relation.columns
        }  # fmt: skip
        if self.mapping.has_expressions:
            name = literal(self.mapping.source).as_string(None)
            kinds[OWN_SID.name] = f"{OWN_SID.type} DEFAULT {name}"
        return kinds

    @abstractmethod
    def _type_at(self, cursor: Any, column: RelationColumn) -> str:
        """The type of a source's column in this database."""

    def _make_temporary(
        self, cursor: Any, table: sql.Identifier, columns: Mapping[str, str]
    ) -> None:
        """Makes a table with these columns and their types."""
        cursor.execute(_SQL("DROP TABLE IF EXISTS {}").format(table))
        cursor.execute(_SQL(self._made).format(table, kinds_listed(columns or self._no_columns)))

    @abstractmethod
    def stage(self, cursor: Any, rows: Iterable[Any], keys: Sequence[Any] = ()) -> None:
        """The staged rows are these, and the staged keys."""

    @abstractmethod
    def copy(self, cursor: Any, rows: Sequence[Any]) -> None:
        """New rows, straight into the destination; only where it `takes_lines`."""

    def clear(self, cursor: Any) -> None:
        """All rows go: those of the source, where there are several."""
        cursor.execute(_SQL("DELETE FROM {} AS _t WHERE true{}").format(self.target, self._mine))

    @abstractmethod
    def _copy_pieces(
        self, cursor: Any, table: sql.Identifier, names: Sequence[str], pieces: Iterable[bytes]
    ) -> int:
        """Adds lines to a table; returns how many there were."""

    @abstractmethod
    def _delete(self, staged: sql.Identifier, condition: sql.Composable) -> sql.Composable:
        """Rows of the destination go whose keys are staged, where the condition is true."""

    @abstractmethod
    def _remove(self, cursor: Any) -> None:
        """For each staged row one row goes that equals it."""

    def has_rows(self, cursor: Any) -> bool:
        """Whether there are rows: of the source, where there are several."""
        query = _SQL("SELECT EXISTS (SELECT 1 FROM {} AS _t WHERE true{})")
        return bool(cursor.execute(query.format(self.target, self._mine)).fetchone()[0])

    def load(self, cursor: Any, pieces: Iterable[bytes], *, merges: bool) -> int:
        """Adds rows of the source: where it `merges`, instead of those with their keys, or without
        a key of as many that equal them. Returns how many there were."""
        if not merges and not self.mapping.has_expressions:
            columns, _ = self.form(merges=False)
            return self._copy_pieces(cursor, self.target, [*self.fixed, *columns], pieces)
        self.stage(cursor, ())
        count = self._copy_pieces(cursor, self._rows, self.relation.names, pieces)
        if merges:
            if not self.key:
                self._remove(cursor)
            self._put(cursor)
        else:
            self._insert(cursor)
        return count

    @contextmanager
    def loading(self, cursor: Any, part: str, point: str, *, merges: bool) -> Iterator[None]:
        """Within, `load` is given the rows of a part of a load, which are those at a point."""
        yield

    def made_rows(self) -> sql.Composable:
        """The staged rows as they are to be in the destination, for FROM."""
        return _SQL("(SELECT {} FROM {} WHERE {}) AS _m").format(
            self._selected(sorted(self.written)), self._rows, self._filtered
        )

    def preview(self, cursor: Any, line: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The values of a row of the source, and those that it would have in the destination; None
        where the filter leaves it out. Only temporary tables are written to."""
        self.make(cursor)
        own, before = self.form(merges=True)
        self.stage(cursor, [before.decode() + line])
        columns, made = self.destination.columns, sql.Identifier(self._temporary, "penstock_made")
        names = [name for name in columns if name in self.written]
        # Values become those of the columns as in the destination, without its triggers.
        self._make_temporary(cursor, made, {name: columns[name] for name in names})
        listed = joined_names(names)
        cursor.execute(
            _SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
                made, listed, listed, self.made_rows()
            )
        )
        found = [
            cursor.execute(_SQL("SELECT {} FROM {}").format(joined_names(names), table)).fetchone()
            for table, names in ((self._rows, own), (made, names))
        ]
        values = dict(zip(own, found[0], strict=True))
        if found[1] is None:
            return values, None
        return values, {**self.fixed, **dict(zip(names, found[1], strict=True))}

    def _merge(self, cursor: Any, step: Merge) -> None:
        if step.gone:
            self.stage(cursor, (), step.gone)
            cursor.execute(self._delete(self._keys, _SQL("true")))
        for unsent, lines in step.parts.items():
            self.stage(cursor, lines)
            if self.mapping.has_expressions:
                self._fill(cursor, self._names_of(unsent))
                self._put(cursor)
            else:
                self._update(cursor, unsent)
        if step.whole:
            self._replace(cursor, step.whole)

    def _replace(self, cursor: Any, rows: Sequence[Any]) -> None:
        """Rows that are new, or replace those with their keys."""
        self.stage(cursor, rows)
        self._put(cursor)

    def _move(self, cursor: Any, old: Any, row: Any) -> None:
        form = form_of(row)
        unsent = form.unsent(row)
        self.stage(cursor, [form.nulled(row)], keys=[old])
        if not self.mapping.has_expressions:
            self._update(cursor, unsent, moves=True)
            if cursor.rowcount == 0 and not unsent:  # it was refused, with its old key
                self._put(cursor)
            return
        self._fill(cursor, self._names_of(unsent), moves=True)
        cursor.execute(self._delete(self._keys, _SQL("true")))
        self._put(cursor)

    def _put(self, cursor: Any) -> None:
        """Staged rows are new, or replace those with their keys; those outside the filter go."""
        if self.mapping.filter and self.key:
            outside = _SQL("({}) IS NOT TRUE").format(sql.SQL(self.mapping.filter))
            cursor.execute(self._delete(self._rows, outside))
        self._insert(cursor, self._conflict)

    def _insert(self, cursor: Any, conflict: sql.Composable = _NOTHING) -> None:
        """Adds the staged rows; `conflict`: what becomes of those whose keys are there."""
        written = sorted(self.written)
        values = [*map(literal, self.fixed.values()), *map(self._value, written)]
        cursor.execute(
            _SQL("INSERT INTO {} ({}) {} SELECT {} FROM {} WHERE {} {}").format(
                self.target, joined_names([*self.fixed, *written]), self._overriding,
                _COMMA.join(values), self._rows, self._filtered, conflict,
            )
        )  # fmt: skip

    @property
    def _conflict(self) -> sql.Composable:
        """What becomes of a new row whose key is there, if rows have a key."""
        rest = self.written - {*self.key} - self.destination.identity
        sets = [_SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest]
        then = _SQL("DO UPDATE SET {}").format(_COMMA.join(sets)) if sets else _SQL("DO NOTHING")
        conflict = _SQL("ON CONFLICT ({}) {}") if self.key else _NOTHING
        return conflict.format(joined_names(self.unique), then)

    @property
    def _filtered(self) -> sql.Composable:
        condition = self.mapping.filter
        return _SQL("({})").format(sql.SQL(condition)) if condition else _SQL("true")

    def _selected(self, names: Iterable[str]) -> sql.Composable:
        """The values of columns of the destination, over a staged row."""
        return _COMMA.join(_SQL("{} AS {}").format(self._value(name), sql.Identifier(name))
                           for name in names)  # fmt: skip

    def _value(self, name: str) -> sql.Composable:
        if name in self.mapping.own:
            return literal(self.mapping.own[name])
        computed = self.mapping.computed.get(name)
        return sql.Identifier(name) if computed is None else _SQL("({})").format(sql.SQL(computed))

    def _update(self, cursor: Any, unsent: Sequence[int], *, moves: bool = False) -> None:
        """Rows get the values that were sent; with `moves`, by their old keys."""
        names, gone = self.relation.names, {self.relation.names[number] for number in unsent}
        sent = [
            name for name in names
            if name in self.written and name not in gone and (moves or name not in self.key)
        ]  # fmt: skip
        sent = [*self._renewed(cursor, sent, moves=moves)]
        if not sent:
            return
        sets = [_SQL("{0} = _s.{0}").format(sql.Identifier(name)) for name in sent]
        key = self._selected(self.unique)
        values = [joined_names(sent)] if moves else [joined_names(sent), key]
        tables = [self._fenced(_COMMA.join(values), self._rows, "_s")]
        if moves:
            tables.append(self._fenced(key, self._keys, "_k"))
        statement = _SQL("UPDATE {} AS _t SET {} FROM {} WHERE {}").format(
            self.target, _COMMA.join(sets), _COMMA.join(tables),
            same(self.unique, "_t", "_k" if moves else "_s"),
        )  # fmt: skip
        cursor.execute(statement)

    def _renewed(self, cursor: Any, names: Sequence[str], *, moves: bool = False) -> Sequence[str]:
        """Writes rows anew that get another value where no UPDATE may set one; what is left of the
        columns, which an UPDATE sets."""
        return names

    def _fenced(self, values: sql.Composable, table: sql.Identifier, name: str) -> sql.Composable:
        return _SQL("(SELECT {} FROM {}{}) AS {}").format(
            values, table, self._fence, sql.Identifier(name)
        )

    def _fill(self, cursor: Any, unsent: Sequence[str], *, moves: bool = False) -> None:
        """Staged rows get the values that were not sent from the destination, as expressions may
        need them. Those that the destination does not have stay out, where the filter says so;
        raises UnsentValue for one that would enter."""
        self.refuse_unsent(unsent)
        kept = [(name, self.kept[name]) for name in unsent if name in self.kept]
        # By the key that the destination's row has now.
        staged, key = self._keys if moves else self._rows, self._selected(self.unique)
        place = _SQL("{}" if moves else "{}, {} AS _place").format(key, sql.Identifier(self._place))
        found = _SQL("{}, {} AS _t WHERE {}").format(
            self._fenced(place, staged, "_k"), self.target, same(self.unique, "_t", "_k")
        )
        mine = _SQL("" if moves else " AND _s.{} = _k._place").format(sql.Identifier(self._place))
        sets = [
            _SQL("{} = _t.{}").format(sql.Identifier(name), sql.Identifier(own))
            for name, own in kept
        ]
        if sets:
            cursor.execute(
                _SQL("UPDATE {} AS _s SET {} FROM {}{}").format(
                    self._rows, _COMMA.join(sets), found, mine
                )
            )
        absent = _SQL("NOT EXISTS (SELECT 1 FROM {}{})").format(found, mine)
        condition = self.mapping.filter
        used = {name for name in self.relation.names if mentions(condition, name)}
        if used <= set(unsent):  # what decides has not changed: they were outside, and are
            cursor.execute(_SQL("DELETE FROM {} AS _s WHERE {}").format(self._rows, absent))
            return
        # A value that nobody knows may decide; else those are refused that the filter lets in.
        enters = _SQL("true") if used & set(unsent) else sql.SQL(condition)
        query = _SQL("SELECT EXISTS (SELECT 1 FROM {} AS _s WHERE ({}) AND {})")
        if cursor.execute(query.format(self._rows, enters, absent)).fetchone()[0]:
            raise UnsentValue(
                "a row enters the target, and lacks a value", "tables", hint=SENDS_ALL
            )

    def _recount(self, cursor: Any, counts: Mapping[Any, int]) -> None:
        if fewer := [line for line, count in counts.items() for _ in range(-count)]:
            self.stage(cursor, fewer)
            self._remove(cursor)
        if more := [line for line, count in counts.items() for _ in range(count)]:
            if self.takes_lines:
                self.copy(cursor, more)
            else:
                self._replace(cursor, more)

    @property
    def _mine(self) -> sql.Composable:
        return _SQL("").join(
            _SQL(" AND _t.{} = {}").format(sql.Identifier(name), literal(sid))
            for name, sid in self.mapping.own.items()
        )


class UnsentValue(Rejected):
    """A change of a row lacks a value that the source did not send, and that is needed."""


SENDS_ALL = "ALTER TABLE ... REPLICA IDENTITY FULL at the source sends all values"


def mentions(text: str, name: str) -> bool:
    """Whether SQL may use a column: its name is in it."""
    return re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text, re.IGNORECASE) is not None


def _written(
    relation: SourceRelation, destination: Destination, mapping: RowMapping
) -> frozenset[str]:
    """The columns of the destination that are written, besides that for the source's name."""
    if mapping.computed:
        return frozenset(mapping.computed)
    names = relation.names if mapping.columns is None else mapping.columns
    both = destination.columns.keys() & set(relation.names) & set(names)
    return frozenset(both - destination.generated - mapping.own.keys())


def _target_key(
    relation: SourceRelation, destination: Destination, mapping: RowMapping
) -> tuple[str, ...]:
    """The columns by which a row of the destination is found, besides the source's name."""
    if mapping.computed and relation.key:
        return tuple(sorted(destination.primary - mapping.own.keys()))
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


def joined_names(names: Iterable[str]) -> sql.Composable:
    return _COMMA.join(map(sql.Identifier, names))


def kinds_listed(kinds: Mapping[str, str]) -> sql.Composable:
    """Columns with their types, as CREATE TABLE has them."""
    return _COMMA.join(
        _SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in kinds.items()
    )


def same(names: Iterable[str], left: str, right: str) -> sql.Composable:
    """Whether two rows have the same values in these columns."""
    return sql.SQL(" AND ").join(
        _SQL("{}.{} = {}.{}").format(
            sql.Identifier(left), sql.Identifier(name), sql.Identifier(right), sql.Identifier(name)
        )
        for name in names
    )


def literal(text: str) -> sql.SQL:
    """A text as any database reads it."""
    return _SQL("'{}'".format(text.replace("'", "''")))
