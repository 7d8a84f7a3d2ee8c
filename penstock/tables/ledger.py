"""What a destination knows of each source's table, in the transaction of its rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import orjson

from penstock.model.position import ROWS, Place
from penstock.tables.drift import KnownColumns
from penstock.tables.ledger_rows import (
    ROW,
    LedgerRow,
    LoadPart,
    SourceRecord,
    TableRecord,
    as_place,
)
from penstock.tables.ledger_tables import LedgerTables
from penstock.tables.letters import LetterRows
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.states import TRANSITIONS, TableEvent, TableState

_HELD = (
    "ledger", "cursor", "ordinal", "operation", "key", "before", "after", "unsent", "committed_at",
    "event_id", "relation",
)  # fmt: skip


class TargetLedger(LedgerTables):
    """Methods raise the driver's errors."""

    @property
    def letters(self) -> LetterRows:
        return LetterRows(self)

    def enter(self, source: tuple[str, str, str, str], target: str, event: TableEvent) -> LedgerRow:
        """The row of a table (backend, sid, schema, table), after the event, if it is new or had
        left. One that comes back with its target is loaded again. Where rows are of all partitions
        together, these decide instead of the event."""
        there = self._partitions(source, or_none=source[1] != ROWS)
        event = _entering(source[1], there, event)
        self.run(
            f'INSERT INTO {self.own}ledger AS l (backend, sid, "schema", "table", target, state)'
            ' VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (backend, sid, "schema", "table")'
            " DO UPDATE SET state = excluded.state, target = excluded.target,"
            " since = CURRENT_TIMESTAMP, place = '', point = '', last_point = '',"
            " is_ours = l.target = excluded.target AND (l.is_ours OR l.is_again),"
            " is_again = l.target = excluded.target AND l.is_again, columns ="
            " CASE WHEN l.target = excluded.target THEN l.columns ELSE excluded.columns END"
            " WHERE l.state = 'left'",
            [*source, target, TRANSITIONS[TableState.LEFT, event]],
        )
        found = self.run(
            f"SELECT {ROW} FROM {self.own}ledger"
            ' WHERE backend = %s AND sid = %s AND "schema" = %s AND "table" = %s',
            source,
        )
        row = LedgerRow.of(*found.fetchone())
        if there and source[1] == ROWS not in there and not row.has_rows:
            self.load_anew(row, is_ours=any(each.is_ours for each in there.values()))
        return row

    def _partitions(
        self, source: tuple[str, str, str, str], *, or_none: bool = True
    ) -> Mapping[str, LedgerRow]:
        """The rows of a table's partitions that are followed, parents first, and that of `ROWS`; or
        none without that."""
        where = """backend = %s AND "schema" = %s AND "table" = %s AND state <> 'left'"""
        names = [source[0], *source[2:]]
        together = f"EXISTS (SELECT 1 FROM {self.own}ledger WHERE {where} AND sid = %s)"
        found = self.run(
            f"SELECT sid, {ROW} FROM {self.own}ledger WHERE {where}"
            f"{f' AND {together}' * or_none} ORDER BY id",
            [*names, *([*names, ROWS] if or_none else [])],
        ).fetchall()
        return {row[0]: LedgerRow.of(*row[1:]) for row in found}

    def partitions(self, id: int) -> Mapping[str, LedgerRow]:
        """The rows of all partitions of a table, which is that of `ROWS` or one of them, where its
        rows are of all together; else none."""
        found = self.run(
            f'SELECT backend, sid, "schema", "table" FROM {self.own}ledger WHERE id = %s', [id]
        )
        return self._partitions(found.fetchone())

    def leave(
        self, backend: str, kept: Collection[tuple[str, str]], sids: Collection[str] | None,
        ours: Collection[str],
    ) -> set[int]:  # fmt: skip
        """Of these sources (`ours`) of a backend the tables but these (`schema.table`, target), and
        all of other sources than these (`sids`), are not followed any more; returns their numbers.
        Of such a source nothing is known any more."""
        followed = [
            each for each in self.tables()
            if each.backend == backend and each.sid in (*ours, ROWS) and each.row.is_followed
        ]  # fmt: skip
        rows = self.lock(each.row.id for each in followed)
        gone = {
            each.row.id for each in followed
            if (sids is not None and each.sid not in sids)
            or (each.table, each.target) not in kept
        }  # fmt: skip
        for id in gone:
            self.save(rows[id].begun_anew(TableEvent.LEFT))
        self.forget(gone)
        self.run(f"DELETE FROM {self.own}known WHERE ledger = ANY (%s)", [[*gone]])
        if sids is not None:
            query = f"DELETE FROM {self.own}source WHERE backend = %s AND sid = ANY (%s)"
            self.run(query, [backend, [*{*ours} - {*sids}]])
        return gone

    def forget(self, ids: Collection[int]) -> None:
        """Forgets the parts and the held changes of tables."""
        self.run(f"UPDATE {self.own}ledger SET held = 0 WHERE id = ANY (%s)", [[*ids]])
        for name in ("loading", "held"):
            self.run(f"DELETE FROM {self.own}{name} WHERE ledger = ANY (%s)", [[*ids]])

    def sources(self, backend: str, *, locks: bool = True) -> Mapping[str, SourceRecord]:
        """What is known of the sources of a backend, by sid; locked until the transaction's end."""
        query = f"SELECT sid, place, mark FROM {self.own}source WHERE backend = %s ORDER BY sid"
        found = self.run(f"{query}{' FOR UPDATE' * locks}", [backend])
        return {sid: SourceRecord(as_place(place), mark) for sid, place, mark in found.fetchall()}

    def keep_source(self, backend: str, sid: str, record: SourceRecord) -> None:
        """From now on this is known of a source."""
        self.run(
            f"INSERT INTO {self.own}source (backend, sid, place, mark) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (backend, sid)"
            " DO UPDATE SET place = excluded.place, mark = excluded.mark",
            [backend, sid, str(record.place or ""), record.mark],
        )

    def tables(self, source: tuple[str, str] | None = None) -> list[TableRecord]:
        """All tables, or those of a source (backend and sid); none without a ledger. Those of a
        backend with one name are together."""
        if not self.is_there():
            return []
        return self._records(
            "coalesce(backend = %s, true) AND coalesce(sid = %s, true)", source or (None, None)
        )

    def unsettled(self, targets: Collection[str]) -> list[TableRecord]:
        """Tables of these targets that are followed and not live."""
        where = "state NOT IN ('live', 'left') AND target = ANY (%s)"
        return self._records(where, [[*targets]])

    def _records(self, where: str, values: Sequence[Any]) -> list[TableRecord]:
        held = f"{self.own}held WHERE ledger = l.id"
        first = f"{held} ORDER BY cursor, ordinal LIMIT 1"
        found = self.run(
            f"""SELECT backend, sid, "schema" || '.' || "table", target, since, held,
            (SELECT cursor FROM {first}), (SELECT ordinal FROM {first}),
            (SELECT max(cursor) FROM {held}), {ROW} FROM {self.own}ledger AS l WHERE {where}
            ORDER BY backend, "schema" || '.' || "table", id""",
            values,
        )
        rows, sizes = found.fetchall(), self.sizes()
        return [
            TableRecord(LedgerRow.of(*row[9:]), *row[:9])._replace(
                size=tuple(sizes.get(row[3], {}).items())
            )
            for row in rows
        ]

    def sizes(self, *targets: str) -> Mapping[str, Mapping[str, Any]]:
        """By target (all, or these), see `LoadsTables.size`: after our last commit."""
        return {}

    def lock(self, ids: Iterable[int]) -> Mapping[int, LedgerRow]:
        """The rows, which nobody else changes until the transaction's end."""
        found = self.run(
            f"SELECT {ROW} FROM {self.own}ledger WHERE id = ANY (%s) ORDER BY id FOR UPDATE",
            [list(ids)],
        )
        return {row[0]: LedgerRow.of(*row) for row in found}

    def advance(self, places: Mapping[int, Place]) -> None:
        """Changes up to these places are in the targets."""
        self.run(
            f"UPDATE {self.own}ledger SET commits = commits + 1, place = CASE id"
            f"{' WHEN %s THEN %s' * len(places)} END WHERE id = ANY (%s)",
            [*chain.from_iterable((id, str(at)) for id, at in places.items()), [*places]],
        )

    def commits(self, ids: Iterable[int]) -> Mapping[int, int]:
        """How many these tables had."""
        found = self.run(f"SELECT id, commits FROM {self.own}ledger WHERE id = ANY (%s)", [[*ids]])
        return dict(found.fetchall())

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
        self.insert("held", _HELD, rows)
        self._count_held(id, len(changes))

    def take_held(
        self, row: LedgerRow, most: int
    ) -> tuple[Sequence[tuple[SourceRelation, list[LineChange]]], bool]:
        """Takes the first held changes of a table, by their relations, in their order: whole
        transactions with at most so many changes, or a part of one that has more; and whether there
        are others. Those that its rows contain are forgotten."""
        forgotten = self.run(
            f'DELETE FROM {self.own}held WHERE ledger = %s AND cursor < %s COLLATE "C"',
            [row.id, row.point],
        ).rowcount
        found = self.run(
            "SELECT relation, operation, key, before, after, unsent, committed_at, cursor,"
            f" ordinal, event_id FROM {self.own}held WHERE ledger = %s"
            " ORDER BY cursor, ordinal LIMIT %s",
            [row.id, most + 1],
        ).fetchall()
        has_more = len(found) > most
        if has_more:  # without the last transaction, unless there is no other one
            last = found[-1][7]
            found = [each for each in found if each[7] < last] or found[:-1]
        if found:
            self.run(
                f"DELETE FROM {self.own}held WHERE ledger = %s AND (cursor, ordinal) <= (%s, %s)",
                [row.id, *found[-1][7:9]],
            )
        self._count_held(row.id, -forgotten - len(found))
        taken = [
            (SourceRelation.of(orjson.loads(document)), [LineChange(*each[1:]) for each in same])
            for document, same in groupby(found, key=itemgetter(0))
        ]
        return taken, has_more

    def _count_held(self, id: int, more: int) -> None:
        self.run(f"UPDATE {self.own}ledger SET held = held + %s WHERE id = %s", [more, id])

    def save(self, row: LedgerRow) -> None:
        """Stores a row that was locked, but for its columns."""
        self.run(
            f"UPDATE {self.own}ledger SET state = %(state)s, resumes = %(resumes)s,"
            " reason = %(reason)s, detail = %(detail)s, place = %(place)s, point = %(point)s,"
            " last_point = %(last_point)s, is_ours = %(is_ours)s, is_again = %(is_again)s,"
            " losses = %(losses)s,"
            " since = CASE WHEN state = %(state)s THEN since ELSE CURRENT_TIMESTAMP END"
            " WHERE id = %(id)s",
            row.stored,
        )

    def load_anew(
        self, row: LedgerRow, *, is_ours: bool = True, is_comparable: bool = True
    ) -> None:
        """The table is loaded from its beginning, instead of the rows that are there, if they are
        ours. Changes that are held are before the point of the rows that come: of a snapshot that
        is not planned yet, `last_point` decides, if places of before are `is_comparable`. Where
        rows are of all partitions together, it is loaded anew for all of them."""
        if self._load_together(row, is_ours=is_ours):
            return
        last = "" if row.point or not is_comparable else row.last_point
        if is_comparable:
            query = f"SELECT max(cursor) FROM {self.own}held WHERE ledger = %s AND ordinal >= 0"
            last = max(last, self.run(query, [row.id]).fetchone()[0] or "")
        self.save(replace(row.begun_anew(), is_ours=is_ours, last_point=last))
        self.forget([row.id])

    def _load_together(self, row: LedgerRow, *, is_ours: bool) -> bool:
        """Has the rows of all partitions loaded anew, if they are of these together. Their changes
        have whole rows: what is held from now on is applied after rows that were read later."""
        found = {each.id: each for each in self.partitions(row.id).values()}
        for each in (found | {row.id: row}).values() if found else ():
            self.save(replace(each.begun_anew(), is_ours=is_ours))
        self.forget(found)
        return bool(found)

    def known(self, ids: Iterable[int]) -> Mapping[int, Mapping[str, str]]:
        """The documents of these tables, by the names of the source's."""
        found: dict[int, dict[str, str]] = {id: {} for id in ids}
        query = f"SELECT ledger, source, document FROM {self.own}known WHERE ledger = ANY (%s)"
        for id, source, document in self.run(query, [[*found]]).fetchall():
            found[id][source] = document
        return found

    def keep_known(self, id: int, documents: Mapping[str, str]) -> None:
        """From now on rows and changes of a table are of these."""
        self.run(f"DELETE FROM {self.own}known WHERE ledger = %s", [id])
        rows = ((id, source, document) for source, document in documents.items())
        self.insert("known", ("ledger", "source", "document"), rows)

    def columns(self, id: int) -> KnownColumns:
        """The source's columns when changes of a table were applied last; none before the first."""
        found = self.run(f"SELECT columns FROM {self.own}ledger WHERE id = %s", [id])
        return KnownColumns.parse(found.fetchone()[0])

    def keep_columns(self, id: int, known: KnownColumns) -> None:
        """Changes of a table with these columns are applied."""
        self.run(f"UPDATE {self.own}ledger SET columns = %s WHERE id = %s", [known.to_json(), id])

    def rename_column(self, target: str, names: tuple[str, str]) -> None:
        """A column of a target has another name (old, new): for all sources that it has rows of."""
        for id, known in self._sharing(target):
            self.keep_columns(id, known.renamed(*names))

    def is_made(self, target: str) -> bool:
        return any(known.is_made for _, known in self._sharing(target))

    def _sharing(self, target: str) -> Sequence[tuple[int, KnownColumns]]:
        found = self.run(
            f"SELECT id, columns FROM {self.own}ledger WHERE target = %s ORDER BY id", [target]
        )
        return [(id, KnownColumns.parse(text)) for id, text in found.fetchall()]

    def load_beside(self, row: LedgerRow, sources: Iterable[str]) -> None:
        """All that the table has besides these sources is loaded, into the rows that are there."""
        self.save(row.become(TableEvent.JOINED))
        names = "ledger", "source", "number", "part", "identity", "is_done"
        self.insert("loading", names, ((row.id, each, 0, "[]", "", True) for each in sources))

    def kept(self, id: int) -> Collection[str]:
        """The sources whose rows are there already, of a table that is loading."""
        return {part.source for part in self.parts(id) if not part.identity}

    def parts(self, id: int) -> Sequence[LoadPart]:
        found = self.run(
            f"SELECT source, number, part, identity, is_done, rows FROM {self.own}loading"
            " WHERE ledger = %s ORDER BY source, number",
            [id],
        )
        return [LoadPart(*row) for row in found.fetchall()]

    def plan(self, id: int, source: str, identity: str, parts: Sequence[str]) -> None:
        """The parts of one of its sources, instead of those of before."""
        self.run(f"DELETE FROM {self.own}loading WHERE ledger = %s AND source = %s", [id, source])
        names = "ledger", "source", "number", "part", "identity"
        rows = ((id, source, number, part, identity) for number, part in enumerate(parts))
        self.insert("loading", names, rows)

    def mark(self, id: int, part: LoadPart) -> bool:
        """The part is done, unless it is already, or was discarded: then False."""
        done = self.run(
            f"UPDATE {self.own}loading SET is_done = true WHERE NOT is_done AND ledger = %s"
            " AND source = %s AND number = %s AND identity = %s",
            [id, part.source, part.number, part.identity],
        )
        return bool(done.rowcount)

    def count_rows(self, id: int, part: LoadPart) -> None:
        """So many rows were in a part that is done."""
        self.run(
            f"UPDATE {self.own}loading SET rows = %s"
            " WHERE ledger = %s AND source = %s AND number = %s",
            [part.rows, id, part.source, part.number],
        )

    def forget_parts(self, id: int) -> None:
        """All parts are done."""
        self.run(f"DELETE FROM {self.own}loading WHERE ledger = %s", [id])

    def hold_rows(self, id: int, relation: SourceRelation, rows: Sequence[LineChange]) -> None:
        """Keeps rows of a load, before all changes of their point."""
        self.lock([id])
        query = f"SELECT coalesce(min(ordinal), 0) FROM {self.own}held WHERE ledger = %s"
        first = min(self.run(query, [id]).fetchone()[0], 0) - len(rows)
        self.hold(id, relation, [
            row._replace(ordinal=number) for number, row in enumerate(rows, first)
        ])  # fmt: skip

    def forget_rows(self, id: int) -> None:
        """Forgets rows of loads that are held."""
        query = f"DELETE FROM {self.own}held WHERE ledger = %s AND ordinal < 0"
        self._count_held(id, -self.run(query, [id]).rowcount)


def _entering(sid: str, there: Mapping[str, LedgerRow], event: TableEvent) -> TableEvent:
    """What happens to a partition that comes to these of a table: `event`, unless rows are of all
    together. Then those of a new one were held or loaded with those of its parents."""
    rows = there.get(ROWS)
    if sid == ROWS and there:
        are_loaded = all(each.has_rows for each in there.values())
        return TableEvent.FOLLOWED if are_loaded else TableEvent.AWAITED
    if rows is None or sid == ROWS:
        return event
    if not rows.has_rows:
        return TableEvent.AWAITED
    are_live = all(each.is_live for each in there.values())
    return TableEvent.FOLLOWED if are_live else TableEvent.EARLY
