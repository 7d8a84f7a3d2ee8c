"""Lines of a source's table -> versions of its rows in PostgreSQL (slowly changing dimension 2).

A transaction of the source that changed a key makes one version of it: the last state. The target
has all that the next batch needs: what time a key's last version began or ended, and its values. So
changes may be divided into batches between any two transactions.

An event of a key is a version, or a deletion of one. It has the time of its commit, but at least a
microsecond after the event before; the first one is in 1900.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from psycopg import sql
from pydantic import Field, model_validator

from penstock.model.settings import Settings
from penstock.tables.fold import EMPTYING, LINES, by_unsent
from penstock.tables.lines import NULL, UNSENT, LineChange, SourceRelation
from penstock.tables.staged import (
    Destination,
    RowMapping,
    UnsentValue,
    joined_names,
    mentions,
    same,
)
from penstock.tables.staging import StagedTable, copy_lines

FIRST, LAST = "1900-01-01Z", "9999-01-01Z"


class HistoryColumns(Settings):
    """What the columns of a history are called."""

    start: str = Field(default="kvsz_start", min_length=1)
    """When a version began."""
    end: str = Field(default="kvsz_end", min_length=1)
    """When it ended."""
    deleted: str = Field(default="kvsz_deleted", min_length=1)
    """Whether a delete ended it."""

    @property
    def kinds(self) -> dict[str, str]:
        """Their types and defaults; rows that nothing else says more of are first versions."""
        return {
            self.start: f"timestamptz NOT NULL DEFAULT '{FIRST}'",
            self.end: f"timestamptz NOT NULL DEFAULT '{LAST}'",
            self.deleted: "boolean NOT NULL DEFAULT false",
        }

    @model_validator(mode="after")
    def _are_three(self) -> "HistoryColumns":
        if len(self.kinds) < 3:
            raise ValueError("start, end and deleted need three names")
        return self


class Version(NamedTuple):
    """The row of a key at the end of a transaction (by its number), or its deletion (no `line`).
    `origin`: the key under which the target has the values that the line lacks."""

    transaction: int
    at: str
    key: str
    line: str | None
    origin: str


class StagedVersions(NamedTuple):
    """Versions as lines: those with all of their values, and the others by what they lack.
    `emptied`: they are of one transaction, and all other keys are deleted at this time."""

    whole: Sequence[str]
    parts: Mapping[tuple[int, ...], Sequence[str]]
    emptied: str


@dataclass(slots=True)
class VersionFold:
    """Changes of a table in their order -> its versions. `known`: the last line of each key, and
    its origin; of keys that are gone, too, as a new row has all values."""

    key: tuple[int, ...]
    known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def versions(self, changes: Iterable[LineChange]) -> Iterator[tuple[Sequence[Version], str]]:
        """The versions, with those of a transaction that empties the table apart, and when."""
        waiting: list[Version] = []
        for number, (_, together) in enumerate(groupby(changes, attrgetter("cursor"))):
            found, emptied = self._transaction(number, together)
            if emptied:
                yield waiting, ""
                yield found, emptied
                waiting = []
            else:
                waiting += found
        yield waiting, ""

    def _transaction(self, number: int, changes: Iterable[LineChange]) -> tuple[list[Version], str]:
        found: dict[str, Version] = {}
        at = emptied = ""
        for change in changes:
            at = at or _time(change.committed_at)
            if change.operation in EMPTYING:
                found, emptied = {}, at
            elif change.operation == "DELETE":
                key = str(change.key)
                found[key] = Version(number, at, key, None, key)
            elif change.after is not None:
                key, old = str(change.key), change.old_key(self.key)
                line, origin = change.after, old
                if change.has_unsent:
                    before, origin = self.known.get(old, (None, old))
                    line = LINES.completed(line, before, change.before)
                if old != key:
                    found[old] = Version(number, at, old, None, old)
                self.known[key] = line, origin
                found[key] = Version(number, at, key, line, origin)
        return [*found.values()], emptied


class StagedHistory(StagedTable):
    """Applies versions to one destination, in the transaction of a cursor; see `StagedTable`."""

    takes_lines = False

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int,
        periods: HistoryColumns,
    ) -> None:  # fmt: skip
        super().__init__(relation, destination, mapping, number)
        self.written -= periods.kinds.keys()
        self.key = tuple(name for name in self.key if name not in periods.kinds)
        self._periods = periods
        self._old = [f"__old_{number}" for number in range(len(self._key_names))]
        self._staged = [*_META, *self.relation.names]

    @property
    def unique(self) -> Sequence[str]:
        """See `StagedTable`: several versions have one key."""
        return [*super().unique, self._periods.start]

    @property
    def fixed(self) -> Mapping[str, str]:
        """See `StagedTable`: rows that are loaded are first versions."""
        periods = self._periods
        return {**super().fixed, periods.start: FIRST, periods.end: LAST, periods.deleted: "f"}

    @property
    def lacks(self) -> str:
        """What a history cannot be without; empty for nothing."""
        if not self.key:
            return "a history needs a key, and the source's table has none"
        missing = sorted(self._periods.kinds.keys() - self.destination.columns.keys())
        return f"a history needs a column {', '.join(missing)}" if missing else ""

    def has_open_index(self, connection: Any) -> bool:
        """Whether open versions have an index of their own. Raises psycopg's errors."""
        found = connection.execute(_OPEN_INDEX, [
            self.target.as_string(None), f"%{self._periods.end}%=%{LAST[:-1]}%",
        ])  # fmt: skip
        return bool(found.fetchone()[0])

    @property
    def open_index(self) -> sql.Composable:
        found, (*key, _) = self.destination, self.unique
        return open_index(found.schema, found.table, key, self._periods)

    def make(self, cursor: Any) -> None:
        """Makes the temporary tables: versions, and those that lack values, with their origins."""
        kinds = self.kinds(cursor)
        old = {old: kinds[name] for old, name in zip(self._old, self._key_names, strict=True)}
        self._make_temporary(cursor, self._rows, _META | kinds)
        self._make_temporary(cursor, self._keys, _META | kinds | old)

    def form(self, *, merges: bool) -> tuple[Sequence[str], bytes]:
        columns, prefix = super().form(merges=merges)
        return columns, f"0\tU\t{datetime.now(UTC)}\t".encode() + prefix if merges else prefix

    def load(self, cursor: Any, pieces: Iterable[bytes], *, merges: bool) -> int:
        """See `StagedTable`. Where it `merges`, these are all rows: versions of others end, and
        rows that differ from their open version have a new one."""
        if not merges:
            return super().load(cursor, pieces, merges=False)
        count = self._copy_pieces(cursor, self._rows, self._staged, pieces)
        cursor.execute(_SQL("ANALYZE {}").format(self._rows))
        self._empty(cursor, datetime.now(UTC).isoformat())
        cursor.execute("SET LOCAL enable_hashjoin = on")
        cursor.execute(
            self._sql(
                "DELETE FROM {rows} AS _s USING (SELECT ctid AS _place, {selected},"
                " ROW({made})::text AS _line FROM {rows} WHERE {filtered}) AS _k, {target} AS _t"
                " WHERE _s.ctid = _k._place AND {same} AND _t.{end} = {last}{mine}"
                " AND ROW({own})::text = _k._line",
                selected=self._selected(self.key), made=self._selected_plain(),
                filtered=self._filtered, same=same(self.key, "_t", "_k"),
                own=_SQL(", ").join(sql.Identifier("_t", name) for name in sorted(self.written)),
            )
        )  # fmt: skip
        cursor.execute("SET LOCAL enable_hashjoin = off")
        cursor.execute(self._add)
        return count

    def plan(
        self, changes: Iterable[LineChange], *, keeps: bool = False
    ) -> Sequence[StagedVersions]:
        found = []
        for versions, emptied in VersionFold(self.relation.key).versions(changes):
            whole, parts = [], []
            for each in versions:
                line = self._deleted(each.key) if each.line is None else each.line
                line = f"{each.transaction}\t{'D' if each.line is None else 'U'}\t{each.at}\t{line}"
                if UNSENT in line and UNSENT in line.split("\t"):
                    parts.append(f"{line}\t{each.origin}")
                else:
                    whole.append(line)
            if versions or emptied:
                found.append(StagedVersions(whole, by_unsent(parts), emptied))
        return found

    def apply(self, cursor: Any, steps: Sequence[StagedVersions]) -> None:
        for step in steps:
            cursor.execute(_SQL("TRUNCATE {}, {}").format(self._rows, self._keys))
            self._stage_versions(cursor, step)
            if step.emptied:
                self._empty(cursor, step.emptied)
            cursor.execute(self._add)

    def _stage_versions(self, cursor: Any, step: StagedVersions) -> None:
        if step.whole:
            copy_lines(cursor, self._rows, self._staged, "%s\n", step.whole)
        for number, (unsent, lines) in enumerate(step.parts.items()):
            self.refuse_unsent(self._staged[each] for each in unsent)
            if number:
                cursor.execute(_SQL("TRUNCATE {}").format(self._keys))
            copy_lines(cursor, self._keys, [*self._staged, *self._old], "%s\n", lines)
            cursor.execute(self._complete({self._staged[each] for each in unsent}))
        if step.parts and cursor.execute(self._lost).fetchone()[0]:
            raise UnsentValue(
                "a row lacks a value that was not sent, and there is no version before it", "tables"
            )

    def _deleted(self, key: str) -> str:
        cells = [NULL] * len(self.relation.columns)
        for number, cell in zip(self.relation.key, key.split("\t"), strict=True):
            cells[number] = cell
        return "\t".join(cells)

    def _empty(self, cursor: Any, at: str) -> None:
        """Ends all versions but those of staged keys."""
        cursor.execute("SET LOCAL enable_hashjoin = on")
        cursor.execute(
            self._sql(
                "UPDATE {target} AS _t SET {end} = greatest({at}, _t.{start} + {tick}),"
                " {deleted} = true WHERE _t.{end} = {last}{mine} AND NOT EXISTS"
                " (SELECT FROM (SELECT {selected} FROM {rows}) AS _k WHERE {same})",
                at=sql.Literal(at), selected=self._selected(self.key),
                same=same(self.key, "_t", "_k"),
            )
        )  # fmt: skip
        cursor.execute("SET LOCAL enable_hashjoin = off")

    def _complete(self, unsent: set[str]) -> sql.Composable:
        """Stages versions with the values of the open versions of their origins."""
        columns = self.kept
        values = [
            sql.Identifier("_t", columns[name])
            if name in unsent and name in columns
            else sql.Identifier("_p", name)
            for name in self.relation.names
        ]
        old = [
            _SQL("_p.{} AS {}").format(sql.Identifier(old), sql.Identifier(name))
            for old, name in zip(self._old, self._key_names, strict=True)
        ]
        return self._sql(
            "INSERT INTO {rows} ({staged}) SELECT _p.__transaction,"
            " CASE WHEN _t.{end} = {last} THEN 'U' ELSE {lost} END, _p.__at, {values}"
            " FROM {keys} AS _p"
            " CROSS JOIN LATERAL (SELECT {selected} FROM (SELECT {old}) AS _o) AS _k"
            " LEFT JOIN LATERAL (SELECT * FROM {target} AS _t WHERE {same}{mine}"
            " ORDER BY {start} DESC LIMIT 1) AS _t ON _t.{end} = {last}",
            staged=joined_names(self._staged), values=_SQL(", ").join(values),
            selected=self._selected(self.key), old=_SQL(", ").join(old),
            same=same(self.key, "_t", "_k"), lost=sql.Literal(self._fate(unsent)),
        )  # fmt: skip

    def _fate(self, unsent: set[str]) -> str:
        """What a version is that lacks these values, of a key without an open version."""
        condition = self.mapping.filter
        used = {name for name in self.relation.names if mentions(condition, name)}
        if condition and used <= unsent:
            return "D"  # what decides has not changed: the row was outside, and is
        return "X" if used & unsent else "L"

    @property
    def _lost(self) -> sql.Composable:
        """Whether the filter lets in a version with a value that nothing knows."""
        return self._sql(
            "SELECT EXISTS (SELECT FROM (SELECT * FROM {rows} WHERE {filtered}) AS _r"
            " WHERE _r.__operation = 'L')"
            " OR EXISTS (SELECT FROM {rows} AS _r WHERE _r.__operation = 'X')",
            filtered=self._filtered,
        )

    @cached_property
    def _add(self) -> sql.Composed:
        """Ends the open version of each staged key, and adds the staged versions.

        Per key: the target's last version is looked up once, for the first event (`__base`: the
        time of the event before); deletions of what is not there are left out; then come times.
        """
        keys = [f"__key_{number}" for number in range(len(self.key))]
        values = [
            _SQL("{} AS {}").format(self._value(name), sql.Identifier(key))
            for key, name in zip(keys, self.key, strict=True)
        ]
        sid = [*self.mapping.own]
        values += [_SQL("{}::text AS __sid").format(self._value(name)) for name in sid]
        names = [*self.written, *sid]
        return self._sql(
            _ADD, values=_SQL(", ").join(values), key=joined_names(keys),
            gone=_SQL("({}) IS NOT TRUE").format(sql.SQL(self.mapping.filter or "true")),
            of_row=_matches(self.key, keys, "_r"), of_version=_matches(
                [*self.key, *sid], [*keys, *(["__sid"] if sid else [])], "_v"
            ),
            names=joined_names([*names, *self._periods.kinds]), selected=self._selected(names),
        )  # fmt: skip

    def _sql(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        own = {name: sql.Identifier(getattr(self._periods, name)) for name in _PERIODS}
        return _SQL(statement).format(
            target=self.target, rows=self._rows, keys=self._keys, mine=self._mine,
            first=_FIRST, last=_LAST, tick=_TICK, **own, **parts,
        )  # fmt: skip


_SQL = sql.SQL
_PERIODS = ("start", "end", "deleted")
_FIRST, _LAST = _SQL(f"timestamptz '{FIRST}'"), _SQL(f"timestamptz '{LAST}'")
_TICK = _SQL("interval '1 us'")
_OPEN_INDEX = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = to_regclass(%s)
               AND i.indisvalid AND pg_get_expr(i.indpred, i.indrelid) LIKE %s)
