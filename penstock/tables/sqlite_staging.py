"""Rows of a source's table -> rows of a table in SQLite, through temporary tables.

Rows go there many to a statement: an executemany takes twice as long, and JSON that SQLite takes
apart four times. Numbers, booleans and bytes are SQLite's own, all else is text as PostgreSQL
writes it.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import orjson
from psycopg import sql

from penstock.model.errors import Rejected, SettingsError
from penstock.process.closing import closing_on_failure
from penstock.tables.lines import NULL, RelationColumn, SourceRelation
from penstock.tables.staged import (
    Destination,
    RowMapping,
    StagedRows,
    joined_names,
)

# Rows of a statement, and parameters that it may have.
_ROWS, _PARAMETERS = 200, 32_766
_WHOLE = ("smallint", "integer", "bigint", "oid", "boolean")
KINDS = {
    **dict.fromkeys(_WHOLE, "INTEGER"), "real": "REAL", "double precision": "REAL", "bytea": "BLOB",
}  # fmt: skip
# Of types that changes have as a number.
_NAMES = {
    16: "boolean", 17: "bytea", 20: "bigint", 21: "smallint", 23: "integer", 26: "oid", 700: "real",
    701: "double precision",
}  # fmt: skip
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class SqliteCursor(sqlite3.Cursor):
    """Takes statements of psycopg, and lists as JSON."""

    def execute(self, statement: Any, values: Any = ()) -> "SqliteCursor":
        text = statement.as_string(None) if isinstance(statement, sql.Composable) else statement
        if not isinstance(values, dict):
            values = [orjson.dumps(one).decode() if type(one) is list else one for one in values]
        return super().execute(text, values)


class SqliteConnection(sqlite3.Connection):
    """Has what psycopg's have."""

    closed = False  # one that fails stays open
    file: tuple[Path, os.stat_result] | None = None  # as it was opened; none in memory

    def cursor(self, factory: Any = SqliteCursor) -> Any:
        return super().cursor(factory)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that may write; inside of another one a savepoint."""
        inner = self.in_transaction
        if not inner:
            self._verify()
        self.execute("SAVEPOINT penstock" if inner else "BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.in_transaction:  # else SQLite has ended it
                self.execute("ROLLBACK TO penstock" if inner else "ROLLBACK")
                if inner:  # else an outer one would be rolled back to here
                    self.execute("RELEASE penstock")
            raise
        self.execute("RELEASE penstock" if inner else "COMMIT")

    def _verify(self) -> None:
        """What is written to a file that has lost its name is gone."""
        if self.file is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(self.file[0].stat(), self.file[1]):
                return
        error = sqlite3.OperationalError("another file was put in its place")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error


def open_file(path: Path, patience: float, session: Sequence[str]) -> SqliteConnection:
    """Opens the file, which is made if it is missing; statements wait so many seconds for another
    connection's lock. WAL: readers go on while rows are written."""
    connection = sqlite3.connect(
        path, timeout=patience, isolation_level=None, check_same_thread=False,
        detect_types=sqlite3.PARSE_DECLTYPES, factory=SqliteConnection,
    )  # fmt: skip
    with closing_on_failure(connection):
        if path.exists():
            connection.file = path, path.stat()
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA cache_size = -65536", *session):
            connection.execute(statement).fetchall()
    return connection


def open_to_preview(path: Path) -> SqliteConnection:
    """Opens the file for reading alone, or an empty database in its place if it is missing; in a
    transaction, which may have temporary tables."""
    # Where no connection has made the files of the WAL, this one would leave them.
    how = "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"
    name = f"{path.absolute().as_uri()}?{how}" if path.exists() else ":memory:"
    connection = sqlite3.connect(
        name, uri=True, isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES,
        factory=SqliteConnection,
    )  # fmt: skip
    connection.execute("BEGIN")
    return connection


