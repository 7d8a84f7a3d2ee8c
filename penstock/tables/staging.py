"""Lines of a source's table -> rows of a table in PostgreSQL, through temporary tables.

Statements are made once for each version of a relation, and cost what the changes are, not what the
table is: the session must not plan hash or merge joins (see `SESSION`). MERGE reads the whole
target; an executemany costs five times as much as COPY.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from psycopg import sql

from penstock.model.errors import Rejected
from penstock.tables.lines import (
    NULL,
    UNSENT,
    Clear,
    LineStep,
    Merge,
    Move,
    Recount,
    RelationColumn,
    SourceRelation,
)

# Of a session that applies steps: keys are looked up by the target's index.
SESSION = {"enable_hashjoin": "off", "enable_mergejoin": "off"}
SID = "sid"
_LINES = 20_000  # that are sent at once

_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated <> ''
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Those that ON CONFLICT may name.
_UNIQUE = """
SELECT ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
             ORDER BY a.attname), i.indisprimary
FROM pg_catalog.pg_index i
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A table of the target's database, as it is: the types of its `columns`, those that are
    `generated`, its `primary` key, and the sets of columns that are unique (`keys`)."""

    schema: str
    table: str
    columns: Mapping[str, str]
    generated: frozenset[str] = frozenset()
    primary: frozenset[str] = frozenset()
    keys: frozenset[frozenset[str]] = frozenset()

    @property
    def name(self) -> sql.Identifier:
        """Its name as SQL."""
        return sql.Identifier(self.schema, self.table)


def find_destination(connection: Any, schema: str, table: str) -> Destination | None:
    """The table as it is now; None if there is none. Raises psycopg's errors."""
    name = sql.Identifier(schema, table).as_string(None)
    rows = connection.execute(_COLUMNS, [name]).fetchall()
    if not rows and connection.execute("SELECT to_regclass(%s)", [name]).fetchone()[0] is None:
        return None
    unique = connection.execute(_UNIQUE, [name]).fetchall()
    return Destination(
        schema=schema,
        table=table,
        columns={column: kind for column, kind, _ in rows},
        generated=frozenset(column for column, _, is_generated in rows if is_generated),
        primary=frozenset().union(*(columns for columns, is_primary in unique if is_primary)),
        keys=frozenset(frozenset(columns) for columns, _ in unique),
    )


def type_at(cursor: Any, column: RelationColumn) -> str:
    """The type of a source's column in the destination's database; text where that has none of
    its name."""
    statement = (
        "SELECT CASE WHEN %(oid)s BETWEEN 1 AND 9999"
        " THEN pg_catalog.format_type(%(oid)s::oid, %(modifier)s)"
        " WHEN pg_catalog.to_regtype(%(type)s) IS NOT NULL THEN %(type)s END"
    )
    return cursor.execute(statement, column._asdict()).fetchone()[0] or "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMapping:
    """How rows of a relation become those of a destination. `computed`: SQL for columns of the
    destination, over the source's; where there are some, only these are written. `filter`: which
    rows are in the destination. `sid`: what its column for the source's name has, if there is one.
    `columns`: those that are written, if not all that both have."""

    sid: str | None = None
    columns: Sequence[str] | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    filter: str = ""

    @property
    def has_expressions(self) -> bool:
        """Whether rows go through SQL of the user, over the columns `META` as well."""
        return bool(self.computed or self.filter)


# Columns that lines have before the source's, where there are expressions.
META = (RelationColumn("_operation", "text"), RelationColumn("_committed_at", "timestamptz"))


def widened(relation: SourceRelation) -> SourceRelation:
    """The relation with the columns `META` before its own."""
    return replace(relation, columns=(*META, *relation.columns))


