"""What a destination knows of each source's table: how far it is, in the transaction of its rows.

Tables of a schema of their own. A row of `ledger` for each source and table: changes up to its
`place` are in the target. Who commits locks the rows first, so of two instances that write at the
same time the later one finds its changes stored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import orjson
from psycopg import sql

from penstock.model.position import Place
from penstock.tables.lines import LineChange, SourceRelation

# `loading`: its rows are loaded; `loaded`: all rows are there, held changes are to be applied;
# `waiting`: an operator has to change something.
State = Literal["live", "loading", "loaded", "waiting"]

_CREATE = (
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    """CREATE TABLE IF NOT EXISTS {schema}.ledger (
        id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
        backend text, sid text, "schema" text, "table" text, target text NOT NULL,
        state text NOT NULL, place text NOT NULL DEFAULT '', point text NOT NULL DEFAULT '',
        version text NOT NULL DEFAULT '', detail text NOT NULL DEFAULT '',
        PRIMARY KEY (backend, sid, "schema", "table"))""",
    # Changes of tables that are not live, as lines.
    """CREATE TABLE IF NOT EXISTS {schema}.held (
        ledger bigint NOT NULL, cursor text COLLATE "C" NOT NULL, ordinal int NOT NULL,
        operation text NOT NULL, key text, before text, after text, unsent boolean NOT NULL,
        committed_at bigint, event_id text NOT NULL, relation text NOT NULL,
        PRIMARY KEY (ledger, cursor, ordinal))""",
    """CREATE TABLE IF NOT EXISTS {schema}.dead_letter (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id text NOT NULL UNIQUE,
        stored_at timestamptz NOT NULL DEFAULT now(), letter text NOT NULL)""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """How far a table of a source is. Changes before `point` are in the rows that were loaded."""

    id: int
    state: State
    place: Place | None
    point: str

    def is_new(self, place: Place) -> bool:
        """Whether a change is not in the target yet."""
        return self.place is None or place > self.place


class WaitingTable(NamedTuple):
    """A table of a source that waits, why, and the transactions of which changes are held."""

    id: int
    backend: str
    table: str
    detail: str
    held: int = 0
    first: str = ""
    last: str = ""


