"""What a destination knows of each source's table: how far it is, in the transaction of its rows.

Tables of a schema of their own. A row of `ledger` for each source and table: changes up to its
`place` are in the target. Who commits locks the rows first, so of two instances that write at the
same time the later one finds its changes stored.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import orjson
from psycopg import sql

from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.model.position import Place
from penstock.tables.drift import KnownColumns
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.staged import UnsentValue

# `loading`: its rows are loaded; `loaded`: all rows are there, held changes are to be applied;
# `waiting`: an operator has to change something, and then it is in the state `resumes`; `left`: it
# is not followed, and what is in the target is old.
State = Literal["live", "loading", "loaded", "waiting", "left"]

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


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """How far a table of a source is. Changes before `point` are in the rows that were loaded; of
    those between it and `last_point` some are: the parts were read at several points. `resumes`:
    the state after `waiting`. `is_ours`: rows of the source that are there were loaded or applied,
    so that a load may replace them. `is_again`: a load is not the first, and all rows of before are
    there. `columns`: `KnownColumns` as text. `losses`: of the source, after which it was loaded
    last. `reason` and `detail`: why it waits. `commits` only grows, but in a destination that
    went back."""

    id: int
    state: State
    place: Place | None
    point: str
    last_point: str
    resumes: State | Literal[""]
    is_ours: bool
    is_again: bool
    columns: str
    losses: str
    reason: str
    detail: str
    commits: int = 0

    @classmethod
    def of(cls, id: int, state: State, place: str, *rest: Any) -> "LedgerRow":
        """The row with the values of the columns `_ROW`."""
        return cls(id, state, _place(place), *rest)

    def is_new(self, place: Place) -> bool:
        """Whether a change is not in the target yet."""
        return (self.place is None or place > self.place) and place.cursor >= self.point

    @property
    def has_rows(self) -> bool:
        """Whether its rows were loaded, or are not to be."""
        return "loading" not in (self.state, self.resumes)

    @property
    def waits_for_operator(self) -> bool:
        """Whether it waits until somebody loads it anew, or resumes it: another try is no use."""
        return self.reason in (_CHANGED, _BY_HAND)

    @property
    def is_refused(self) -> bool:
        """Whether it waits because of one of its changes."""
        return self.reason in (_REFUSED, _UNSENT, _BY_HAND)

    def become(self, state: State, error: PenstockError | None = None) -> "LedgerRow":
        """The row in another state. `waiting` because of an error, it goes on where it was."""
        resumes: State | Literal[""] = ""
        if state == "waiting":
            resumes = self.resumes if self.state == "waiting" else self.state
        return replace(
            self, state=state, resumes="loaded" if resumes == "live" else resumes,
            reason="" if error is None else reason_of(error),
            detail="" if error is None else str(error),
        )  # fmt: skip

    def begun_anew(self, state: State = "loading") -> "LedgerRow":
        """The row of a table that is to be loaded instead of the rows that are there: their place,
        which may be of another server's log, decides nothing."""
        row = replace(self.become(state), is_again=self.is_again or self.has_rows)
        return replace(row, place=None, point="", last_point="")

    def at_points(self, point: str, last_point: str = "", *, is_ours: bool = True) -> "LedgerRow":
        """Rows of the table are of these points. It is loading, unless it waits because of a row,
        which may be refused again."""
        row = self if self.is_refused else self.become("loading")
        return replace(row, point=point, last_point=last_point, is_ours=self.is_ours or is_ours)


_ROW = ", ".join(LedgerRow.__slots__)  # columns


class SourceRecord(NamedTuple):
    """How far a source's changes were reported as stored, and the mark of the last."""

    place: Place | None = None
    mark: str = ""


def _place(text: str) -> Place | None:
    return Place.parse(text) if text else None


class LoadPart(NamedTuple):
    """Ranges (JSON) of a table `source` that are loaded in one transaction; `identity` is that of
    the plan that they are of, "" where its rows are there already, and are not loaded. `rows`: how
    many the source had in them."""

    source: str
    number: int
    ranges: str
    identity: str
    is_done: bool = False
    rows: int = 0


