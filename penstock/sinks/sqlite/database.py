"""The file: connections, what its errors mean, how its tables are altered."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.process.sqlite_file import ERRORS, code_of
from penstock.sinks.sqlite.ledger import SqliteLedger
from penstock.sinks.sqlite.settings import SqliteSinkSettings
from penstock.sinks.tables.database import TableDatabase
from penstock.tables.history import HistoryColumns
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.sqlite_staging import (
    SqliteStagedTable,
    find_destination,
    kind_of,
    open_file,
    row_id_of,
)
from penstock.tables.staged import Destination, RowMapping

# Seconds that a transaction waits for another one: a part of a load is one.
_BUSY = 60.0
# A commit outlives a power failure, as the source is acknowledged what was committed.
_SESSION = ("PRAGMA synchronous = FULL",)
_OF_ROWS = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG)
_CONFLICTS = (
    sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
)  # fmt: skip


class SqliteDatabase(TableDatabase):
    settings: SqliteSinkSettings
    error, alters_columns = sqlite3.Error, False
    find = staticmethod(find_destination)

    def ledger(self, cursor: Any) -> SqliteLedger:
        return SqliteLedger(cursor)

    def connect(self) -> Any:
        with self.translated("opening"):
            return open_file(self.settings.file, _BUSY, _SESSION)

    def translation(self, error: Exception, doing: str) -> PenstockError:
        """See `TableDatabase`. SQLite's messages have names and no values."""
        code = code_of(error) if isinstance(error, sqlite3.Error) else 0
        if code in _OF_ROWS:
            return Rejected(f"the destination refuses a row: {error}", code="row-refused")
        kind, hint = ERRORS.get(code, (SettingsError, "look at the target and its columns"))
        return kind(f"{doing} at the destination {self.settings.file}: {error}", hint=hint)

    def is_conflict(self, error: Exception) -> bool:
        return getattr(error, "sqlite_errorcode", 0) in _CONFLICTS

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

    def alter(self, cursor: Any, target: str, statements: Sequence[sql.Composed]) -> None:
        for statement in statements:
            try:
                cursor.execute(statement)
            except sqlite3.OperationalError as error:
                raise SettingsError(
                    f"{target} cannot be altered as its source was: {error}",
                    code="target-unaltered",
                    hint="do it by hand; or DROP TABLE, if the map says `create: true`, and"
                    " `penstock reload`",
                ) from None
