"""Lines of a source's table -> rows of a table in PostgreSQL, through temporary tables.

Statements are made once for each version of a relation, and cost what the changes are, not what the
table is: the session must not plan hash or merge joins (see `SESSION`). MERGE reads the whole
target; an executemany costs five times as much as COPY.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from psycopg import sql

from penstock.tables.fold import Merge, form_of
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.staged import (
    MADE,
    OWN_SID,
    SENDS_ALL,
    SID,
    Destination,
    RowMapping,
    StagedRows,
    UnsentValue,
    escaped,
    mentions,
    prefix,
)

# Of a session that applies steps: keys are looked up by the target's index.
SESSION = {"enable_hashjoin": "off", "enable_mergejoin": "off"}
_LINES = 20_000  # that are sent at once

_TABLE = """
SELECT pg_catalog.obj_description(oid, 'pg_class') FROM pg_catalog.pg_class
WHERE oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
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


def find_destination(cursor: Any, schema: str, table: str) -> Destination | None:
    """The table as it is now; None if there is none. Raises psycopg's errors."""
    name = sql.Identifier(schema, table).as_string(None)
    found = cursor.execute(_TABLE, [name]).fetchone()
    if found is None:
        return None
    rows = cursor.execute(_COLUMNS, [name]).fetchall()
    unique = cursor.execute(_UNIQUE, [name]).fetchall()
    return Destination(
        schema=schema,
        table=table,
        columns={column: kind for column, kind, *_ in rows},
        generated=frozenset(column for column, _, is_generated, _ in rows if is_generated),
        required=frozenset(column for column, *_, is_required in rows if is_required),
        primary=frozenset().union(*(columns for columns, is_primary in unique if is_primary)),
        keys=frozenset(frozenset(columns) for columns, _ in unique),
        is_made=found[0] == MADE,
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


class StagedTable(StagedRows):
    """See `StagedRows`. Methods raise psycopg's errors."""

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int
    ) -> None:
        super().__init__(relation, destination, mapping, number)
        self.target = sql.Identifier(destination.schema, destination.table)
        self._rows, self._keys = sql.Identifier(self.rows), sql.Identifier(self.keys)

    def make(self, cursor: Any) -> None:
        """See `StagedRows`."""
        kinds = self._kinds(cursor)
        make_temporary(cursor, self._rows, kinds)
        make_temporary(cursor, self._keys, {name: kinds[name] for name in self._key_names})

    def copy(self, cursor: Any, lines: Sequence[Any]) -> None:
        """See `StagedRows`."""
        names = [*([] if self.mapping.sid is None else [SID]), *self.relation.names]
        own = [] if self.mapping.sid is None else [escaped(self.mapping.sid)]
        form = f"{prefix(own, self.relation.names)}%s\n"
        copy_lines(cursor, self.target, names, form, lines)

    def load(self, cursor: Any, pieces: Iterable[bytes], *, merges: bool) -> int:
        """Adds rows of the source: where it `merges`, instead of those with their keys, or without
        a key of as many that equal them. Returns how many there were."""
        if not merges and not self.mapping.has_expressions:
            columns, _ = self.form(merges=False)
            return copy_pieces(cursor, self.target, [*self.fixed, *columns], pieces)
        cursor.execute(_SQL("TRUNCATE {}").format(self._rows))
        count = copy_pieces(cursor, self._rows, self.relation.names, pieces)
        if merges:
            if not self.key:
                self._remove(cursor)
            self._put(cursor)
            return count
        values = map(sql.Literal, self.fixed.values())
        written = sorted(self.written)
        cursor.execute(
            _SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} {}").format(
                self.target, joined_names([*self.fixed, *written]),
                _COMMA.join([*values, *map(self._value, written)]), self._rows, self._filtered,
            )
        )  # fmt: skip
        return count

    def has_rows(self, cursor: Any) -> bool:
        """Whether there are rows: of the source, where there are several."""
        query = _SQL("SELECT EXISTS (SELECT FROM {} AS _t WHERE true{})")
        found = cursor.execute(query.format(self.target, self._mine)).fetchone()
        return bool(found[0])

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
        if self.mapping.has_expressions:
            name = sql.Literal(self.mapping.source).as_string(cursor)
            kinds[OWN_SID.name] = f"{OWN_SID.type} DEFAULT {name}"
        return kinds

    def clear(self, cursor: Any) -> None:
        """See `StagedRows`."""
        if self.mapping.sid is None:
            cursor.execute(_SQL("TRUNCATE {}").format(self.target))
        else:
            cursor.execute(
                _SQL("DELETE FROM {} AS _t WHERE true{}").format(self.target, self._mine)
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

    def _move(self, cursor: Any, old: Any, row: Any) -> None:
        form = form_of(row)
        unsent = form.unsent(row)
        self.stage(cursor, [form.nulled(row)], keys=[old])
        if not self.mapping.has_expressions:
            cursor.execute(self._update(unsent, moves=True))
            return
        self._fill(cursor, self._names_of(unsent), moves=True)
        cursor.execute(self._delete(self._keys, _SQL("true")))
        self._put(cursor)

    def stage(self, cursor: Any, rows: Iterable[Any], keys: Sequence[Any] = ()) -> None:
        """See `StagedRows`."""
        # Not DELETE: rows that are gone would be read again by each statement.
        cursor.execute(_SQL("TRUNCATE {}, {}").format(self._rows, self._keys))
        copy_lines(cursor, self._rows, self.relation.names, "%s\n", rows)
        if keys:
            copy_lines(cursor, self._keys, self._key_names, "%s\n", keys)

    def _put(self, cursor: Any) -> None:
        """The staged rows are new, or replace those with their keys; those that the filter leaves
        out go."""
        if self.mapping.filter and self.key:
            outside = _SQL("({}) IS NOT TRUE").format(sql.SQL(self.mapping.filter))
            cursor.execute(self._delete(self._rows, outside))
        names = [*self.written, *([] if self.mapping.sid is None else [SID])]
        rest = [name for name in self.written if name not in self.key]
        sets = [_SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest]
        then = _SQL("DO UPDATE SET {}").format(_COMMA.join(sets)) if sets else _SQL("DO NOTHING")
        conflict = _SQL("ON CONFLICT ({}) {}") if self.key else _SQL("")
        cursor.execute(
            _SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} {} {}").format(
                self.target, joined_names(names), self._selected(names), self._rows,
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
            self.target, self._selected(self.unique), staged, condition,
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
            self.target, _COMMA.join(sets), _COMMA.join(tables),
            same(self.unique, "_t", "_k" if moves else "_s"),
        )  # fmt: skip

    def _fill(self, cursor: Any, unsent: Sequence[str], *, moves: bool = False) -> None:
        """Staged rows get the values that were not sent from the destination, as expressions may
        need them. Those that the destination does not have stay out, where the filter says so;
        raises UnsentValue for one that would enter."""
        self.refuse_unsent(unsent)
        kept = [(name, self.kept[name]) for name in unsent if name in self.kept]
        # By the key that the destination's row has now.
        staged, place = (self._keys, "") if moves else (self._rows, ", ctid AS _place")
        found = _SQL("(SELECT {}{} FROM {} OFFSET 0) AS _k, {} AS _t WHERE {}").format(
            self._selected(self.unique), _SQL(place), staged, self.target,
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
        used = {name for name in self.relation.names if mentions(condition, name)}
        if used <= set(unsent):  # what decides has not changed: they were outside, and are
            cursor.execute(_SQL("DELETE FROM {} AS _s WHERE {}").format(self._rows, absent))
            return
        # A value that nobody knows may decide; else those are refused that the filter lets in.
        enters = _SQL("true") if used & set(unsent) else sql.SQL(condition)
        query = _SQL("SELECT EXISTS (SELECT FROM {} AS _s WHERE ({}) AND {})")
        if cursor.execute(query.format(self._rows, enters, absent)).fetchone()[0]:
            raise UnsentValue("a row enters the target, and lacks a value", hint=SENDS_ALL)

    def _recount(self, cursor: Any, counts: Mapping[Any, int]) -> None:
        fewer = [line for line, count in counts.items() for _ in range(-count)]
        if fewer:
            self.stage(cursor, fewer)
            self._remove(cursor)
        if more := [line for line, count in counts.items() for _ in range(count)]:
            if self.takes_lines:
                self.copy(cursor, more)
            else:
                self.stage(cursor, more)
                self._put(cursor)

    def _remove(self, cursor: Any) -> None:
        """For each staged row one row goes that equals it, as text: some types have no equality.
        One scan of the destination, whatever the number of rows."""
        row = _SQL("ROW({})::text").format(self._selected_plain())
        own = _COMMA.join(map(sql.Identifier, sorted(self.written)))
        delete = _SQL(
            "DELETE FROM {0} AS _t USING ("
            "SELECT _o.place, _o.part FROM (SELECT ctid AS place, tableoid AS part, ROW({1})::text"
            " AS line, row_number() OVER (PARTITION BY ROW({1})::text) AS number"
            " FROM {0} AS _t WHERE true{2}) AS _o"
            " JOIN (SELECT {3} AS line, count(*) AS most FROM {4} {5} GROUP BY 1) AS _s"
            " ON _o.line = _s.line AND _o.number <= _s.most"
            ") AS _d WHERE _t.ctid = _d.place AND _t.tableoid = _d.part"
        ).format(self.target, own, self._mine, row, self._rows, self._filtered)
        cursor.execute("SET LOCAL enable_hashjoin = on")
        cursor.execute(delete)
        cursor.execute("SET LOCAL enable_hashjoin = off")

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


_SQL, _COMMA = sql.SQL, sql.SQL(", ")
# OFFSET keeps the planner from seeing that `sid` is a constant: by old statistics few rows have it,
# and all of the source's rows would be read.
_SELECTED = _SQL("(SELECT {} FROM {} OFFSET 0) AS {}")


def make_temporary(cursor: Any, table: sql.Identifier, columns: Mapping[str, str]) -> None:
    """A table of the session, which a commit empties, with these columns and their types."""
    parts = [_SQL("{} {}").format(sql.Identifier(name), sql.SQL(columns[name])) for name in columns]
    cursor.execute(_SQL("DROP TABLE IF EXISTS pg_temp.{}").format(table))
    cursor.execute(
        _SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(
            table, _COMMA.join(parts)
        )
    )


def copy_lines(
    cursor: Any, table: sql.Identifier, names: Sequence[str], form: str, rows: Iterable[Any]
) -> None:
    """Copies rows: tuples of values, or lines, each in the form, whose `%s` is the line."""
    before, _, after = form.partition("%s")
    rest = iter(rows)
    with _copy(cursor, table, names) as copy:
        while some := list(islice(rest, _LINES)):
            if isinstance(some[0], str):
                copy.write((before + (after + before).join(some) + after).encode())
            else:
                for row in some:
                    copy.write_row(row)


def copy_pieces(
    cursor: Any, table: sql.Identifier, names: Sequence[str], pieces: Iterable[bytes]
) -> int:
    """Copies lines; returns how many there were."""
    with _copy(cursor, table, names) as copy:
        for piece in pieces:
            copy.write(piece)
    return int(cursor.rowcount)


def _copy(cursor: Any, table: sql.Identifier, names: Sequence[str]) -> Any:
    statement = _SQL("COPY {} ({}) FROM STDIN").format(table, joined_names(names))
    if not names:  # COPY of no columns reads an empty line for each row
        statement = _SQL("COPY {} FROM STDIN").format(table)
    return cursor.copy(statement)


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