class TableRecord(NamedTuple):
    """All that the ledger says of a table (`schema.table`) of a source, with its `row`: since when
    it is in its state, how many changes are held, and of which transactions."""

    row: LedgerRow
    backend: str
    sid: str
    table: str
    target: str
    since: datetime
    held: int
    first: str | None
    last: str | None

    def described(self) -> dict[str, Any]:
        """As the status page shows it; plain JSON."""
        row = self.row
        state = _SHOWN.get(row.state, str(row.state))
        return {
            "backend": self.backend, "sid": self.sid, "table": self.table, "target": self.target,
            "state": "suspended" if row.is_refused else state, "reason": row.reason,
            "error": row.detail, "since": self.since.astimezone(UTC).isoformat(),
            "place": row.place and str(row.place), "held": self.held, "first_skipped": self.first,
            "last_skipped": self.last, "ignored": KnownColumns.parse(row.columns).ignored,
        }  # fmt: skip


_SHOWN = {"loaded": "loading"}
# Why a table waits: because of one of its changes, or of what it is.
_REFUSED, _UNSENT, _UNFIT, _CHANGED = "refused", "unsent-value", "unfit", "changed"
_BY_HAND = "by-hand"


class RowsChanged(SettingsError):
    """Rows of a table changed without its log, and may not be replaced."""


class SuspendedByHand(Rejected):
    """An operator has suspended a table, and resumes it."""


def reason_of(error: PenstockError) -> str:
    """Why a change is set aside, or a table waits."""
    if isinstance(error, RowsChanged):
        return _CHANGED
    if isinstance(error, SuspendedByHand):
        return _BY_HAND
    if isinstance(error, UnsentValue):
        return _UNSENT
    return _REFUSED if isinstance(error, Rejected) else _UNFIT


_HELD = (
    "ledger", "cursor", "ordinal", "operation", "key", "before", "after", "unsent", "committed_at",
    "event_id", "relation",
)  # fmt: skip


class UnsettledTable(NamedTuple):
    """A table that is followed and not live: whether its rows are there, and the place of the first
    change that is held."""

    id: int
    backend: str
    sid: str
    target: str
    state: str
    resumes: str
    cursor: str | None
    ordinal: int | None

    @property
    def has_rows(self) -> bool:
        return "loading" not in (self.state, self.resumes)

    def is_before(self, change: LineChange) -> bool:
        """Whether it lacks what was there before a change."""
        if self.cursor is None or self.ordinal is None:
            return not self.has_rows
        first = self.cursor, self.ordinal
        return not self.has_rows or first < (change.cursor, change.ordinal)


