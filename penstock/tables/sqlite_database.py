"""The file: connections, what its errors mean, how its tables are altered."""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from psycopg import sql

from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.process.sqlite_file import ERRORS, code_of, path_of
from penstock.tables.database import Owner, TableDatabase
from penstock.tables.history import HistoryColumns
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_tables import CREATE
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.sqlite_staging import (
    KINDS,
    SqliteStagedTable,
    find_destination,
    insert_rows,
    kind_of,
    open_file,
    open_to_preview,
    row_id_of,
)
from penstock.tables.staged import Destination, RowMapping
from penstock.tables.values import Encoder, as_bytes, as_document, as_documents, as_text

# Seconds that a transaction waits for another one (a part of a load is one), and settings.
_SESSIONS: Mapping[Owner, tuple[float, Sequence[str]]] = {
    # A commit outlives a power failure, as the source is acknowledged what was committed. A library
    # may be built to check foreign keys, and rows come in another order.
    "sink": (60.0, ["PRAGMA synchronous = FULL", "PRAGMA foreign_keys = OFF"]),
    # What a power failure takes away comes again, rows and positions together. Views do not stand
    # in the way of tables whose columns change.
    "mirror": (10.0, ["PRAGMA synchronous = NORMAL", "PRAGMA legacy_alter_table = ON"]),
}
# SQLite has one code for a statement that is wrong, and for one that fails at a row.
_OF_SETUP = re.compile("no such |near |table .* has |too many |cannot |.* may not be ")
_CONFLICTS = (
    sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
)  # fmt: skip


_ERRORS = ERRORS | {
    sqlite3.SQLITE_CANTOPEN: (SettingsError, "its folder must exist, and both be writable"),
}
_ENCODERS: dict[str, Encoder] = {
    "bytea": as_bytes, "boolean": int,
    "json": as_document, "jsonb": as_document, "json[]": as_documents, "jsonb[]": as_documents,
}  # fmt: skip
# Types whose values are text in messages, whatever they are.
_TEXTS = (
    "text", "character varying", "character", "uuid", "numeric", "date", "timestamp with time zone",
    "timestamp without time zone", "time without time zone", "interval",
)  # fmt: skip

# Columns of the type that the ledger's have: `CURRENT_TIMESTAMP` is text in SQLite.
sqlite3.register_converter(
    "timestamptz", lambda text: datetime.fromisoformat(text.decode()).replace(tzinfo=UTC)
)

# What SQLite says otherwise, in this order; it locks all of the file, and compares bytes.
_OTHERWISE = (
    (r" FOR UPDATE| COLLATE \"C\"", ""),
    (r"(ADD COLUMN) IF NOT EXISTS", r"\1"),
    (r"= ANY \(%s\)", "IN (SELECT value FROM json_each(%s))"),
    (r"%\((\w+)\)s", r":\1"),
    (r"%s", "?"),
)


