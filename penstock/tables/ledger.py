"""What a destination knows of each source's table: how far it is, in the transaction of its rows.

Tables of a schema of their own. A row of `ledger` for each source and table: changes up to its
`place` are in the target. Who commits locks the rows first, so of two instances that write at the
same time the later one finds its changes stored.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import orjson
from psycopg import sql

from penstock.model.errors import PenstockError, Rejected
from penstock.model.position import Place
from penstock.tables.drift import KnownColumns
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.staged import UnsentValue

# `loading`: its rows are loaded; `loaded`: all rows are there, held changes are to be applied;
# `waiting`: an operator has to change something, and then it is in the state `resumes`; `left`: it
# is not followed, and what is in the target is old.
State = Literal["live", "loading", "loaded", "waiting", "left"]

CREATE = (
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    """CREATE TABLE IF NOT EXISTS {schema}.ledger (
        id {id} PRIMARY KEY, backend text NOT NULL, sid text NOT NULL,
        "schema" text NOT NULL, "table" text NOT NULL, target text NOT NULL,
        state text NOT NULL, place text NOT NULL DEFAULT '', point text NOT NULL DEFAULT '',
        last_point text NOT NULL DEFAULT '', columns text NOT NULL DEFAULT '[]',
        detail text NOT NULL DEFAULT '', resumes text NOT NULL DEFAULT '',
        reason text NOT NULL DEFAULT '', since timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
        held bigint NOT NULL DEFAULT 0, losses text NOT NULL DEFAULT '',
        is_ours boolean NOT NULL DEFAULT false, is_again boolean NOT NULL DEFAULT false,
        UNIQUE (backend, sid, "schema", "table"))""",
    # The parts of tables that are loading, as JSON.
    """CREATE TABLE IF NOT EXISTS {schema}.loading (
        ledger bigint, source text, number int, part text NOT NULL, identity text NOT NULL,
        is_done boolean NOT NULL DEFAULT false, rows bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (ledger, source, number))""",
    # Changes of tables that are not live, as lines.
    """CREATE TABLE IF NOT EXISTS {schema}.held (
        ledger bigint NOT NULL, cursor text COLLATE "C" NOT NULL, ordinal int NOT NULL,
        operation text NOT NULL, key text, before text, after text, unsent boolean NOT NULL,
        committed_at bigint, event_id text NOT NULL, relation text NOT NULL,
        PRIMARY KEY (ledger, cursor, ordinal))""",
    """CREATE TABLE IF NOT EXISTS {schema}.dead_letter (
        id {id} PRIMARY KEY, event_id text NOT NULL UNIQUE,
        stored_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP, letter text NOT NULL)""",
)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """How far a table of a source is. Changes before `point` are in the rows that were loaded; of
    those between it and `last_point` some are: the parts were read at several points. `resumes`:
    the state after `waiting`. `is_ours`: rows of the source that are there were loaded or applied,
    so that a load may replace them. `is_again`: a load is not the first, and all rows of before are
    there. `columns`: `KnownColumns` as text."""

    id: int
    state: State
    place: Place | None
    point: str
    last_point: str = ""
    resumes: str = ""
    is_ours: bool = False
    is_again: bool = False
    columns: str = ""

    def is_new(self, place: Place) -> bool:
        """Whether a change is not in the target yet."""
        return (self.place is None or place > self.place) and place.cursor >= self.point

    @property
    def has_rows(self) -> bool:
        """Whether its rows were loaded, or are not to be."""
        return "loading" not in (self.state, self.resumes)


class LoadPart(NamedTuple):
    """Ranges (JSON) of a table `source` that are loaded in one transaction; `identity` is that of
    the plan that they are of. `rows`: how many the source had in them."""

    source: str
    number: int
    ranges: str
    identity: str
    is_done: bool = False
    rows: int = 0


class TableRecord(NamedTuple):
    """What the ledger says of a table (`schema.table`) of a source: why it waits, since when it is
    in its state, how many changes are held, and of which transactions. `columns`: `KnownColumns` as
    text."""

    id: int
    backend: str
    sid: str
    table: str
    target: str
    state: State
    reason: str
    detail: str
    since: datetime
    place: str
    held: int
    first: str | None
    last: str | None
    columns: str

    def described(self) -> dict[str, Any]:
        """As the status page shows it; plain JSON."""
        state = _SHOWN.get(self.state, str(self.state))
        return {
            "backend": self.backend, "sid": self.sid, "table": self.table, "target": self.target,
            "state": "suspended" if self.reason in _OF_CHANGES else state, "reason": self.reason,
            "error": self.detail, "since": self.since.astimezone(UTC).isoformat(),
            "place": self.place or None, "held": self.held, "first_skipped": self.first,
            "last_skipped": self.last, "ignored": KnownColumns.parse(self.columns).ignored,
        }  # fmt: skip


_SHOWN = {"loaded": "loading"}
# Why a table waits: because of one of its changes, or of what it is.
_REFUSED, _UNSENT, _UNFIT = "refused", "unsent-value", "unfit"
_OF_CHANGES = (_REFUSED, _UNSENT)


def reason_of(error: PenstockError) -> str:
    """Why a change is set aside, or a table waits."""
    if isinstance(error, UnsentValue):
        return _UNSENT
    return _REFUSED if isinstance(error, Rejected) else _UNFIT


class TargetLedger:
    """The ledger in one schema; each method is part of the transaction of its cursor, and raises
    psycopg's errors."""

    def __init__(self, schema: str) -> None:
        self._name, self._schema = schema, sql.Identifier(schema)

    @property
    def letters_table(self) -> str:
        """What errors call the table with the dead letters."""
        return f"{self._name}.dead_letter"

    def make(self, cursor: Any) -> None:
        """Makes what is missing."""
        found = cursor.execute(
            "SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s"
            " AND c.relname IN ('ledger', 'loading', 'held', 'dead_letter')",
            [self._name],
        )
        if found.fetchone()[0] < len(CREATE) - 1:
            for statement in CREATE:
                cursor.execute(self._sql(statement))

    def enter(
        self, cursor: Any, source: tuple[str, str, str, str], target: str, state: State
    ) -> LedgerRow:
        """The row of a table (backend, sid, schema, table); one that is new, or had left, has the
        state. One that comes back with its target is loaded again."""
        cursor.execute(
            self._sql(
                'INSERT INTO {schema}.ledger AS l (backend, sid, "schema", "table", target, state)'
                ' VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (backend, sid, "schema", "table")'
                " DO UPDATE SET state = excluded.state, target = excluded.target,"
                " since = CURRENT_TIMESTAMP,"
                " is_ours = l.target = excluded.target AND (l.is_ours OR l.is_again),"
                " is_again = l.target = excluded.target AND l.is_again, columns ="
                " CASE WHEN l.target = excluded.target THEN l.columns ELSE excluded.columns END"
                " WHERE l.state = 'left'"
            ),
            [*source, target, state],
        )
        found = cursor.execute(
            self._sql(
                "SELECT {row} FROM {schema}.ledger WHERE backend = %s"
                ' AND sid = %s AND "schema" = %s AND "table" = %s'
            ),
            source,
        )
        return _row(found.fetchone())

    def leave(
        self,
        cursor: Any,
        backend: str,
        kept: Sequence[tuple[str, str, str]],
        sids: Collection[str] | None,
    ) -> set[int]:
        """The tables of a backend but these (schema, table, target), and all of other sources than
        these, are not followed any more; returns their numbers."""
        found = cursor.execute(
            self._sql(
                'SELECT id, sid, "schema", "table", target FROM {schema}.ledger'
                " WHERE backend = %s AND state <> 'left' ORDER BY id FOR UPDATE"
            ),
            [backend],
        )
        gone = [
            id for id, sid, *names in found.fetchall()
            if (sids is not None and sid not in sids) or tuple(names) not in kept
        ]  # fmt: skip
        cursor.execute(
            self._sql(
                "UPDATE {schema}.ledger SET state = 'left', detail = '', reason = '', resumes = '',"
                " held = 0, since = CURRENT_TIMESTAMP, is_again = is_again"
                " OR 'loading' NOT IN (state, resumes) WHERE id = ANY (%s)"
            ),
            [gone],
        )
        for name in ("loading", "held"):
            statement = self._sql(f"DELETE FROM {{schema}}.{name} WHERE ledger = ANY (%s)")
            cursor.execute(statement, [gone])
        return {*gone}

    def is_there(self, cursor: Any) -> bool:
        """Whether it was made."""
        name = f"{self._schema.as_string(None)}.ledger"
        return cursor.execute("SELECT to_regclass(%s)", [name]).fetchone()[0] is not None

    def begun_tables(self, cursor: Any, backend: str) -> set[tuple[str, str]]:
        """The tables (sid and `schema.table`) of a backend whose rows in the target are ours; also
        without a ledger."""
        if not self.is_there(cursor):
            return set()
        query = self._sql(
            """SELECT sid, "schema" || '.' || "table" FROM {schema}.ledger"""
            " WHERE backend = %s AND (is_ours OR state = 'live')"
        )
        return {(sid, table) for sid, table in cursor.execute(query, [backend]).fetchall()}

    def lock(self, cursor: Any, ids: Iterable[int]) -> Mapping[int, LedgerRow]:
        """The rows, which nobody else changes until the transaction's end."""
        found = cursor.execute(
            self._sql(
                "SELECT {row} FROM {schema}.ledger WHERE id = ANY (%s) ORDER BY id FOR UPDATE"
            ),
            [list(ids)],
        )
        return {row[0]: _row(row) for row in found}

    def lock_table(self, cursor: Any, source: tuple[str, str, str, str]) -> None:
        """Nobody writes to a table (backend, sid, schema, table) until the transaction's end."""
        cursor.execute(
            self._sql(
                "SELECT id FROM {schema}.ledger WHERE backend = %s AND sid = %s"
                ' AND "schema" = %s AND "table" = %s FOR UPDATE'
            ),
            source,
        )

    def advance(self, cursor: Any, places: Mapping[int, Place]) -> None:
        """Changes up to these places are in the targets."""
        cursor.execute(
            self._sql(
                "UPDATE {schema}.ledger SET place = CASE id"
                f"{' WHEN %s THEN %s' * len(places)} END WHERE id = ANY (%s)"
            ),
            [*chain.from_iterable((id, str(at)) for id, at in places.items()), [*places]],
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
        self._count_held(cursor, id, len(changes))

    def take_held(
        self, cursor: Any, row: LedgerRow, most: int
    ) -> Sequence[tuple[SourceRelation, list[LineChange]]]:
        """Takes the first held changes of a table, by their relations, in their order: whole
        transactions with at most so many changes, or a part of one that has more. Those that its
        rows contain are forgotten."""
        cursor.execute(
            self._sql('DELETE FROM {schema}.held WHERE ledger = %s AND cursor < %s COLLATE "C"'),
            [row.id, row.point],
        )
        forgotten = cursor.rowcount
        found = cursor.execute(
            self._sql(
                "SELECT relation, operation, key, before, after, unsent, committed_at, cursor,"
                " ordinal, event_id FROM {schema}.held WHERE ledger = %s"
                " ORDER BY cursor, ordinal LIMIT %s"
            ),
            [row.id, most + 1],
        ).fetchall()
        if len(found) > most:  # without the last transaction, unless there is no other one
            last = found[-1][7]
            found = [each for each in found if each[7] < last] or found[:-1]
        if found:
            statement = (
                "DELETE FROM {schema}.held WHERE ledger = %s AND (cursor, ordinal) <= (%s, %s)"
            )
            cursor.execute(self._sql(statement), [row.id, *found[-1][7:9]])
        self._count_held(cursor, row.id, -forgotten - len(found))
        return [
            (SourceRelation.of(orjson.loads(document)), [LineChange(*each[1:]) for each in same])
            for document, same in groupby(found, key=itemgetter(0))
        ]

    def _count_held(self, cursor: Any, id: int, more: int) -> None:
        cursor.execute(
            self._sql("UPDATE {schema}.ledger SET held = held + %s WHERE id = %s"), [more, id]
        )

    def has_held(self, cursor: Any, id: int) -> bool:
        """Whether there are held changes of a table."""
        query = self._sql("SELECT EXISTS (SELECT 1 FROM {schema}.held WHERE ledger = %s)")
        return bool(cursor.execute(query, [id]).fetchone()[0])

    def enter_state(
        self, cursor: Any, id: int, state: State, error: PenstockError | None = None
    ) -> None:
        """The table is in another state. One that is `waiting`, because of an error, goes on where
        it was."""
        cursor.execute(
            self._sql(
                "UPDATE {schema}.ledger SET detail = %(detail)s, reason = %(reason)s,"
                " since = CASE WHEN state = %(state)s THEN since ELSE CURRENT_TIMESTAMP END,"
                " state = %(state)s, resumes ="
                " CASE WHEN %(state)s <> 'waiting' THEN '' WHEN state = 'waiting' THEN resumes"
                " WHEN state = 'live' THEN 'loaded' ELSE state END WHERE id = %(id)s"
            ),
            {
                "state": state, "id": id, "detail": "" if error is None else str(error),
                "reason": "" if error is None else reason_of(error),
            },
        )  # fmt: skip

    def resume(self, cursor: Any, id: int) -> None:
        """A table that waits goes on where it was."""
        cursor.execute(
            self._sql(
                "UPDATE {schema}.ledger SET state = resumes, resumes = '', detail = '',"
                " reason = '', since = CURRENT_TIMESTAMP WHERE id = %s AND state = 'waiting'"
            ),
            [id],
        )

    def tables(
        self, cursor: Any, source: tuple[str, str] | None = None, *, unfinished: bool = False
    ) -> list[TableRecord]:
        """All tables, or those of a source (backend and sid); only the `unfinished`: that are not
        live. Those of a backend with one name are together."""
        backend, sid = source or (None, None)
        query = self._sql(
            """SELECT id, backend, sid, "schema" || '.' || "table", target, state, reason, detail,
            since, place, held, (SELECT min(cursor) FROM {schema}.held WHERE ledger = l.id),
            (SELECT max(cursor) FROM {schema}.held WHERE ledger = l.id), columns
            FROM {schema}.ledger AS l
            WHERE coalesce(backend = %s, true) AND coalesce(sid = %s, true)
            AND (state NOT IN ('live', 'left') OR NOT %s) ORDER BY 2, 4, 1"""
        )
        found = cursor.execute(query, [backend, sid, unfinished])
        return [TableRecord(*row) for row in found.fetchall()]

    def unfinished(self, cursor: Any) -> Sequence[tuple[TableRecord, LedgerRow]]:
        """The tables that are followed and not live."""
        query = self._sql("SELECT {row} FROM {schema}.ledger WHERE state NOT IN ('live', 'left')")
        rows = {row[0]: _row(row) for row in cursor.execute(query).fetchall()}
        found = self.tables(cursor, unfinished=True)
        return [(each, rows[each.id]) for each in found if each.id in rows]

    def known(self, cursor: Any) -> Sequence[tuple[tuple[str, str, str, str], int]]:
        """The tables (backend, sid, schema, table) that are followed, each with its number."""
        query = self._sql(
            'SELECT backend, sid, "schema", "table", id FROM {schema}.ledger'
            " WHERE state <> 'left' ORDER BY id"
        )
        return [(row[:4], row[4]) for row in cursor.execute(query).fetchall()]

    def load_anew(self, cursor: Any, id: int) -> None:
        """The table is loaded from its beginning, instead of the rows that are there."""
        cursor.execute(self._sql("{load_anew} WHERE id = %s"), [id])
        self.forget_parts(cursor, id)

    def load_after(self, cursor: Any, tables: Sequence[int], losses: str) -> bool:
        """Changes of these tables were lost: each that was not loaded after that is loaded anew;
        whether all are live."""
        cursor.execute(
            self._sql("{load_anew}, losses = %s WHERE id = ANY (%s) AND losses <> %s RETURNING id"),
            [losses, [*tables], losses],
        )
        for (id,) in cursor.fetchall():
            self.forget_parts(cursor, id)
        query = self._sql("SELECT DISTINCT state FROM {schema}.ledger WHERE id = ANY (%s)")
        found: list[Any] = cursor.execute(query, [[*tables]]).fetchall()
        return found == [("live",)]

    def columns(self, cursor: Any, id: int) -> KnownColumns:
        """The source's columns when changes of a table were applied last; none before the first."""
        query = self._sql("SELECT columns FROM {schema}.ledger WHERE id = %s")
        return KnownColumns.parse(cursor.execute(query, [id]).fetchone()[0])

    def keep_columns(self, cursor: Any, id: int, known: KnownColumns) -> None:
        """Changes of a table with these columns are applied."""
        cursor.execute(
            self._sql("UPDATE {schema}.ledger SET columns = %s WHERE id = %s"),
            [known.to_json(), id],
        )

    def rename_column(self, cursor: Any, target: str, names: tuple[str, str]) -> None:
        """A column of a target has another name (old, new): for all sources that it has rows of."""
        for id, known in self._sharing(cursor, target):
            self.keep_columns(cursor, id, known.renamed(*names))

    def is_made(self, cursor: Any, target: str) -> bool:
        """Whether penstock made a target."""
        return any(known.is_made for _, known in self._sharing(cursor, target))

    def _sharing(self, cursor: Any, target: str) -> Sequence[tuple[int, KnownColumns]]:
        query = self._sql("SELECT id, columns FROM {schema}.ledger WHERE target = %s ORDER BY id")
        found = cursor.execute(query, [target]).fetchall()
        return [(id, KnownColumns.parse(text)) for id, text in found]

    def set_points(
        self, cursor: Any, id: int, point: str, last_point: str = "", *, is_ours: bool = True
    ) -> None:
        """Rows of the table are of these points. It is loading, unless it waits because of a
        row, which may be refused again."""
        cursor.execute(
            self._sql(
                "UPDATE {schema}.ledger SET {to_loading} WHERE id = %s AND reason <> ALL (%s)"
            ),
            [id, [*_OF_CHANGES]],
        )
        cursor.execute(
            self._sql(
                "UPDATE {schema}.ledger SET is_ours = is_ours OR %s, point = %s, last_point = %s"
                " WHERE id = %s"
            ),
            [is_ours, point, last_point, id],
        )

    def parts(self, cursor: Any, id: int) -> Sequence[LoadPart]:
        """The parts of a table that is loading."""
        query = self._sql(
            "SELECT source, number, part, identity, is_done, rows FROM {schema}.loading"
            " WHERE ledger = %s ORDER BY source, number"
        )
        return [LoadPart(*row) for row in cursor.execute(query, [id]).fetchall()]

    def plan(self, cursor: Any, id: int, source: str, identity: str, parts: Sequence[str]) -> None:
        """The parts of one of its sources, instead of those of before."""
        cursor.execute(
            self._sql("DELETE FROM {schema}.loading WHERE ledger = %s AND source = %s"),
            [id, source],
        )
        cursor.executemany(
            self._sql(
                "INSERT INTO {schema}.loading (ledger, source, number, part, identity)"
                " VALUES (%s, %s, %s, %s, %s)"
            ),
            [[id, source, number, part, identity] for number, part in enumerate(parts)],
        )

    def mark(self, cursor: Any, id: int, part: LoadPart) -> bool:
        """The part is done, unless it is already, or was discarded: then False."""
        cursor.execute(
            self._sql(
                "UPDATE {schema}.loading SET is_done = true WHERE NOT is_done AND ledger = %s"
                " AND source = %s AND number = %s AND identity = %s"
            ),
            [id, part.source, part.number, part.identity],
        )
        return bool(cursor.rowcount)

    def count_rows(self, cursor: Any, id: int, part: LoadPart) -> None:
        """So many rows were in a part that is done."""
        cursor.execute(
            self._sql(
                "UPDATE {schema}.loading SET rows = %s"
                " WHERE ledger = %s AND source = %s AND number = %s"
            ),
            [part.rows, id, part.source, part.number],
        )

    def forget_parts(self, cursor: Any, id: int) -> None:
        """All parts are done."""
        cursor.execute(self._sql("DELETE FROM {schema}.loading WHERE ledger = %s"), [id])

    def begun(self, cursor: Any, backend: str) -> set[str]:
        """The sources (sids) of a backend of which something is known, and has not left."""
        found = cursor.execute(
            self._sql(
                "SELECT DISTINCT sid FROM {schema}.ledger"
                " WHERE backend = %s AND place <> '' AND state <> 'left'"
            ),
            [backend],
        )
        return {sid for (sid,) in found}

    def sources(self, cursor: Any) -> Sequence[tuple[str, str, bool]]:
        """All sources (backend, sid), and whether each has left; also without a ledger."""
        if not self.is_there(cursor):
            return ()
        query = self._sql(
            "SELECT backend, sid, min(state) = 'left' AND max(state) = 'left'"
            " FROM {schema}.ledger GROUP BY 1, 2 ORDER BY 1, 2"
        )
        return [(backend, sid, bool(left)) for backend, sid, left in cursor.execute(query)]

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

    def forget_letters(self, cursor: Any, prefix: str) -> None:
        """Removes the dead letters whose event ids begin so."""
        cursor.execute(
            self._sql("DELETE FROM {schema}.dead_letter WHERE substr(event_id, 1, %s) = %s"),
            [len(prefix), prefix],
        )

    def remove_letter(self, cursor: Any, id: int) -> None:
        """Removes a dead letter."""
        cursor.execute(self._sql("DELETE FROM {schema}.dead_letter WHERE id = %s"), [id])

    def _sql(self, statement: str) -> Any:
        return sql.SQL(statement).format(
            schema=self._schema, row=sql.SQL(_ROW), to_loading=sql.SQL(_TO_LOADING),
            id=sql.SQL("bigint GENERATED ALWAYS AS IDENTITY"),
            load_anew=sql.SQL(_LOAD_ANEW).format(
                schema=self._schema, to_loading=sql.SQL(_TO_LOADING)
            ),
        )  # fmt: skip


_ROW = "id, state, place, point, last_point, resumes, is_ours, is_again, columns"
_TO_LOADING = (
    "state = 'loading', detail = '', reason = '', resumes = '',"
    " since = CASE WHEN state = 'loading' THEN since ELSE CURRENT_TIMESTAMP END"
)
_LOAD_ANEW = (
    "UPDATE {schema}.ledger SET {to_loading}, is_ours = true,"
    " is_again = is_again OR 'loading' NOT IN (state, resumes)"
)


def _row(values: Sequence[Any]) -> LedgerRow:
    id, state, place, *rest = values
    return LedgerRow(id, state, Place.parse(place) if place else None, *rest)