def find_destination(cursor: Any, schema: str, table: str) -> Destination | None:
    """The table as it is now; None if there is none. Raises sqlite3's errors."""
    info = 'SELECT name, type, hidden, "notnull" AND dflt_value IS NULL, pk > 0'
    rows = cursor.execute(f"{info} FROM pragma_table_xinfo(?, ?)", [table, schema]).fetchall()
    if not rows:
        return None
    primary = frozenset(name for name, *_, is_key in rows if is_key)
    unique = cursor.execute(
        'SELECT l.name, i.name FROM pragma_index_list(?, ?) AS l, pragma_index_info(l.name, ?) AS i'
        ' WHERE l."unique" AND NOT l.partial', [table, schema, schema],
    ).fetchall()  # fmt: skip
    keys: dict[str, set[str | None]] = {}
    for index, column in unique:
        keys.setdefault(index, set()).add(column)
    whole = [frozenset(filter(None, names)) for names in keys.values() if None not in names]
    return Destination(
        schema=schema, table=table,
        columns={name: kind for name, kind, *_ in rows},
        generated=frozenset(name for name, _, hidden, *_ in rows if hidden),
        required=frozenset(name for name, *_, is_required, _ in rows if is_required),
        primary=primary, keys=frozenset([*whole, *([primary] if primary else [])]),
    )  # fmt: skip


def kind_of(column: RelationColumn) -> str:
    """The type of a source's column, by SQLite's affinity: text must not become a number."""
    return KINDS.get(_name_of(column), "TEXT")


def _name_of(column: RelationColumn) -> str:
    return _NAMES.get(column.oid, column.type)


def row_id_of(table: str, names: Collection[str]) -> str:
    """What a row's number is called, as columns hide its names. Raises SettingsError."""
    taken = {name.lower() for name in names}
    for name in ("_rowid_", "oid", "rowid"):
        if name not in taken:
            return name
    raise SettingsError(
        f"{table} has no key, and columns called _rowid_, oid and rowid: SQLite cannot tell equal"
        " rows apart",
        "tables.no-row-number",
        hint="give the table a key, or write it to PostgreSQL",
    )