"""
# Of a staged version: U, D for a deletion, L for one that lacks values, X where the filter needs
# them.
_META = {"__transaction": "int", "__operation": "text", "__at": "timestamptz"}
# What a source's columns cannot be called.
OWN_NAMES = {*_META, "__time", "__next", "__ends", "__place", *(f"__old_{n}" for n in range(32))}
_ADD = """
WITH _v AS MATERIALIZED (
  SELECT *, lead(__time) OVER _w AS __next, lead(__gone) OVER _w AS __ends FROM (
    SELECT *, greatest(
        max(CASE WHEN __number = 1 AND __base IS NULL THEN {first} ELSE __at END
            - __number * {tick}) OVER _w,
        __base) + __number * {tick} AS __time FROM (
      SELECT *, row_number() OVER _w AS __number FROM (
        SELECT *, first_value(CASE WHEN __until = {last} THEN __since ELSE __until END) OVER _w
               AS __base FROM (
          SELECT *, row_number() OVER _w = 1 AS __first, lag(__gone) OVER _w AS __was FROM (
            SELECT DISTINCT ON ({key}, __transaction) * FROM (
              SELECT ctid AS __place, __transaction, __at,
                     CASE WHEN __operation = 'D' THEN true ELSE {gone} END AS __gone, {values}
              FROM {rows}) AS _r
            ORDER BY {key}, __transaction, __gone) AS _r
          WINDOW _w AS (PARTITION BY {key} ORDER BY __transaction)) AS _r
        LEFT JOIN LATERAL (
          SELECT _t.{start} AS __since, _t.{end} AS __until FROM {target} AS _t
          WHERE _r.__first AND {of_row}{mine} ORDER BY _t.{start} DESC LIMIT 1) AS _l ON true
        WINDOW _w AS (PARTITION BY {key} ORDER BY __transaction)) AS _r
      WHERE NOT __gone OR CASE WHEN __first THEN __until = {last} ELSE NOT __was END
      WINDOW _w AS (PARTITION BY {key} ORDER BY __transaction)) AS _r
    WINDOW _w AS (PARTITION BY {key} ORDER BY __transaction)) AS _r
  WINDOW _w AS (PARTITION BY {key} ORDER BY __transaction)),
