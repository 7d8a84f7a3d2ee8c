"""The ledger as tables of the file itself: `penstock_ledger` and others."""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from psycopg import sql

from penstock.tables.ledger import CREATE, TargetLedger
from penstock.tables.sqlite_staging import insert_rows

# Columns of the type that the ledger's have: `CURRENT_TIMESTAMP` is text in SQLite.
sqlite3.register_converter(
    "timestamptz", lambda text: datetime.fromisoformat(text.decode()).replace(tzinfo=UTC)
)

# What SQLite says otherwise, in this order; it locks all of the file, and compares bytes.
_OTHERWISE = (
    (r" FOR UPDATE| COLLATE \"C\"", ""),
    (r"= ANY \(%s\)", "IN (SELECT value FROM json_each(%s))"),
    (r"<> ALL \(%s\)", "NOT IN (SELECT value FROM json_each(%s))"),
    (r"%\((\w+)\)s", r":\1"),
    (r"%s", "?"),
)


class SqliteLedger(TargetLedger):
    """See `TargetLedger`. The cursor is a `SqliteCursor`."""

    letters_table = "penstock_dead_letter"
    _id, _own, _create = "integer", "main.penstock_", CREATE[1:]

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def is_there(self) -> bool:
        found = self._run("SELECT 1 FROM main.sqlite_master WHERE name = 'penstock_ledger'")
        return found.fetchone() is not None

    def _insert(self, table: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        insert_rows(self._cursor, sql.Identifier("main", f"penstock_{table}"), names, rows)

    def _run(self, statement: str, values: Any = ()) -> Any:
        return self._cursor.execute(_translated(statement), values)


@cache
def _translated(statement: str) -> str:
    for other, written in _OTHERWISE:
        statement = re.sub(other, written, statement)
    return statement