class SqliteStagedTable(StagedRows):
    """See `StagedRows`. Rows are lines, or tuples of values. `row_id` is what the number of a row
    of the target is called, for rows without a key. Methods raise sqlite3's errors."""

    add_key = 'CREATE UNIQUE INDEX "{table}_key" ON "{table}" ({names});'
    _place, _temporary = "rowid", "temp"
    _made, _no_columns = "CREATE TEMP TABLE {} ({})", {"no_key": ""}

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int,
        row_id: str = "",
    ) -> None:  # fmt: skip
        super().__init__(relation, destination, mapping, number)
        self._row_id = row_id

    def _type_at(self, cursor: Any, column: RelationColumn) -> str:
        return kind_of(column)

    def stage(self, cursor: Any, rows: Iterable[Any], keys: Sequence[Any] = ()) -> None:
        cursor.execute(_SQL("DELETE FROM {}").format(self._rows))
        cursor.execute(_SQL("DELETE FROM {}").format(self._keys))
        for table, names, some in (
            (self._rows, self.relation.names, rows), (self._keys, self._key_names, keys)
        ):  # fmt: skip
            insert_rows(cursor, table, names, map(self._values(names), some))

    def copy(self, cursor: Any, rows: Sequence[Any], then: str = "") -> None:
        names, own = self.relation.names, [*self.mapping.own.values()]
        values = map(self._values(names), rows) if rows and isinstance(rows[0], str) else rows
        insert_rows(
            cursor, self.target, [*self.mapping.own, *names],
            ((*own, *row) for row in values) if own else values, then,
        )  # fmt: skip

    def _replace(self, cursor: Any, rows: Sequence[Any]) -> None:
        if self.takes_lines:  # they take twice as long through a temporary table
            self.copy(cursor, rows, self._conflict.as_string(None))
        else:
            super()._replace(cursor, rows)

    def _values(self, names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
        """Rows with these columns, in any form -> tuples of values."""
        columns = {column.name: column for column in self.relation.columns}
        decoders = [
            (number, decode) for number, name in enumerate(names)
            if name in columns and (decode := _DECODERS.get(_name_of(columns[name])))
        ]  # fmt: skip

        def values(row: Any) -> tuple[Any, ...]:
            if not isinstance(row, str):
                return row  # type: ignore[no-any-return]
            cells: list[Any] = row.split("\t")
            if "\\" in row:
                cells = [_cell(cell) if "\\" in cell else cell for cell in cells]
            for number, decode in decoders:
                if cells[number] is not None:
                    cells[number] = decode(cells[number])
            return tuple(cells)

        return values

    def _copy_pieces(
        self, cursor: Any, table: sql.Identifier, names: Sequence[str], pieces: Iterable[bytes]
    ) -> int:
        count, values = 0, self._values(names)

        def rows() -> Iterator[tuple[Any, ...]]:
            nonlocal count
            rest = b""
            for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                count += len(lines)
                for line in lines:
                    try:
                        yield values(line.decode())
                    except UnicodeDecodeError:
                        raise Rejected(
                            "the destination refuses a row: it is not UTF-8", "tables"
                        ) from None

        insert_rows(cursor, table, names, rows())
        return count

    def _delete(self, staged: sql.Identifier, condition: sql.Composable) -> sql.Composable:
        return _SQL("DELETE FROM {} AS _t WHERE ({}) IN (SELECT {} FROM {} WHERE {})").format(
            self.target, joined_names(self.unique), self._selected(self.unique), staged, condition
        )

    def _remove(self, cursor: Any) -> None:
        """See `StagedRows`. The target is read once."""
        names = sorted(self.written)
        own, staged = ([sql.Identifier(each, name) for name in names] for each in ("_t", "_s"))
        pairs = [_SQL("{} IS {}").format(*pair) for pair in zip(own, staged, strict=True)]
        cursor.execute(
            _SQL(
                "DELETE FROM {0} WHERE {1} IN (SELECT _place FROM ("
                "SELECT _t.{1} AS _place, _most, row_number() OVER (PARTITION BY {2}) AS _number"
                " FROM {0} AS _t JOIN (SELECT {3}, count(*) AS _most FROM {4} WHERE {5}"
                " GROUP BY {6}) AS _s ON {7}{8}) WHERE _number <= _most)"
            ).format(
                self.target, sql.Identifier(self._row_id), _COMMA.join(staged),
                self._selected(names), self._rows, self._filtered,
                _COMMA.join([_SQL(str(number + 1)) for number in range(len(names))]),
                _SQL(" AND ").join(pairs), self._mine,
            )
        )  # fmt: skip


_SQL, _COMMA = sql.SQL, sql.SQL(", ")


def _cell(text: str) -> str | None:
    """The value of a cell that has a backslash."""
    if text == NULL:
        return None
    return re.sub(r"\\(.)", lambda found: _ESCAPED.get(found[1], found[1]), text)


def _boolean(text: str) -> int:
    return int(text == "t")


def _float(text: str) -> float | str:
    """SQLite has no NaN, and writes infinity as a number too large."""
    return text if text[-1] in "Ny" else float(text)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


_DECODERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_WHOLE, int), "boolean": _boolean, "real": _float, "double precision": _float,
    "bytea": _bytes,
}  # fmt: skip


def insert_rows(
    cursor: Any, table: sql.Identifier, names: Sequence[str], rows: Iterable[Any],
    then: str = "",
) -> None:  # fmt: skip
    """Inserts tuples of values; `then` says what becomes of those whose keys are there."""
    rest, one = iter(rows), f"({', '.join('?' * len(names))})"
    most = max(1, min(_ROWS, _PARAMETERS // max(1, len(names))))
    start = ""
    while some := list(islice(rest, most)):
        if not start:
            into = _SQL("INSERT INTO {} ({}) VALUES ").format(table, joined_names(names))
            start = into.as_string(None)
            whole = f"{start}{', '.join([one] * most)} {then}"
        statement = whole
        if len(some) < most:
            statement = f"{start}{', '.join([one] * len(some))} {then}"
        # Not by way of `SqliteCursor`, which looks at each value.
        sqlite3.Cursor.execute(cursor, statement, list(chain.from_iterable(some)))
