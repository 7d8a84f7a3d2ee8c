"""Lines of a source's table -> rows of a table in PostgreSQL, through temporary tables.

Statements are made once for each version of a relation, and cost what the changes are, not what the
table is: the session must not plan hash or merge joins (see `SESSION`). MERGE reads the whole
target; an executemany costs five times as much as COPY.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from penstock.tables.lines import RelationColumn
from penstock.tables.staged import (
    MADE,
    Destination,
    StagedRows,
    escaped,
    joined_names,
    prefix,
    same,
)

# How long a statement waits for somebody's lock. Without a limit it could wait for ever, and only a
# lag would show it, while all that comes after us waits as well (TRUNCATE takes the whole table).
# After it the commit is tried again, and the status has the reason.
PATIENCE = "1min"
# Of a session that applies steps, whatever the role or the database prefer. Keys are looked up by
# the target's index; nothing limits what takes long; what is acknowledged outlives a crash; and a
# policy that hides rows is an error, as an UPDATE would do nothing.
SESSION = {
    "enable_hashjoin": "off", "enable_mergejoin": "off", "work_mem": "32MB",
    "statement_timeout": "0", "transaction_timeout": "0", "lock_timeout": PATIENCE,
    "idle_in_transaction_session_timeout": "0", "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed", "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off", "synchronous_commit": "on", "row_security": "off",
    "session_replication_role": "origin",
}  # fmt: skip
# How lines are read, whatever the database, the role or the environment prefer.
READS = {
    "client_encoding": "UTF8", "DateStyle": "ISO, YMD", "IntervalStyle": "postgres",
    "TimeZone": "UTC", "bytea_output": "hex", "extra_float_digits": "3", "array_nulls": "on",
    "xmloption": "content", "standard_conforming_strings": "on", "lc_monetary": "C",
    "check_function_bodies": "off",
}  # fmt: skip
_LINES = 20_000  # that are sent at once

_TABLE = """
SELECT pg_catalog.obj_description(oid, 'pg_class'),
       EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE contype = 'f' AND confrelid = c.oid)
FROM pg_catalog.pg_class c WHERE oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
       a.attidentity = 'a', a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Those that ON CONFLICT may name, but for those that are deferrable.
_UNIQUE = """
SELECT ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
             ORDER BY a.attname), i.indisprimary, i.indimmediate
FROM pg_catalog.pg_index i
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
"""


# What types, operators and functions without a schema are, in `set` and `filter` as well.
_PATH = """
SELECT pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ', '"$user", public', (
    SELECT string_agg(DISTINCT pg_catalog.quote_ident(n.nspname), ', ')
    FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    WHERE n.nspname NOT IN ('pg_catalog', 'public'))), false)
"""


def set_session(connection: Any, session: Mapping[str, str] = READS) -> None:
    """Gives a connection these settings, as far as its server knows them; `READS` make texts alike.
    Raises psycopg's errors."""
    # One that is so already may need a right to be set.
    connection.execute(
        "SELECT pg_catalog.set_config(name, value, false)"
        " FROM unnest(%s::text[], %s::text[]) AS s (name, value)"
        " WHERE pg_catalog.current_setting(name, true) <> value",
        [[*session], [*session.values()]],
    )


def set_path(connection: Any) -> None:
    """Has the search path of a server without settings, and of its extensions. Raises psycopg's
    errors."""
    connection.execute(_PATH)


def state_of(error: psycopg.Error) -> str:
    """Its SQLSTATE; "" where no server has answered. What the driver refuses is data."""
    found = "" if isinstance(error, psycopg.OperationalError) else "22000"
    return error.sqlstate or found


def check_deferred(cursor: Any) -> None:
    """Constraints and triggers that wait for the COMMIT speak now, and wait again afterwards: a
    value may still go from row to row in what follows. Raises psycopg's errors."""
    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")


