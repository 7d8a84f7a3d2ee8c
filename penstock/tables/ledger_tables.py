"""The tables of a ledger: how they are made, and statements over them.

Of a schema of their own. A row of `ledger` for each source and table: changes up to its `place` are
in the target. Who commits locks the rows first, so of two instances that write at the same time the
later one finds its changes stored.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import sql

from penstock.model.errors import SettingsError
from penstock.model.formats import verify_format

CREATE = (
    "SELECT pg_catalog.pg_advisory_xact_lock(8022146)",  # another process may make it, too
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    """CREATE TABLE IF NOT EXISTS {own}ledger (
        id {id} PRIMARY KEY, backend text NOT NULL, sid text NOT NULL,
        "schema" text NOT NULL, "table" text NOT NULL, target text NOT NULL,
        state text NOT NULL, place text NOT NULL DEFAULT '', point text NOT NULL DEFAULT '',
        last_point text NOT NULL DEFAULT '', columns text NOT NULL DEFAULT '[]',
        detail text NOT NULL DEFAULT '', resumes text NOT NULL DEFAULT '',
        reason text NOT NULL DEFAULT '', since timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
        held bigint NOT NULL DEFAULT 0, losses text NOT NULL DEFAULT '',
        is_ours boolean NOT NULL DEFAULT false, is_again boolean NOT NULL DEFAULT false,
        commits bigint NOT NULL DEFAULT 0, UNIQUE (backend, sid, "schema", "table"))""",
    # How far changes of a source were reported as stored, and the mark of the last: of which
    # history places are.
    """CREATE TABLE IF NOT EXISTS {own}source (
        backend text NOT NULL, sid text NOT NULL, place text NOT NULL, mark text NOT NULL,
        PRIMARY KEY (backend, sid))""",
    # The parts of tables that are loading, as JSON.
    """CREATE TABLE IF NOT EXISTS {own}loading (
        ledger bigint, source text, number int, part text NOT NULL, identity text NOT NULL,
        is_done boolean NOT NULL DEFAULT false, rows bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (ledger, source, number))""",
    # Changes of tables that are not live, as lines.
    """CREATE TABLE IF NOT EXISTS {own}held (
        ledger bigint NOT NULL, cursor text COLLATE "C" NOT NULL, ordinal int NOT NULL,
        operation text NOT NULL, key text, before text, after text, unsent boolean NOT NULL,
        committed_at bigint, event_id text NOT NULL, relation text NOT NULL,
        PRIMARY KEY (ledger, cursor, ordinal))""",
    """CREATE TABLE IF NOT EXISTS {own}dead_letter (
        id {id} PRIMARY KEY, event_id text NOT NULL UNIQUE,
        stored_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP, letter text NOT NULL)""",
    # The documents (`tables.difference`) of the source's tables that rows and changes are of.
    """CREATE TABLE IF NOT EXISTS {own}known (
        ledger bigint, source text, document text NOT NULL, PRIMARY KEY (ledger, source))""",
    # Keys that have dead letters, and the place of the last change of each that was applied.
    """CREATE TABLE IF NOT EXISTS {own}refused (
        ledger bigint, key text, place text NOT NULL DEFAULT '', PRIMARY KEY (ledger, key))""",
)
# What its tables are called, and those of a schema without a ledger that are called so.
NAMES = frozenset(re.findall(r"EXISTS {own}(\w+)", " ".join(CREATE)))
_TAKEN = """
SELECT c.relname::text FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY (%s) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'last_point')
ORDER BY 1
"""


class LedgerTables:
    """Those in one schema, in the transaction of a cursor; raises psycopg's errors."""

    _id = "bigint GENERATED ALWAYS AS IDENTITY"  # the type of a number that rows get
    _create: Sequence[str] = CREATE
    _newest: Sequence[str] = ("source", "known", "refused")  # each newer than the others

    def __init__(self, schema: str, cursor: Any) -> None:
        self._schema, self._cursor = schema, cursor
        # What the names of its tables begin with, in statements.
        self.own = f"{sql.Identifier(schema).as_string(None)}."

    @property
    def letters_table(self) -> str:
        """What errors call the table with the dead letters."""
        return f"{self._schema}.dead_letter"

    def make(self) -> None:
        """Makes what is missing, also of a ledger that an earlier version made."""
        if (taken := self.taken()) is not None:
            raise taken
        if self.is_there("format"):  # a table of one number, of later versions
            (found,) = self.run(f"SELECT max(number) FROM {self.own}format").fetchone()
            verify_format(found, f"the ledger with {self.letters_table}")
        if all(map(self.is_there, self._newest)):
            return
        is_old = self.is_there() and not self.is_there("source")
        for statement in self._create:
            self.run(statement.format(schema=self.own[:-1], own=self.own, id=self._id))
        if is_old:
            added = "commits bigint NOT NULL DEFAULT 0"
            self.run(f"ALTER TABLE {self.own}ledger ADD COLUMN IF NOT EXISTS {added}")

    def taken(self) -> SettingsError | None:
        """What is wrong where the schema has tables of others that are called as the ledger's."""
        found = self.run(_TAKEN, [self._schema, list(NAMES), f"{self.own}ledger"]).fetchall()
        if not found:
            return None
        return SettingsError(
            f"the schema {self._schema} has tables with names of the ledger, which are not"
            f" penstock's: {', '.join(name for (name,) in found)}",
            "tables.ledger-taken",
            hint="set `sink.ledger` to another schema",
        )

    def is_there(self, table: str = "ledger") -> bool:
        return self.run("SELECT to_regclass(%s)", [f"{self.own}{table}"]).fetchone()[0] is not None

    def insert(self, table: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        with self._cursor.copy(f"COPY {self.own}{table} ({', '.join(names)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def run(self, statement: str, values: Any = None) -> Any:
        return self._cursor.execute(statement, values)