class StagedTable:
    """Applies steps of lines to one destination, in the transaction of a cursor. Methods raise
    psycopg's errors. `number` tells the temporary tables of a session apart."""

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int
    ) -> None:
        self.destination, self.mapping = destination, mapping
        self.relation = widened(relation) if mapping.has_expressions else relation
        self.written = _written(relation, destination, mapping)
        self.key = _target_key(relation, destination, mapping)
        self._rows = sql.Identifier(f"penstock_rows_{number}")
        self._keys = sql.Identifier(f"penstock_keys_{number}")

    @property
    def moves(self) -> bool:
        """Whether the destination has columns that nothing fills: rows keep them."""
        return bool(self.destination.columns.keys() - self.written - self.destination.generated)

    @property
    def unique(self) -> Sequence[str]:
        """The columns of which the destination has a unique index, if rows have a key."""
        return [*self.key, *([] if self.mapping.sid is None else [SID])] if self.key else []

    def apply(self, cursor: Any, steps: Sequence[LineStep]) -> None:
        """Applies the steps, in their order."""
        for step in steps:
            match step:
                case Clear():
                    self.clear(cursor)
                case Merge():
                    self._merge(cursor, step)
                case Move(old, line):
                    self._move(cursor, old, line)
                case Recount(counts):
                    self._recount(cursor, counts)

    def make(self, cursor: Any) -> None:
        """Makes the temporary tables, which last as long as the session."""
        kinds = self._kinds(cursor)
        make_temporary(cursor, self._rows, kinds)
        make_temporary(cursor, self._keys, {name: kinds[name] for name in self._key_names})

    def copy(self, cursor: Any, lines: Sequence[str]) -> None:
        """New rows, straight into the destination; only where it `takes_lines`."""
        names = [*([] if self.mapping.sid is None else [SID]), *self.relation.names]
        before = "" if self.mapping.sid is None else f"{escaped(self.mapping.sid)}\t"
        copy_lines(cursor, self.destination.name, names, f"{before}%s\n", lines)

    @property
    def fixed(self) -> Mapping[str, str]:
        """Columns of the destination with one value in all rows of the source that are loaded."""
        return {} if self.mapping.sid is None else {SID: self.mapping.sid}

    def form(self, *, merges: bool) -> tuple[Sequence[str], bytes]:
        """What lines are that `load` takes: these columns of the source, after a prefix."""
        if self.mapping.has_expressions:
            return self.relation.names[len(META) :], f"READ\t{datetime.now(UTC)}\t".encode()
        if merges:
            return self.relation.names, b""
        columns = [name for name in self.relation.names if name in self.written]
        return columns, "".join(f"{escaped(value)}\t" for value in self.fixed.values()).encode()

    def load(self, cursor: Any, pieces: Iterable[bytes], *, merges: bool) -> int:
        """Adds rows of the source: where it `merges`, instead of those with their keys. Returns how
        many there were."""
        if not merges and not self.mapping.has_expressions:
            columns, _ = self.form(merges=False)
            return copy_pieces(cursor, self.destination.name, [*self.fixed, *columns], pieces)
        count = copy_pieces(cursor, self._rows, self.relation.names, pieces)
        if merges:
            self._put(cursor)
            return count
        values = map(sql.Literal, self.fixed.values())
        written = sorted(self.written)
        cursor.execute(
            _SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} {}").format(
                self.destination.name, joined_names([*self.fixed, *written]),
                _COMMA.join([*values, *map(self._value, written)]), self._rows, self._filtered,
            )
        )  # fmt: skip
        return count

    def has_rows(self, cursor: Any) -> bool:
        """Whether there are rows: of the source, where there are several."""
        query = _SQL("SELECT EXISTS (SELECT FROM {} AS _t WHERE true{})")
        found = cursor.execute(query.format(self.destination.name, self._mine)).fetchone()
        return bool(found[0])

    @property
    def takes_lines(self) -> bool:
        """Whether lines are rows of the destination as they are."""
        return not self.mapping.has_expressions and self.written >= {*self.relation.names}

    def made_rows(self) -> sql.Composable:
        """The staged rows as they are to be in the destination, for FROM."""
        return _SQL("(SELECT {} FROM {} {}) AS _m").format(
            self._selected(sorted(self.written)), self._rows, self._filtered
        )

    def _kinds(self, cursor: Any) -> dict[str, str]:
        """The type of each staged column: the destination's; under expressions the source's, where
        this database has it; else text."""
        kinds, own = {}, self.destination.columns
        for column in self.relation.columns:
            kind = own.get(column.name) if column.name in self.written else None
            if self.mapping.has_expressions:
                kind = type_at(cursor, column)
            kinds[column.name] = kind or "text"
        return kinds

    def clear(self, cursor: Any) -> None:
        """All rows go: those of the source, where there are several."""
        if self.mapping.sid is None:
            cursor.execute(_SQL("TRUNCATE {}").format(self.destination.name))
        else:
            cursor.execute(
                _SQL("DELETE FROM {} AS _t WHERE true{}").format(self.destination.name, self._mine)
            )

    def _merge(self, cursor: Any, step: Merge) -> None:
        if step.gone:
            copy_lines(cursor, self._keys, self._key_names, "%s\n", step.gone)
            cursor.execute(self._delete(self._keys, _SQL("true")))
            cursor.execute(_SQL("TRUNCATE {}").format(self._keys))
        for unsent, lines in step.parts.items():
            self.stage(cursor, lines)
            if self.mapping.has_expressions:
                self._fill(cursor, self._names_of(unsent))
                self._put(cursor)
            else:
                cursor.execute(self._update(unsent))
        if step.whole:
            self.stage(cursor, step.whole)
            self._put(cursor)

    def _move(self, cursor: Any, old: str, line: str) -> None:
        unsent = unsent_of(line)
        cells = (NULL if cell == UNSENT else cell for cell in line.split("\t"))
        self.stage(cursor, ["\t".join(cells)], keys=[old])
        if not self.mapping.has_expressions:
            cursor.execute(self._update(unsent, moves=True))
            return
        self._fill(cursor, self._names_of(unsent), moves=True)
        cursor.execute(self._delete(self._keys, _SQL("true")))
        self._put(cursor)

    def stage(self, cursor: Any, lines: Iterable[str], keys: Sequence[str] = ()) -> None:
        """The staged rows are those of these lines."""
        # Not DELETE: rows that are gone would be read again by each statement.
        cursor.execute(_SQL("TRUNCATE {}, {}").format(self._rows, self._keys))
        copy_lines(cursor, self._rows, self.relation.names, "%s\n", lines)
        if keys:
            copy_lines(cursor, self._keys, self._key_names, "%s\n", keys)

    def _put(self, cursor: Any) -> None:
        """The staged rows are new, or replace those with their keys; those that the filter leaves
        out go."""
        if self.mapping.filter:
            outside = _SQL("({}) IS NOT TRUE").format(sql.SQL(self.mapping.filter))
            cursor.execute(self._delete(self._rows, outside))
        names = [*self.written, *([] if self.mapping.sid is None else [SID])]
        rest = [name for name in self.written if name not in self.key]
        sets = [_SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest]
        then = _SQL("DO UPDATE SET {}").format(_COMMA.join(sets)) if sets else _SQL("DO NOTHING")
        conflict = _SQL("ON CONFLICT ({}) {}") if self.key else _SQL("")
        cursor.execute(
            _SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} {} {}").format(
                self.destination.name, joined_names(names), self._selected(names), self._rows,
                self._filtered, conflict.format(joined_names(self.unique), then),
            )
        )  # fmt: skip

    @property
    def _filtered(self) -> sql.Composable:
        condition = self.mapping.filter
        return _SQL("WHERE ({})").format(sql.SQL(condition)) if condition else _SQL("")

    def _selected(self, names: Iterable[str]) -> sql.Composable:
        """The values of columns of the destination, over a staged row."""
        return _COMMA.join(_SQL("{} AS {}").format(self._value(name), sql.Identifier(name))
                           for name in names)  # fmt: skip

    def _value(self, name: str) -> sql.Composable:
        if name == SID and self.mapping.sid is not None:
            return sql.Literal(self.mapping.sid)
        computed = self.mapping.computed.get(name)
        return sql.Identifier(name) if computed is None else _SQL("({})").format(sql.SQL(computed))

    def _delete(self, staged: sql.Identifier, condition: sql.Composable) -> sql.Composable:
        return _SQL(
            "DELETE FROM {} AS _t USING (SELECT {} FROM {} WHERE {} OFFSET 0) AS _k WHERE {}"
        ).format(
            self.destination.name, self._selected(self.unique), staged, condition,
            same(self.unique, "_t", "_k"),
        )  # fmt: skip

    def _update(self, unsent: Sequence[int], *, moves: bool = False) -> sql.Composable:
        """Rows get the values that were sent; with `moves`, by their old keys."""
        names, gone = self.relation.names, {self.relation.names[number] for number in unsent}
        sent = [
            name for name in names
            if name in self.written and name not in gone and (moves or name not in self.key)
        ]  # fmt: skip
        if not sent:
            return _SQL("SELECT")
        sets = [_SQL("{0} = _s.{0}").format(sql.Identifier(name)) for name in sent]
        key = self._selected(self.unique)
        values = [joined_names(sent)] if moves else [joined_names(sent), key]
        tables = [_SELECTED.format(_COMMA.join(values), self._rows, sql.Identifier("_s"))]
        if moves:
            tables.append(_SELECTED.format(key, self._keys, sql.Identifier("_k")))
        return _SQL("UPDATE {} AS _t SET {} FROM {} WHERE {}").format(
            self.destination.name, _COMMA.join(sets), _COMMA.join(tables),
            same(self.unique, "_t", "_k" if moves else "_s"),
        )  # fmt: skip

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
            if any(_mentions(text, name) for text in texts):
                raise UnsentValue(f"`set` or `filter` needs the column {name}", hint=_SENDS_ALL)

    def _names_of(self, numbers: Iterable[int]) -> list[str]:
        return [self.relation.names[number] for number in numbers]

    def _fill(self, cursor: Any, unsent: Sequence[str], *, moves: bool = False) -> None:
        """Staged rows get the values that were not sent from the destination, as expressions may
        need them. Those that the destination does not have stay out, where the filter says so;
        raises UnsentValue for one that would enter."""
        self.refuse_unsent(unsent)
        kept = [(name, self.kept[name]) for name in unsent if name in self.kept]
        # By the key that the destination's row has now.
        staged, place = (self._keys, "") if moves else (self._rows, ", ctid AS _place")
        found = _SQL("(SELECT {}{} FROM {} OFFSET 0) AS _k, {} AS _t WHERE {}").format(
            self._selected(self.unique), _SQL(place), staged, self.destination.name,
            same(self.unique, "_t", "_k"),
        )  # fmt: skip
        mine = _SQL("" if moves else " AND _s.ctid = _k._place")
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
        absent = _SQL("NOT EXISTS (SELECT FROM {}{})").format(found, mine)
        condition = self.mapping.filter
        used = {name for name in self.relation.names if _mentions(condition, name)}
        if used <= set(unsent):  # what decides has not changed: they were outside, and are
            cursor.execute(_SQL("DELETE FROM {} AS _s WHERE {}").format(self._rows, absent))
            return
        # A value that nobody knows may decide; else those are refused that the filter lets in.
        enters = _SQL("true") if used & set(unsent) else sql.SQL(condition)
        query = _SQL("SELECT EXISTS (SELECT FROM {} AS _s WHERE ({}) AND {})")
        if cursor.execute(query.format(self._rows, enters, absent)).fetchone()[0]:
            raise UnsentValue("a row enters the target, and lacks a value", hint=_SENDS_ALL)

    def _recount(self, cursor: Any, counts: Mapping[str, int]) -> None:
        fewer = [line for line, count in counts.items() for _ in range(-count)]
        if fewer:
            self.stage(cursor, fewer)
            # One scan of the destination, whatever the number of rows.
            cursor.execute("SET LOCAL enable_hashjoin = on")
            cursor.execute(self._remove())
            cursor.execute("SET LOCAL enable_hashjoin = off")
        if more := [line for line, count in counts.items() for _ in range(count)]:
            if self.takes_lines:
                self.copy(cursor, more)
            else:
                self.stage(cursor, more)
                self._put(cursor)

    def _remove(self) -> sql.Composable:
        """For each staged row one row goes that equals it, as text: some types have no equality."""
        row = _SQL("ROW({})::text").format(self._selected_plain())
        own = _COMMA.join(map(sql.Identifier, sorted(self.written)))
        return _SQL(
            "DELETE FROM {0} AS _t USING ("
            "SELECT _o.place, _o.part FROM (SELECT ctid AS place, tableoid AS part, ROW({1})::text"
            " AS line, row_number() OVER (PARTITION BY ROW({1})::text) AS number"
            " FROM {0} AS _t WHERE true{2}) AS _o"
            " JOIN (SELECT {3} AS line, count(*) AS most FROM {4} {5} GROUP BY 1) AS _s"
            " ON _o.line = _s.line AND _o.number <= _s.most"
            ") AS _d WHERE _t.ctid = _d.place AND _t.tableoid = _d.part"
        ).format(self.destination.name, own, self._mine, row, self._rows, self._filtered)

    def _selected_plain(self) -> sql.Composable:
        kinds = self.destination.columns
        return _COMMA.join(
            _SQL("({})::{}").format(self._value(name), sql.SQL(kinds[name]))
            for name in sorted(self.written)
        )

    @property
    def _mine(self) -> sql.Composable:
        sid = self.mapping.sid
        return _SQL("") if sid is None else _SQL(" AND _t.sid = {}").format(sql.Literal(sid))

    @property
    def _key_names(self) -> list[str]:
        return [column.name for column in self.relation.columns if column.is_key]