class TargetLedger:
    """The ledger in one schema; each method is part of the transaction of its cursor, and raises
    psycopg's errors."""

    def __init__(self, schema: str) -> None:
        self._name, self._schema = schema, sql.Identifier(schema)

    def make(self, cursor: Any) -> None:
        """Makes what is missing."""
        found = cursor.execute(
            "SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s"
            " AND c.relname IN ('ledger', 'held', 'dead_letter')",
            [self._name],
        )
        if found.fetchone()[0] < len(_CREATE) - 1:
            for statement in _CREATE:
                cursor.execute(self._sql(statement))

    def enter(
        self, cursor: Any, source: tuple[str, str, str, str], target: str, state: State
    ) -> LedgerRow:
        """The row of a table (backend, sid, schema, table); a new one has the state."""
        cursor.execute(
            self._sql(
                'INSERT INTO {schema}.ledger (backend, sid, "schema", "table", target, state)'
                " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
            ),
            [*source, target, state],
        )
        found = cursor.execute(
            self._sql(
                "SELECT id, state, place, point FROM {schema}.ledger WHERE backend = %s"
                ' AND sid = %s AND "schema" = %s AND "table" = %s'
            ),
            source,
        )
        return _row(*found.fetchone())

    def lock(self, cursor: Any, ids: Iterable[int]) -> Mapping[int, LedgerRow]:
        """The rows, which nobody else changes until the transaction's end."""
        found = cursor.execute(
            self._sql(
                "SELECT id, state, place, point FROM {schema}.ledger WHERE id = ANY (%s)"
                " ORDER BY id FOR UPDATE"
            ),
            [list(ids)],
        )
        return {row[0]: _row(*row) for row in found}

    def lock_table(self, cursor: Any, source: tuple[str, str, str, str]) -> None:
        """Nobody writes to a table (backend, sid, schema, table) until the transaction's end."""
        cursor.execute(
            self._sql(
                "SELECT FROM {schema}.ledger WHERE backend = %s AND sid = %s"
                ' AND "schema" = %s AND "table" = %s FOR UPDATE'
            ),
            source,
        )

    def advance(self, cursor: Any, places: Mapping[int, Place]) -> None:
        """Changes up to these places are in the targets."""
        cursor.execute(
            self._sql(
                "UPDATE {schema}.ledger AS l SET place = n.place"
                " FROM unnest(%s::bigint[], %s::text[]) AS n (id, place) WHERE l.id = n.id"
            ),
            [list(places), [str(place) for place in places.values()]],
        )

    def hold(
        self, cursor: Any, id: int, relation: SourceRelation, changes: Sequence[LineChange]
    ) -> None:
        """Keeps changes of a table that is not live."""
        document = relation.to_json()
        statement = self._sql(
            "COPY {schema}.held (ledger, cursor, ordinal, operation, key, before, after, unsent,"
            " committed_at, event_id, relation) FROM STDIN"
        )
        with cursor.copy(statement) as copy:
            for one in changes:
                copy.write_row([
                    id, one.cursor, one.ordinal, one.operation, one.key, one.before, one.after,
                    one.has_unsent, one.committed_at, one.event_id, document,
                ])  # fmt: skip

    def take_held(
        self, cursor: Any, row: LedgerRow, most: int
    ) -> Sequence[tuple[SourceRelation, list[LineChange]]]:
        """Takes the first held changes of a table: those that its rows do not contain, by their
        relations, in their order; the others are forgotten."""
        cursor.execute(
            self._sql('DELETE FROM {schema}.held WHERE ledger = %s AND cursor < %s COLLATE "C"'),
            [row.id, row.point],
        )
        found = cursor.execute(
            self._sql(
                "WITH h AS (DELETE FROM {schema}.held WHERE (ledger, cursor, ordinal) IN ("
                "SELECT ledger, cursor, ordinal FROM {schema}.held WHERE ledger = %s"
                " ORDER BY cursor, ordinal LIMIT %s) RETURNING *)"
                " SELECT relation, operation, key, before, after, unsent, committed_at, cursor,"
                " ordinal, event_id FROM h ORDER BY cursor, ordinal"
            ),
            [row.id, most],
        )
        return [
            (SourceRelation.of(orjson.loads(document)), [LineChange(*each[1:]) for each in same])
            for document, same in groupby(found.fetchall(), key=itemgetter(0))
        ]

    def enter_state(self, cursor: Any, id: int, state: State, detail: str = "") -> None:
        """The table is in another state."""
        cursor.execute(
            self._sql("UPDATE {schema}.ledger SET state = %s, detail = %s WHERE id = %s"),
            [state, detail, id],
        )

    def begun(self, cursor: Any, backend: str) -> set[str]:
        """The sources (sids) of a backend of which something is known."""
        found = cursor.execute(
            self._sql(
                "SELECT DISTINCT sid FROM {schema}.ledger WHERE backend = %s AND place <> ''"
            ),
            [backend],
        )
        return {sid for (sid,) in found}

    def keep_letters(self, cursor: Any, letters: Sequence[tuple[str, str]]) -> int:
        """Stores dead letters (event id, text); returns how many are new."""
        new = 0
        for letter in letters:
            cursor.execute(
                self._sql(
                    "INSERT INTO {schema}.dead_letter (event_id, letter) VALUES (%s, %s)"
                    " ON CONFLICT DO NOTHING"
                ),
                letter,
            )
            new += cursor.rowcount
        return new

    def letters(self, cursor: Any, first: int = 0) -> Iterator[tuple[int, datetime, str]]:
        """Dead letters (number, when it was stored, text) from a number on, oldest first."""
        query = self._sql(
            "SELECT id, stored_at, letter FROM {schema}.dead_letter WHERE id >= %s"
            " ORDER BY id LIMIT 100"
        )
        while rows := cursor.execute(query, [first]).fetchall():
            yield from rows
            first = rows[-1][0] + 1

    def remove_letter(self, cursor: Any, id: int) -> None:
        """Removes a dead letter."""
        cursor.execute(self._sql("DELETE FROM {schema}.dead_letter WHERE id = %s"), [id])

    def waiting(self, cursor: Any) -> list["WaitingTable"]:
        """The tables in that state, those of a backend with one name together."""
        found = cursor.execute(
            self._sql(
                """SELECT l.id, l.backend, l."schema" || '.' || l."table", l.detail,
                count(h.cursor), coalesce(min(h.cursor), ''), coalesce(max(h.cursor), '')
                FROM {schema}.ledger AS l LEFT JOIN {schema}.held AS h ON h.ledger = l.id
                WHERE l.state = 'waiting' GROUP BY l.id, 2, 3, 4 ORDER BY 2, 3, 1"""
            )
        )
        return [WaitingTable(*row) for row in found.fetchall()]

    def _sql(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(schema=self._schema)


def _row(id: int, state: State, place: str, point: str) -> LedgerRow:
    return LedgerRow(id=id, state=state, place=Place.parse(place) if place else None, point=point)
