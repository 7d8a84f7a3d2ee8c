"""Tables in a PostgreSQL database: `postgresql://user@host/database`, in the first schema of the
search path (`?options=-csearch_path%3Dmirror` names another).

Columns have the source's types where those are built in, and domains the type under them. All else
is text: enums, types of extensions, and types whose values name something of the database, such as
regclass.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors

from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.tables.sql import SqlTarget, relation_of
from penstock.tables.staged import RowMapping, StagedRows
from penstock.tables.staging import SESSION as STAGING
from penstock.tables.staging import StagedTable, find_destination, set_session
from penstock.tables.target_table import TargetColumn, TargetTable
from penstock.tables.targets import Encoder
from penstock.tables.values import array_of, as_bytes, as_document, as_text, as_time
from penstock.wire.pgoutput.values import SESSION

_PATIENCE = 10  # seconds to connect
# How values are read, whatever the database, the role or the environment prefer. Where tables are,
# the search_path says.
_SESSION = {
    **SESSION, **STAGING, "array_nulls": "on", "xmloption": "content",
    "standard_conforming_strings": "on",
}  # fmt: skip
_SESSION.pop("search_path", None)
_BUILT_IN = """
SELECT t.oid FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.oid = to_regtype(%s)::oid AND n.nspname = 'pg_catalog'
  AND t.typname !~ '^_?(reg|aclitem)'
"""
_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       coalesce(array_position(i.indkey::int2[], a.attnum), -1)
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attname
"""


class PostgresTarget(SqlTarget):
    """A `Target` in a schema of a database, which must exist."""

    mark = "%s"
    not_unique = errors.UniqueViolation
    _locked = " FOR SHARE"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._kinds: dict[str, str] = {}
        self._schema = ""  # the first of the search path

    def encoder(self, column: TargetColumn) -> Encoder:
        """Values are as PostgreSQL reads them, but for JSON, bytes, arrays and distant years."""
        kind = self.type_of(column)
        if kind.endswith("[]"):
            return array_of(kind.removesuffix("[]"))
        if kind == column.type == "text":  # and of no type that is text only here
            return None
        return _ENCODERS.get(kind) or (as_time if kind.startswith("timestamp") else None)

    def type_of(self, column: TargetColumn) -> str:
        """The source's own type, if it is built in."""
        kind = column.type
        if kind not in self._kinds:
            with self._translated():
                # Without what it is limited to: varchar(80) is found as varchar.
                found = self._opened().execute(_BUILT_IN, [kind]).fetchone()
            text = "text[]" if kind.count("[]") == 1 else "text"
            self._kinds[kind] = kind if found else text
        return self._kinds[kind]

    def value(self, column: TargetColumn) -> str:
        """Casts: text is read as the column's type."""
        return f"%s::{self.type_of(column)}"

    def quote(self, name: str) -> str:
        """An identifier; parameters are marked by %."""
        return super().quote(name).replace("%", "%%")

    def _connect(self) -> Any:
        connection = psycopg.connect(
            self._url, autocommit=True, connect_timeout=_PATIENCE,
            application_name="penstock mirror",
        )  # fmt: skip
        set_session(connection, _SESSION)
        (found,) = connection.execute("SELECT current_schema()").fetchone() or (None,)
        self._schema = found or "public"
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise _translation(error) from error

    def _staged_table(self, table: TargetTable, number: int) -> StagedRows:
        if (found := find_destination(self._opened(), self._schema, table.target)) is None:
            raise SettingsError(
                f"the target has no table {table.target} any more", "tables.target-missing"
            )
        return StagedTable(relation_of(table), found, RowMapping(), number)

    def _folded(self, name: str) -> str:
        return name.encode()[:63].decode(errors="ignore")  # longer ones are cut

    def _exists(self, name: str) -> bool:
        return bool(self._run("SELECT 1 WHERE to_regclass(%s) IS NOT NULL", [super().quote(name)]))

    def _shape(self, name: str) -> Sequence[tuple[str, str, int]]:
        return self._run(_COLUMNS, [super().quote(name)])


def _translation(error: psycopg.Error) -> PenstockError:
    state = error.sqlstate or ""
    said = error.diag.message_primary or str(error)
    if state[:2] in ("22", "P0"):  # it has a value in it, and logs carry no row data
        said = " ".join(re.findall("[A-Z][a-z]*", type(error).__name__)).lower()
    elif state == "2BP01":
        said = f"{said}: {error.diag.message_detail}"
    message = f"the target's database: {said} ({state or 'no connection'})"
    if state[:2] in ("28", "3D", "42", "22", "0A", "2B"):
        return SettingsError(
            message, "tables", hint="look at the role's rights and at the target's tables"
        )
    if isinstance(error, psycopg.OperationalError) or state[:2] in ("08", "40", "53", "57", "58"):
        return Unavailable(message, "tables")
    return SettingsError(message, "tables")


# The last is an array of a domain over arrays, too: as JSON.
_ENCODERS: dict[str, Encoder] = {
    "bytea": as_bytes, "json": as_document, "jsonb": as_document, "date": as_time, "text": as_text,
}  # fmt: skip