class UnsentValue(Rejected):
    """A change of a row lacks a value that the source did not send, and that is needed."""


_SENDS_ALL = "ALTER TABLE ... REPLICA IDENTITY FULL at the source sends all values"


def _mentions(text: str, name: str) -> bool:
    """Whether SQL may use a column: its name is in it."""
    return re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text, re.IGNORECASE) is not None


_SQL, _COMMA = sql.SQL, sql.SQL(", ")
# OFFSET keeps the planner from seeing that `sid` is a constant: by old statistics few rows have it,
# and all of the source's rows would be read.
_SELECTED = _SQL("(SELECT {} FROM {} OFFSET 0) AS {}")


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


def make_temporary(cursor: Any, table: sql.Identifier, columns: Mapping[str, str]) -> None:
    """A table of the session, which a commit empties, with these columns and their types."""
    parts = [_SQL("{} {}").format(sql.Identifier(name), sql.SQL(columns[name])) for name in columns]
    cursor.execute(_SQL("DROP TABLE IF EXISTS pg_temp.{}").format(table))
    cursor.execute(
        _SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(
            table, _COMMA.join(parts)
        )
    )


def unsent_of(line: str) -> tuple[int, ...]:
    """Which values a line lacks."""
    return tuple(number for number, cell in enumerate(line.split("\t")) if cell == UNSENT)