def find_destination(cursor: Any, schema: str, table: str) -> Destination | None:
    """The table as it is now; None if there is none. Raises psycopg's errors."""
    name = sql.Identifier(schema, table).as_string(None)
    if (found := cursor.execute(_TABLE, [name]).fetchone()) is None:
        return None
    rows = cursor.execute(_COLUMNS, [name]).fetchall()
    unique = [(frozenset(names), *rest) for names, *rest in cursor.execute(_UNIQUE, [name])]
    deferrable = frozenset(names for names, _, is_immediate in unique if not is_immediate)
    return Destination(
        schema=schema,
        table=table,
        columns={column: kind for column, kind, *_ in rows},
        generated=frozenset(column for column, _, is_generated, *_ in rows if is_generated),
        identity=frozenset(column for column, *_, is_always, _ in rows if is_always),
        required=frozenset(column for column, *_, is_required in rows if is_required),
        primary=frozenset().union(*(names for names, is_primary, _ in unique if is_primary)),
        # Another index of the same columns would not help: ON CONFLICT takes both, and fails.
        keys=frozenset(names for names, *_ in unique) - deferrable,
        deferrable=deferrable,
        is_made=found[0] == MADE,
        is_referenced=found[1],
    )


def type_at(cursor: Any, column: RelationColumn) -> str:
    """A source column's type in the destination's database; text if that has none so called."""
    statement = (
        "SELECT CASE WHEN %(oid)s BETWEEN 1 AND 9999"
        " THEN pg_catalog.format_type(%(oid)s::oid, %(modifier)s)"
        " WHEN pg_catalog.to_regtype(%(type)s) IS NOT NULL THEN %(type)s END"
    )
    return cursor.execute(statement, column._asdict()).fetchone()[0] or "text"