class TargetLedger:
    """The ledger in one schema, in the transaction of a cursor. Methods raise psycopg's errors."""

    _id = "bigint GENERATED ALWAYS AS IDENTITY"  # the type of a number that rows get
    _create: Sequence[str] = CREATE

    def __init__(self, schema: str, cursor: Any) -> None:
        self._schema, self._cursor = schema, cursor
        # What the names of its tables begin with, in statements.
        self._own = f"{sql.Identifier(schema).as_string(None)}."

    @property
    def letters_table(self) -> str:
        """What errors call the table with the dead letters."""
        return f"{self._schema}.dead_letter"

    def make(self) -> None:
        """Makes what is missing, also of a ledger that an earlier version made."""
        if (taken := self.taken()) is not None:
            raise taken
        if all(map(self.is_there, ("source", "known", "refused"))):  # each newer than the others
            return
        is_old = self.is_there() and not self.is_there("source")
        for statement in self._create:
            self._run(statement.format(schema=self._own[:-1], own=self._own, id=self._id))
        if is_old:
            added = "commits bigint NOT NULL DEFAULT 0"
            self._run(f"ALTER TABLE {self._own}ledger ADD COLUMN IF NOT EXISTS {added}")

    def taken(self) -> SettingsError | None:
        """What is wrong where the schema has tables of others that are called as the ledger's."""
        found = self._run(_TAKEN, [self._schema, list(NAMES), f"{self._own}ledger"]).fetchall()
        if not found:
            return None
        return SettingsError(
            f"the schema {self._schema} has tables called as the ledger's, which are not"
            f" penstock's: {', '.join(name for (name,) in found)}",
            "tables.ledger-taken",
            hint="set `sink.ledger` to another schema",
        )

    def is_there(self, table: str = "ledger") -> bool:
        return (
            self._run("SELECT to_regclass(%s)", [f"{self._own}{table}"]).fetchone()[0] is not None
        )

    def enter(self, source: tuple[str, str, str, str], target: str, state: State) -> LedgerRow:
        """The row of a table (backend, sid, schema, table); one that is new, or had left, has the
        state. One that comes back with its target is loaded again."""
        self._run(
            f'INSERT INTO {self._own}ledger AS l (backend, sid, "schema", "table", target, state)'
            ' VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (backend, sid, "schema", "table")'
            " DO UPDATE SET state = excluded.state, target = excluded.target,"
            " since = CURRENT_TIMESTAMP, place = '', point = '', last_point = '',"
            " is_ours = l.target = excluded.target AND (l.is_ours OR l.is_again),"
            " is_again = l.target = excluded.target AND l.is_again, columns ="
            " CASE WHEN l.target = excluded.target THEN l.columns ELSE excluded.columns END"
            " WHERE l.state = 'left'",
            [*source, target, state],
        )
        found = self._run(
            f"SELECT {_ROW} FROM {self._own}ledger"
            ' WHERE backend = %s AND sid = %s AND "schema" = %s AND "table" = %s',
            source,
        )
        return LedgerRow.of(*found.fetchone())

    def leave(
        self, backend: str, kept: Collection[tuple[str, str]], sids: Collection[str] | None
    ) -> set[int]:
        """The tables of a backend but these (`schema.table`, target), and all of other sources than
        these, are not followed any more; returns their numbers. Of these sources nothing is known
        any more."""
        followed = [
            each for each in self.tables() if each.backend == backend and each.row.state != "left"
        ]
        rows = self.lock(each.row.id for each in followed)
        gone = {
            each.row.id for each in followed
            if (sids is not None and each.sid not in sids)
            or (each.table, each.target) not in kept
        }  # fmt: skip
        for id in gone:
            self.save(rows[id].begun_anew("left"))
        self.forget(gone)
        self._run(f"DELETE FROM {self._own}known WHERE ledger = ANY (%s)", [[*gone]])
        if sids is not None:
            query = f"DELETE FROM {self._own}source WHERE backend = %s AND NOT sid = ANY (%s)"
            self._run(query, [backend, [*sids]])
        return gone

    def forget(self, ids: Collection[int]) -> None:
        """Forgets the parts and the held changes of tables."""
        self._run(f"UPDATE {self._own}ledger SET held = 0 WHERE id = ANY (%s)", [[*ids]])
        for name in ("loading", "held"):
            self._run(f"DELETE FROM {self._own}{name} WHERE ledger = ANY (%s)", [[*ids]])

    def sources(self, backend: str) -> Mapping[str, SourceRecord]:
        """What is known of the sources of a backend, by sid. Locked until the transaction's end."""
        found = self._run(
            f"SELECT sid, place, mark FROM {self._own}source WHERE backend = %s"
            " ORDER BY sid FOR UPDATE",
            [backend],
        )
        return {sid: SourceRecord(_place(place), mark) for sid, place, mark in found.fetchall()}

    def keep_source(self, backend: str, sid: str, record: SourceRecord) -> None:
        """From now on this is known of a source."""
        self._run(
            f"INSERT INTO {self._own}source (backend, sid, place, mark) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (backend, sid)"
            " DO UPDATE SET place = excluded.place, mark = excluded.mark",
            [backend, sid, str(record.place or ""), record.mark],
        )

    def tables(self, source: tuple[str, str] | None = None) -> list[TableRecord]:
        """All tables, or those of a source (backend and sid); none without a ledger. Those of a
        backend with one name are together."""
        if not self.is_there():
            return []
        held = f"{self._own}held WHERE ledger = l.id"
        found = self._run(
            f"""SELECT backend, sid, "schema" || '.' || "table", target, since, held,
            (SELECT min(cursor) FROM {held}), (SELECT max(cursor) FROM {held}), {_ROW}
            FROM {self._own}ledger AS l
            WHERE coalesce(backend = %s, true) AND coalesce(sid = %s, true)
            ORDER BY backend, "schema" || '.' || "table", id""",
            source or (None, None),
        )
        return [TableRecord(LedgerRow.of(*row[8:]), *row[:8]) for row in found.fetchall()]

    def unsettled(self, targets: Collection[str]) -> Sequence[UnsettledTable]:
        """Tables of these targets that are not live."""
        first = f"FROM {self._own}held WHERE ledger = l.id ORDER BY cursor, ordinal LIMIT 1"
        found = self._run(
            "SELECT id, backend, sid, target, state, resumes,"
            f" (SELECT cursor {first}), (SELECT ordinal {first}) FROM {self._own}ledger AS l"
            " WHERE state NOT IN ('live', 'left') AND target = ANY (%s) ORDER BY id",
            [[*targets]],
        )
        return [UnsettledTable(*row) for row in found.fetchall()]

    def lock(self, ids: Iterable[int]) -> Mapping[int, LedgerRow]:
        """The rows, which nobody else changes until the transaction's end."""
        found = self._run(
            f"SELECT {_ROW} FROM {self._own}ledger WHERE id = ANY (%s) ORDER BY id FOR UPDATE",
            [list(ids)],
        )
        return {row[0]: LedgerRow.of(*row) for row in found}

    def advance(self, places: Mapping[int, Place]) -> None:
        """Changes up to these places are in the targets."""
        self._run(
            f"UPDATE {self._own}ledger SET commits = commits + 1, place = CASE id"
            f"{' WHEN %s THEN %s' * len(places)} END WHERE id = ANY (%s)",
            [*chain.from_iterable((id, str(at)) for id, at in places.items()), [*places]],
        )

    def hold(self, id: int, relation: SourceRelation, changes: Sequence[LineChange]) -> None:
        """Keeps changes of a table that is not live."""
        document = relation.to_json()
        rows = (
            (
                id, one.cursor, one.ordinal, one.operation, one.key, one.before, one.after,
                one.has_unsent, one.committed_at, one.event_id, document,
            )
            for one in changes
        )  # fmt: skip
        self._insert("held", _HELD, rows)
        self._count_held(id, len(changes))

    def take_held(
        self, row: LedgerRow, most: int
    ) -> tuple[Sequence[tuple[SourceRelation, list[LineChange]]], bool]:
        """Takes the first held changes of a table, by their relations, in their order: whole
        transactions with at most so many changes, or a part of one that has more; and whether there
        are others. Those that its rows contain are forgotten."""
        forgotten = self._run(
            f'DELETE FROM {self._own}held WHERE ledger = %s AND cursor < %s COLLATE "C"',
            [row.id, row.point],
        ).rowcount
        found = self._run(
            "SELECT relation, operation, key, before, after, unsent, committed_at, cursor,"
            f" ordinal, event_id FROM {self._own}held WHERE ledger = %s"
            " ORDER BY cursor, ordinal LIMIT %s",
            [row.id, most + 1],
        ).fetchall()
        has_more = len(found) > most
        if has_more:  # without the last transaction, unless there is no other one
            last = found[-1][7]
            found = [each for each in found if each[7] < last] or found[:-1]
        if found:
            self._run(
                f"DELETE FROM {self._own}held WHERE ledger = %s AND (cursor, ordinal) <= (%s, %s)",
                [row.id, *found[-1][7:9]],
            )
        self._count_held(row.id, -forgotten - len(found))
        taken = [
            (SourceRelation.of(orjson.loads(document)), [LineChange(*each[1:]) for each in same])
            for document, same in groupby(found, key=itemgetter(0))
        ]
        return taken, has_more

    def _count_held(self, id: int, more: int) -> None:
        self._run(f"UPDATE {self._own}ledger SET held = held + %s WHERE id = %s", [more, id])

    def save(self, row: LedgerRow) -> None:
        """Stores a row that was locked, but for its columns."""
        self._run(
            f"UPDATE {self._own}ledger SET state = %(state)s, resumes = %(resumes)s,"
            " reason = %(reason)s, detail = %(detail)s, place = %(place)s, point = %(point)s,"
            " last_point = %(last_point)s, is_ours = %(is_ours)s, is_again = %(is_again)s,"
            " losses = %(losses)s,"
            " since = CASE WHEN state = %(state)s THEN since ELSE CURRENT_TIMESTAMP END"
            " WHERE id = %(id)s",
            {**asdict(row), "place": str(row.place or "")},
        )

    def load_anew(self, row: LedgerRow) -> None:
        """The table is loaded from its beginning, instead of the rows that are there. Changes that
        are held are before the point of the rows that come."""
        self.save(replace(row.begun_anew(), is_ours=True))
        self.forget([row.id])

    def known(self, ids: Iterable[int]) -> Mapping[int, Mapping[str, str]]:
        """The documents of these tables, by the names of the source's."""
        found: dict[int, dict[str, str]] = {id: {} for id in ids}
        query = f"SELECT ledger, source, document FROM {self._own}known WHERE ledger = ANY (%s)"
        for id, source, document in self._run(query, [[*found]]).fetchall():
            found[id][source] = document
        return found

    def keep_known(self, id: int, documents: Mapping[str, str]) -> None:
        """From now on rows and changes of a table are of these."""
        self._run(f"DELETE FROM {self._own}known WHERE ledger = %s", [id])
        rows = ((id, source, document) for source, document in documents.items())
        self._insert("known", ("ledger", "source", "document"), rows)

    def columns(self, id: int) -> KnownColumns:
        """The source's columns when changes of a table were applied last; none before the first."""
        found = self._run(f"SELECT columns FROM {self._own}ledger WHERE id = %s", [id])
        return KnownColumns.parse(found.fetchone()[0])

    def keep_columns(self, id: int, known: KnownColumns) -> None:
        """Changes of a table with these columns are applied."""
        self._run(f"UPDATE {self._own}ledger SET columns = %s WHERE id = %s", [known.to_json(), id])

    def rename_column(self, target: str, names: tuple[str, str]) -> None:
        """A column of a target has another name (old, new): for all sources that it has rows of."""
        for id, known in self._sharing(target):
            self.keep_columns(id, known.renamed(*names))

    def is_made(self, target: str) -> bool:
        return any(known.is_made for _, known in self._sharing(target))

    def _sharing(self, target: str) -> Sequence[tuple[int, KnownColumns]]:
        found = self._run(
            f"SELECT id, columns FROM {self._own}ledger WHERE target = %s ORDER BY id", [target]
        )
        return [(id, KnownColumns.parse(text)) for id, text in found.fetchall()]

    def load_beside(self, row: LedgerRow, sources: Iterable[str]) -> None:
        """All that the table has besides these sources is loaded, into the rows that are there."""
        self.save(row.become("loading"))
        names = "ledger", "source", "number", "part", "identity", "is_done"
        self._insert("loading", names, ((row.id, each, 0, "[]", "", True) for each in sources))

    def kept(self, id: int) -> Collection[str]:
        """The sources whose rows are there already, of a table that is loading."""
        return {part.source for part in self.parts(id) if not part.identity}

    def parts(self, id: int) -> Sequence[LoadPart]:
        found = self._run(
            f"SELECT source, number, part, identity, is_done, rows FROM {self._own}loading"
            " WHERE ledger = %s ORDER BY source, number",
            [id],
        )
        return [LoadPart(*row) for row in found.fetchall()]

    def plan(self, id: int, source: str, identity: str, parts: Sequence[str]) -> None:
        """The parts of one of its sources, instead of those of before."""
        self._run(f"DELETE FROM {self._own}loading WHERE ledger = %s AND source = %s", [id, source])
        names = "ledger", "source", "number", "part", "identity"
        rows = ((id, source, number, part, identity) for number, part in enumerate(parts))
        self._insert("loading", names, rows)

    def mark(self, id: int, part: LoadPart) -> bool:
        """The part is done, unless it is already, or was discarded: then False."""
        done = self._run(
            f"UPDATE {self._own}loading SET is_done = true WHERE NOT is_done AND ledger = %s"
            " AND source = %s AND number = %s AND identity = %s",
            [id, part.source, part.number, part.identity],
        )
        return bool(done.rowcount)

    def count_rows(self, id: int, part: LoadPart) -> None:
        """So many rows were in a part that is done."""
        self._run(
            f"UPDATE {self._own}loading SET rows = %s"
            " WHERE ledger = %s AND source = %s AND number = %s",
            [part.rows, id, part.source, part.number],
        )

    def forget_parts(self, id: int) -> None:
        """All parts are done."""
        self._run(f"DELETE FROM {self._own}loading WHERE ledger = %s", [id])

    def keep_letters(self, letters: Iterable[tuple[str, str]]) -> None:
        """Stores dead letters (event id, text) that are new."""
        for letter in letters:
            self._run(
                f"INSERT INTO {self._own}dead_letter (event_id, letter) VALUES (%s, %s)"
                " ON CONFLICT DO NOTHING",
                letter,
            )

    def refused_keys(self, id: int) -> set[str]:
        """The keys of a table that have, or had, dead letters."""
        found = self._run(f"SELECT key FROM {self._own}refused WHERE ledger = %s", [id])
        return {key for (key,) in found.fetchall()}

    def refuse_keys(self, id: int, keys: Iterable[str]) -> None:
        """Changes of these keys are dead letters."""
        insert = f"INSERT INTO {self._own}refused (ledger, key) VALUES (%s, %s)"
        for key in keys:
            self._run(f"{insert} ON CONFLICT DO NOTHING", [id, key])

    def pass_keys(self, id: int, places: Mapping[str, Place]) -> None:
        """Changes of keys with dead letters were applied, up to these places."""
        update = f"UPDATE {self._own}refused SET place = %s WHERE ledger = %s AND key = %s"
        for key, place in places.items():
            self._run(update, [str(place), id, key])

    def last_of(self, id: int, key: str | None) -> Place | None:
        """The place of the last change of a key that was applied, as far as it is known: where that
        has had no dead letter, of its table."""
        query = f"SELECT place FROM {self._own}refused WHERE ledger = %s AND key = %s"
        if (found := self._run(query, [id, key]).fetchone()) is None:
            found = self._run(f"SELECT place FROM {self._own}ledger WHERE id = %s", [id]).fetchone()
        return Place.parse(found[0]) if found[0] else None

    def letters(self, first: int = 0) -> Iterator[tuple[int, datetime, str]]:
        """Dead letters (number, when it was stored, text) from a number on, oldest first."""
        query = (
            f"SELECT id, stored_at, letter FROM {self._own}dead_letter WHERE id >= %s"
            " ORDER BY id LIMIT 100"
        )
        while rows := self._run(query, [first]).fetchall():
            yield from rows
            first = rows[-1][0] + 1

    def hold_rows(self, id: int, relation: SourceRelation, rows: Sequence[LineChange]) -> None:
        """Keeps rows of a load, before all changes of their point."""
        self.lock([id])
        query = f"SELECT coalesce(min(ordinal), 0) FROM {self._own}held WHERE ledger = %s"
        first = min(self._run(query, [id]).fetchone()[0], 0) - len(rows)
        self.hold(id, relation, [
            row._replace(ordinal=number) for number, row in enumerate(rows, first)
        ])  # fmt: skip

    def forget_rows(self, id: int) -> None:
        """Forgets rows of loads that are held."""
        query = f"DELETE FROM {self._own}held WHERE ledger = %s AND ordinal < 0"
        self._count_held(id, -self._run(query, [id]).rowcount)

    def forget_letters(self, prefix: str) -> None:
        """Removes the dead letters whose event ids begin so."""
        self._run(
            f"DELETE FROM {self._own}dead_letter WHERE substr(event_id, 1, %s) = %s",
            [len(prefix), prefix],
        )

    def remove_letter(self, id: int) -> None:
        self._run(f"DELETE FROM {self._own}dead_letter WHERE id = %s", [id])

    def _insert(self, table: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        with self._cursor.copy(f"COPY {self._own}{table} ({', '.join(names)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def _run(self, statement: str, values: Any = None) -> Any:
        return self._cursor.execute(statement, values)