def escaped(text: str) -> str:
    """A text as a cell of a line."""
    for character, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(character, written)
    return text


def copy_lines(
    cursor: Any, table: sql.Identifier, names: Sequence[str], form: str, lines: Iterable[str]
) -> None:
    """Copies lines, each in the form, whose `%s` is the line."""
    before, _, after = form.partition("%s")
    rest = iter(lines)
    some = iter(lambda: list(islice(rest, _LINES)), [])
    pieces = ((before + (after + before).join(one) + after).encode() for one in some)
    copy_pieces(cursor, table, names, pieces)


def copy_pieces(
    cursor: Any, table: sql.Identifier, names: Sequence[str], pieces: Iterable[bytes]
) -> int:
    """Copies lines; returns how many there were."""
    statement = _SQL("COPY {} ({}) FROM STDIN").format(table, joined_names(names))
    if not names:  # COPY of no columns reads an empty line for each row
        statement = _SQL("COPY {} FROM STDIN").format(table)
    with cursor.copy(statement) as copy:
        for piece in pieces:
            copy.write(piece)
    return int(cursor.rowcount)


def joined_names(names: Iterable[str]) -> sql.Composable:
    """Names with commas."""
    return _COMMA.join(map(sql.Identifier, names))


def same(names: Iterable[str], left: str, right: str) -> sql.Composable:
    """Whether two rows have the same values in these columns."""
    return sql.SQL(" AND ").join(
        _SQL("{}.{} = {}.{}").format(
            sql.Identifier(left), sql.Identifier(name), sql.Identifier(right), sql.Identifier(name)
        )
        for name in names
    )
