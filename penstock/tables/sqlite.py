"""Tables in a SQLite file: `sqlite:///relative.db` or `sqlite:////absolute.db`.

The log is written ahead (WAL), so that readers see whole transactions while the replica writes. A
power failure may take the last of them away, rows and positions together: they come again.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from penstock.model.errors import SettingsError
from penstock.process.sqlite_file import ERRORS, path_of, translated
from penstock.tables.sql import SqlTarget, relation_of
from penstock.tables.sqlite_staging import (
    KINDS,
    SqliteStagedTable,
    open_file,
    row_id_of,
)
from penstock.tables.staged import Destination, RowMapping, StagedRows
from penstock.tables.target_table import TargetColumn, TargetTable
from penstock.tables.targets import Encoder
from penstock.tables.values import as_bytes, as_document, as_documents, as_text

_BUSY_SECONDS = 10.0
# Views do not stand in the way of tables whose columns change.
_SESSION = "PRAGMA synchronous = NORMAL", "PRAGMA legacy_alter_table = ON"
_ERRORS = ERRORS | {
    sqlite3.SQLITE_CANTOPEN: (SettingsError, "its folder must exist, and both be writable"),
    sqlite3.SQLITE_CORRUPT: (SettingsError, "it is damaged: move it away, and mirror again"),
}
_ENCODERS: dict[str, Encoder] = {
    "bytea": as_bytes, "boolean": int,
    "json": as_document, "jsonb": as_document, "json[]": as_documents, "jsonb[]": as_documents,
}  # fmt: skip


class SqliteTarget(SqlTarget):
    """A `Target` in one file, which is made if missing; its folder must exist."""

    not_unique = sqlite3.IntegrityError

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)

    @classmethod
    def of_url(cls, url: str) -> "SqliteTarget":
        """The target that a URL names. Raises SettingsError."""
        if (path := path_of(url)) is None:
            hint = "write sqlite:///relative.db or sqlite:////absolute.db"
            raise SettingsError("the target's URL names no SQLite file", "tables", hint=hint)
        return cls(path)

    def encoder(self, column: TargetColumn) -> Encoder:
        """Numeric, NaN and times are text already. SQLite's driver is slow to take booleans."""
        kind = column.type
        is_plain = (kind.partition("(")[0] in _TEXTS and not kind.endswith("[]")) or kind in KINDS
        return _ENCODERS.get(kind, None if is_plain else as_text)

    def type_of(self, column: TargetColumn) -> str:
        """A type by SQLite's affinity: what is text must not become a number."""
        return KINDS.get(column.type, "TEXT")

    def _connect(self) -> Any:
        return open_file(self.path, _BUSY_SECONDS, _SESSION)

    def _translated(self) -> AbstractContextManager[None]:
        return translated("the mirror", self.path, _ERRORS)

    def _staged_table(self, table: TargetTable, number: int) -> StagedRows:
        found = Destination(
            schema="main", table=table.target,
            columns={column.name: self.type_of(column) for column in table.columns},
        )  # fmt: skip
        row_id = "" if table.key else _row_id(table)
        return SqliteStagedTable(relation_of(table), found, RowMapping(), number, row_id)

    def _create(self, table: TargetTable, name: str) -> None:
        seen: dict[str, str] = {}
        for column in table.names:
            other = seen.setdefault(self._folded(column), column)
            if other is not column:
                raise SettingsError(
                    f"SQLite cannot have both columns {other} and {column} of {table.target},"
                    " which differ only by case",
                    "tables",
                    hint="mirror the table into PostgreSQL, or rename a column",
                )
        if not table.key:
            _row_id(table)
        super()._create(table, name)

    def _folded(self, name: str) -> str:
        return name.encode().lower().decode()  # only ASCII letters

    def _exists(self, name: str) -> bool:
        return bool(self._run("SELECT 1 FROM sqlite_master WHERE lower(name) = lower(?)", [name]))

    def _shape(self, name: str) -> Sequence[tuple[str, str, int]]:
        rows = self._run(f"PRAGMA table_info({self.quote(name)})")
        return [(row[1], row[2], row[5] - 1) for row in rows]


def _row_id(table: TargetTable) -> str:
    return row_id_of(table.target, [column.name for column in (*table.columns, *table.kept)])


# Types whose values are text in messages, whatever they are.
_TEXTS = (
    "text", "character varying", "character", "uuid", "numeric", "date", "timestamp with time zone",
    "timestamp without time zone", "time without time zone", "interval",
)  # fmt: skip