class SqliteDatabase(TableDatabase):
    """See `TableDatabase`. One file, which is made if missing; its folder must exist."""

    error, alters_columns, mark, locks_rows = sqlite3.Error, False, "?", False
    find = staticmethod(find_destination)

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def of_url(cls, url: str) -> "SqliteDatabase":
        """The file that a URL names. Raises SettingsError."""
        if (path := path_of(url)) is None:
            raise SettingsError(
                "the URL names no SQLite file", "tables",
                hint="write sqlite:///relative.db or sqlite:////absolute.db",
            )  # fmt: skip
        return cls(path)

    def ledger(self, cursor: Any) -> TargetLedger:
        return SqliteLedger(cursor)

    def connect(self, owner: Owner = "sink") -> Any:
        with self.translated("opening"):
            return open_file(self.path, *_SESSIONS[owner])

    @contextmanager
    def previewing(self) -> Iterator[Any]:
        with self.translated("opening"), closing(open_to_preview(self.path)) as connection:
            yield connection.cursor()

    def translation(self, error: Exception, doing: str) -> PenstockError:
        """See `TableDatabase`. SQLite's messages have names and no values."""
        code = code_of(error) if isinstance(error, sqlite3.Error) else 0
        if code and code not in ERRORS and not _OF_SETUP.match(str(error)):
            return Rejected(f"the destination refuses a row: {error}", "sqlite.row-refused")
        kind, hint = _ERRORS.get(code, (SettingsError, "look at the target and its columns"))
        return kind(f"{doing} at the destination {self.path}: {error}", "sqlite", hint=hint)

    def is_conflict(self, error: Exception) -> bool:
        return getattr(error, "sqlite_errorcode", 0) in _CONFLICTS

    def folded(self, name: str) -> str:
        return name.encode().lower().decode()  # only ASCII letters

    def default_schema(self, cursor: Any) -> str:
        return "main"

    def encoder(self, kind: str, stored: str) -> Encoder:
        """Numeric, NaN and times are text already. SQLite's driver is slow to take booleans."""
        is_plain = (kind.partition("(")[0] in _TEXTS and not kind.endswith("[]")) or kind in KINDS
        return _ENCODERS.get(kind, None if is_plain else as_text)

    def type_at(self, cursor: Any, column: RelationColumn) -> str:
        return kind_of(column)

    def may_be_large(self, cursor: Any, column: RelationColumn) -> bool:
        return kind_of(column) in ("TEXT", "BLOB")

    def staged(
        self, relation: SourceRelation, found: Destination, mapping: RowMapping, number: int = 0,
        periods: HistoryColumns | None = None,
    ) -> SqliteStagedTable:  # fmt: skip
        """See `TableDatabase`. There are no histories: see the settings."""
        row_id = "" if relation.key else row_id_of(found.table, found.columns)
        return SqliteStagedTable(relation, found, mapping, number, row_id)

    def create(
        self, cursor: Any, relation: SourceRelation, name: tuple[str, str], *,
        periods: HistoryColumns | None = None, sid_column: str = "",
    ) -> None:  # fmt: skip
        """See `TableDatabase`. Raises SettingsError for columns that SQLite cannot tell apart."""
        seen: dict[str, str] = {}
        for column in relation.names:
            if (other := seen.setdefault(self.folded(column), column)) is not column:
                raise SettingsError(
                    f"SQLite cannot have both columns {other} and {column} of {relation.table},"
                    " which differ only by case",
                    "tables",
                    hint="write the table to PostgreSQL, or rename a column",
                )
        if not relation.key:
            row_id_of(relation.table, relation.names)
        super().create(cursor, relation, name, periods=periods, sid_column=sid_column)

    def alter(self, cursor: Any, target: str, *commands: sql.Composed, waits: bool = False) -> None:
        for statement in commands:
            try:
                cursor.execute(statement)
            except sqlite3.OperationalError as error:
                if code_of(error) in ERRORS:  # of the file
                    raise
                raise SettingsError(
                    f"{target} cannot be altered as its source was: {error}",
                    "sqlite.target-unaltered",
                    hint="do it by hand; or DROP TABLE, if the map says `create: true`, and"
                    " `penstock reload`",
                ) from None


class SqliteLedger(TargetLedger):
    """The ledger as tables of the file: `penstock_ledger` and others; by a `SqliteCursor`."""

    letters_table = "penstock_dead_letter"
    _id, own = "integer", "main.penstock_"
    _create: Sequence[str] = CREATE[2:]

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def is_there(self, table: str = "ledger") -> bool:
        query = "SELECT 1 FROM main.sqlite_master WHERE name = %s"
        return self.run(query, [f"penstock_{table}"]).fetchone() is not None

    def taken(self) -> None:
        """See `TargetLedger`: its tables' names begin with penstock's."""

    def insert(self, table: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        insert_rows(self._cursor, sql.Identifier("main", f"penstock_{table}"), names, rows)

    def run(self, statement: str, values: Any = ()) -> Any:
        return self._cursor.execute(_translated(statement), values)


@cache
def _translated(statement: str) -> str:
    for other, written in _OTHERWISE:
        statement = re.sub(other, written, statement)
    return statement
