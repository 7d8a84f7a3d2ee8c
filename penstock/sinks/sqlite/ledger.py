"""The ledger as tables of the file itself: `penstock_ledger` and others."""

import re
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from psycopg import sql

from penstock.tables.ledger import CREATE, TargetLedger
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.sqlite_staging import insert_rows

# Columns of the type that the ledger's have: `CURRENT_TIMESTAMP` is text in SQLite.
sqlite3.register_converter(
    "timestamptz", lambda text: datetime.fromisoformat(text.decode()).replace(tzinfo=UTC)
)

# What SQLite says otherwise, in this order; it locks all of the file, and compares bytes.
_OTHERWISE = (
    (r"\"main\"\.(\w+)", r"main.penstock_\1"),
    (r"bigint GENERATED ALWAYS AS IDENTITY", "integer"),
    (r" FOR UPDATE| COLLATE \"C\"", ""),
    (r"= ANY \(%s\)", "IN (SELECT value FROM json_each(%s))"),
    (r"<> ALL \(%s\)", "NOT IN (SELECT value FROM json_each(%s))"),
    (r"%\((\w+)\)s", r":\1"),
    (r"%s", "?"),
)
_HELD = (
    "ledger", "cursor", "ordinal", "operation", "key", "before", "after", "unsent", "committed_at",
    "event_id", "relation",
)  # fmt: skip


class SqliteLedger(TargetLedger):
    """See `TargetLedger`. Cursors are `SqliteCursor`s."""

    letters_table = "penstock_dead_letter"

    def __init__(self) -> None:
        super().__init__("main")

    def make(self, cursor: Any) -> None:
        if not self.is_there(cursor):
            for statement in CREATE[1:]:
                cursor.execute(self._sql(statement))

    def is_there(self, cursor: Any) -> bool:
        found = cursor.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'penstock_ledger'")
        return found.fetchone() is not None

    def hold(
        self, cursor: Any, id: int, relation: SourceRelation, changes: Sequence[LineChange]
    ) -> None:
        document = relation.to_json()
        rows = (
            (
                id, one.cursor, one.ordinal, one.operation, one.key, one.before, one.after,
                one.has_unsent, one.committed_at, one.event_id, document,
            )
            for one in changes
        )  # fmt: skip
        insert_rows(cursor, sql.Identifier("main", "penstock_held"), _HELD, rows)
        self._count_held(cursor, id, len(changes))

    def _sql(self, statement: str) -> str:
        return _translated(super()._sql(statement).as_string(None))


@cache
def _translated(statement: str) -> str:
    for other, written in _OTHERWISE:
        statement = re.sub(other, written, statement)
    return statement