class StagedTable(StagedRows):
    """See `StagedRows`. Methods raise psycopg's errors."""

    _place, _temporary, _overriding = "ctid", "pg_temp", sql.SQL("OVERRIDING SYSTEM VALUE")
    _made = "CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS"
    # OFFSET keeps the planner from seeing that `sid` is a constant: by old statistics few rows have
    # it, and all of the source's rows would be read.
    _fence = sql.SQL(" OFFSET 0")

    def _type_at(self, cursor: Any, column: RelationColumn) -> str:
        return type_at(cursor, column)

    def copy(self, cursor: Any, lines: Sequence[Any]) -> None:
        names = [*self.mapping.own, *self.relation.names]
        own = [*map(escaped, self.mapping.own.values())]
        copy_lines(cursor, self.target, names, f"{prefix(own, self.relation.names)}%s\n", lines)

    def _copy_pieces(
        self, cursor: Any, table: sql.Identifier, names: Sequence[str], pieces: Iterable[bytes]
    ) -> int:
        with _copy(cursor, table, names) as copy:
            for piece in pieces:
                copy.write(piece)
        return int(cursor.rowcount)

    def clear(self, cursor: Any) -> None:
        if self.mapping.sid is None:
            # Of a table that a foreign key refers to, it is refused, also if nothing runs the key.
            with suppress(psycopg.errors.FeatureNotSupported), cursor.connection.transaction():
                cursor.execute(_SQL("TRUNCATE {}").format(self.target))
                return
        super().clear(cursor)

    def stage(self, cursor: Any, rows: Iterable[Any], keys: Sequence[Any] = ()) -> None:
        # Not DELETE: rows that are gone would be read again by each statement.
        cursor.execute(_SQL("TRUNCATE {}, {}").format(self._rows, self._keys))
        copy_lines(cursor, self._rows, self.relation.names, "%s\n", rows)
        copy_lines(cursor, self._keys, self._key_names, "%s\n", keys)

    def _put(self, cursor: Any) -> None:
        if self.key:
            self._renewed(cursor, [name for name in self.written if name not in self.key])
        super()._put(cursor)

    def _renewed(self, cursor: Any, names: Sequence[str], *, moves: bool = False) -> Sequence[str]:
        """See `StagedRows`. Such a row goes, and comes back with the values that it had: DELETE and
        INSERT, as the other two may have no place for it at once."""
        found = self.destination
        if not (fixed := found.identity.intersection(names)):
            return names
        filled = [each for each in found.columns if each not in found.generated]
        values = [sql.Identifier("_n" if each in names else "_gone", each) for each in filled]
        differs = [_SQL("_t.{0} IS DISTINCT FROM _k.{0}").format(sql.Identifier(each))
                   for each in fixed]  # fmt: skip
        cursor.execute(
            _SQL(
                "WITH _gone AS (DELETE FROM {target} AS _t USING (SELECT {key} FROM {staged}"
                " WHERE {filtered} OFFSET 0) AS _k WHERE {same} AND ({differs}) RETURNING _t.*)"
                " INSERT INTO {target} ({filled}) OVERRIDING SYSTEM VALUE SELECT {values}"
                " FROM _gone JOIN (SELECT {new} FROM {rows} WHERE {filtered}) AS _n ON {joined}"
                " WHERE (SELECT count(*) FROM _gone) >= 0"  # all are gone before one comes
            ).format(
                target=self.target, rows=self._rows, staged=self._keys if moves else self._rows,
                key=self._selected({*self.unique, *([] if moves else fixed)}),
                new=self._selected({*self.unique, *names}), values=_COMMA.join(values),
                filled=joined_names(filled), same=same(self.unique, "_t", "_k"),
                filtered=_SQL("true") if moves else self._filtered,
                differs=_SQL("true") if moves else _SQL(" OR ").join(differs),
                joined=_SQL("true") if moves else same(self.unique, "_gone", "_n"),
            )
        )  # fmt: skip
        return [] if moves else [each for each in names if each not in fixed]

    def _delete(self, staged: sql.Identifier, condition: sql.Composable) -> sql.Composable:
        return _SQL(
            "DELETE FROM {} AS _t USING (SELECT {} FROM {} WHERE {} OFFSET 0) AS _k WHERE {}"
        ).format(
            self.target, self._selected(self.unique), staged, condition,
            same(self.unique, "_t", "_k"),
        )  # fmt: skip

    def _remove(self, cursor: Any) -> None:
        """See `StagedRows`. Rows are compared as text: some types have no equality."""
        row = _SQL("ROW({})::text").format(self._selected_plain())
        own = _COMMA.join(map(sql.Identifier, sorted(self.written)))
        statement = _SQL(
            "DELETE FROM {0} AS _t USING ("
            "SELECT _o.place, _o.part FROM (SELECT ctid AS place, tableoid AS part, ROW({1})::text"
            " AS line, row_number() OVER (PARTITION BY ROW({1})::text) AS number"
            " FROM {0} AS _t WHERE true{2}) AS _o"
            " JOIN (SELECT {3} AS line, count(*) AS most FROM {4} WHERE {5} GROUP BY 1) AS _s"
            " ON _o.line = _s.line AND _o.number <= _s.most"
            ") AS _d WHERE _t.ctid = _d.place AND _t.tableoid = _d.part"
        ).format(self.target, own, self._mine, row, self._rows, self._filtered)
        # One scan of the destination, whatever the number of rows.
        cursor.execute("SET LOCAL enable_hashjoin = on")
        cursor.execute(statement)
        cursor.execute("SET LOCAL enable_hashjoin = off")

    def _selected_plain(self) -> sql.Composable:
        kinds = self.destination.columns
        return _COMMA.join(
            _SQL("({})::{}").format(self._value(name), sql.SQL(kinds[name]))
            for name in sorted(self.written)
        )


_SQL, _COMMA = sql.SQL, sql.SQL(", ")


def copy_lines(
    cursor: Any, table: sql.Identifier, names: Sequence[str], form: str, rows: Iterable[Any]
) -> None:
    """Copies rows: tuples of values, or lines, each in the form, whose `%s` is the line."""
    before, _, after = form.partition("%s")
    rest = iter(rows)
    if not (some := list(islice(rest, _LINES))):
        return
    with _copy(cursor, table, names) as copy:
        while some:
            if isinstance(some[0], str):
                copy.write((before + (after + before).join(some) + after).encode())
            else:
                for row in some:
                    copy.write_row(row)
            some = list(islice(rest, _LINES))


def _copy(cursor: Any, table: sql.Identifier, names: Sequence[str]) -> Any:
    statement = _SQL("COPY {} ({}) FROM STDIN").format(table, joined_names(names))
    if not names:  # COPY of no columns reads an empty line for each row
        statement = _SQL("COPY {} FROM STDIN").format(table)
    return cursor.copy(statement)