_ended AS (
  UPDATE {target} AS _t SET {end} = _v.__time, {deleted} = _v.__gone FROM _v
  WHERE _v.__until = {last} AND {of_version} AND _t.{start} = _v.__since RETURNING 1)
INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE
SELECT {selected}, __time, coalesce(__next, {last}), coalesce(__ends, false)
FROM (SELECT __place, __time, __next, __ends FROM _v WHERE NOT __gone) AS _v
JOIN {rows} AS _s ON _s.ctid = _v.__place WHERE (SELECT count(*) FROM _ended) >= 0
"""  # the count: versions end before new ones are there, as a unique index may ask for
# The UPDATE takes `sid` from _v: as a constant it is said to select one row by old statistics, and
# the whole source's rows are joined in the other order then.


def open_index(
    schema: str, table: str, key: Sequence[str], periods: HistoryColumns
) -> sql.Composed:
    """The statement that makes an index of a target's open versions; `key`: without the start."""
    return _SQL("CREATE INDEX ON {} ({}) WHERE {} = {}").format(
        sql.Identifier(schema, table), joined_names(key), sql.Identifier(periods.end), _LAST
    )


def _matches(key: Sequence[str], staged: Sequence[str], row: str) -> sql.Composable:
    return _SQL(" AND ").join(
        _SQL("_t.{} = {}.{}").format(*map(sql.Identifier, (name, row, own)))
        for name, own in zip(key, staged, strict=True)
    )


def _time(committed_at: int | None) -> str:
    if committed_at is None:
        return FIRST
    return datetime.fromtimestamp(committed_at / 1e6, UTC).isoformat()
