"""Whether a target has the rows of a source's table, also while changes flow; and mending it.

A difference counts once it is there although the source's row did not change meanwhile and
everything up to the first look was written: what is on its way differs, too.

Keys are divided into buckets by their hash: that needs no order, which the collations of two
databases may not share, and reads each table once. Only keys of buckets that differ are compared
one by one. Values stay where they are: what is returned are keys and names of columns.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from psycopg import sql

from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.comparing import Difference, Verdict
from penstock.sinks.tables.fitness import taken, wrong_expressions
from penstock.sinks.tables.settings import MappedTable
from penstock.sinks.tables.source_table import relation_of
from penstock.tables.database import TableDatabase
from penstock.tables.fold import Merge
from penstock.tables.history import LAST
from penstock.tables.staged import META
from penstock.tables.staging import set_session

_ROUNDS = 5  # looks at rows that change all the time
BUCKETS = 1024
_TOGETHER = 32  # buckets whose keys are held at once
_SHOWN = 1000  # keys whose columns are compared at once

_SQL = sql.SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSide:
    """One of the two tables: `rows` is what may follow FROM. Its `key` and `columns` are names of
    the other side's, too; a row without a key is its own key. Methods raise psycopg's errors."""

    connection: Any
    rows: sql.Composable
    key: Sequence[str]
    columns: Sequence[str]

    def buckets(self) -> dict[int, tuple[int, int]]:
        """Of each bucket that has rows: how many, and the sum of their hashes."""
        found = self._run(
            _SQL("SELECT {}, count(*), sum({}) FROM {} GROUP BY 1").format(
                self._bucket, _hash(self._row), self.rows
            )
        )
        return {bucket: (count, int(total)) for bucket, count, total in found}

    def only(self, keys: Sequence[str]) -> "CompareSide":
        """The same with the rows of these keys."""
        rows = _SQL("(SELECT * FROM {} WHERE {} = ANY ({})) AS _o").format(
            self.rows, self._key, sql.Literal(list(keys))
        )
        return replace(self, rows=rows)

    def keys(self, buckets: Sequence[int] = range(BUCKETS)) -> dict[str, tuple[int, int]]:
        """Of each key in these buckets: how many rows, and the sum of their hashes."""
        found = self._run(
            _SQL("SELECT {}, count(*), sum({}) FROM {} WHERE {} = ANY ({}) GROUP BY 1").format(
                self._key, _hash(self._row), self.rows, self._bucket, sql.Literal(list(buckets))
            )
        )
        return {key: (count, int(total)) for key, count, total in found}

    def hashes(self, keys: Sequence[str]) -> dict[str, Sequence[int]]:
        """Of each of these keys: the hash of each column."""
        each = _SQL(", ").join(_hash(row_text([name])) for name in self.columns)
        found = self._run(
            _SQL("SELECT {}, {} FROM {} WHERE {} = ANY ({})").format(
                self._key, each, self.rows, self._key, sql.Literal(list(keys))
            )
        )
        return {key: values for key, *values in found}

    @property
    def _row(self) -> sql.Composable:
        return row_text(self.columns)

    @property
    def _key(self) -> sql.Composable:
        return row_text(self.key or self.columns)

    @property
    def _bucket(self) -> sql.Composable:
        return _SQL("({} & {})").format(_hash(self._key), sql.Literal(BUCKETS - 1))

    def _run(self, statement: sql.Composable) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.connection.execute(statement).fetchall()
        return rows


def row_text(names: Sequence[str]) -> sql.Composable:
    """A row as text, by the output functions of its types."""
    return _SQL("ROW({})::text").format(_SQL(", ").join(map(sql.Identifier, names)))


def _hash(text: sql.Composable) -> sql.Composable:
    return _SQL('hashtextextended({} COLLATE "C", 0)').format(text)


def differences(
    source: CompareSide, target: CompareSide, *, ignores_extra: bool = False
) -> Iterator[Difference]:
    """The keys whose rows differ; with `ignores_extra` not those that only the target has."""
    here, there = source.buckets(), target.buckets()
    wrong = sorted(bucket for bucket in here.keys() | there.keys()
                   if here.get(bucket) != there.get(bucket))  # fmt: skip
    for start in range(0, len(wrong), _TOGETHER):
        some = wrong[start : start + _TOGETHER]
        mine, theirs = source.keys(some), target.keys(some)
        changed = []
        for key in sorted(mine.keys() | theirs.keys()):
            if key not in theirs:
                yield Difference(key, "missing")
            elif key not in mine:
                if not ignores_extra:
                    yield Difference(key, "extra")
            elif mine[key] != theirs[key]:
                changed.append(key)
        yield from _changed(source, target, changed)


def _changed(source: CompareSide, target: CompareSide, keys: Sequence[str]) -> Iterator[Difference]:
    for start in range(0, len(keys), _SHOWN):
        some = keys[start : start + _SHOWN]
        here, there = source.hashes(some), target.hashes(some)
        for key in some:
            pairs = zip(source.columns, here.get(key, ()), there.get(key, ()), strict=False)
            names = tuple(name for name, mine, theirs in pairs if mine != theirs)
            yield Difference(key, "changed", names)


class TableComparison:
    """Compares one table of one source with its target, over two connections. `schemas`: of the
    table, or of all partitions that go into the target. `settle` returns once everything that the
    source has now was written, or can't be waited for."""

    def __init__(
        self,
        source: Any,
        target: Any,
        *,
        table: MappedTable,
        schemas: Sequence[TableSchema],
        sid: str,
        settle: Callable[[], None],
        database: TableDatabase,
    ) -> None:
        set_session(source)
        self._source, self._target, self._table = source, target, table
        self._database = database
        self._sid, self._settle = sid, settle
        schema, names = schemas[0], [each["name"] for each in schemas[0].columns]
        columns = _SQL(", ").join(map(sql.Identifier, names))
        self._from = _SQL("({}) AS _f").format(
            _SQL(" UNION ALL ").join(
                _SQL("SELECT {} FROM {}").format(columns, sql.Identifier(each.schema, each.table))
                for each in schemas
            )
        )
        relation = relation_of(schema)
        if (found := database.find(target, table.target_schema, table.target)) is None:
            raise SettingsError(
                f"there is no table {table.target_schema}.{table.target} at the destination",
                "postgres",
                hint="start the pipeline first, or create it",
            )
        self._staged = database.staged(
            relation, found, table.mapping(sid, found), periods=table.periods
        )
        wrong = wrong_expressions(target.cursor(), database, self._staged)
        for problem in chain(taken(table, relation, found.columns), wrong):
            raise SettingsError(
                f"{table.source}: {problem.message}", problem.code, hint=problem.hint
            )
        self._mapping = self._staged.mapping
        order = found.columns if self._mapping.computed else relation.names
        self._names = [name for name in order if name in self._staged.written]

    def run(self) -> Verdict:
        """Compares them. Raises psycopg's errors."""
        target = self._target_side()
        with self._source_side() as source:
            found = set(self._differences(source, target))
        certain: list[Difference] = []
        for _ in range(_ROUNDS):
            if not found:
                break
            keys = [each.key for each in found]
            with self._source_side() as source:
                before = source.only(keys).keys()
            self._settle()
            with self._source_side() as source:
                # The target first: what changes meanwhile shows at the source.
                found = set(self._differences(source.only(keys), target.only(keys)))
                now = source.only(keys).keys()
            certain += [each for each in found if before.get(each.key) == now.get(each.key)]
            found -= set(certain)
        return Verdict(differences=sorted(certain), unsettled=len(found))

    def repair(self, found: Sequence[Difference]) -> None:
        """Gives the rows with these keys what the source has of them now. The table's worker waits
        meanwhile: what it writes later is newer, or the same. Raises SettingsError, and psycopg's
        errors."""
        staged = self._staged
        if self._mapping.has_expressions or not staged.key or self._table.periods is not None:
            raise SettingsError(
                f"{self._table.source} has `set`, `filter` or no key, or is a history: rows"
                " cannot be mended", "postgres", hint="penstock reload loads it anew",
            )  # fmt: skip
        keys = [each.key for each in found]
        with self._target.transaction():
            cursor = self._target.cursor()
            ledger = self._database.ledger(cursor)
            tables = ledger.tables((self._table.backend, self._sid))
            ledger.lock(each.row.id for each in tables if each.table == self._table.source)
            extra = self._target_side().only([one.key for one in found if one.kind == "extra"])
            cursor.execute(
                _SQL("DELETE FROM {} WHERE (ctid, tableoid) IN (SELECT ctid, tableoid FROM {})")
                .format(staged.target, extra.rows)
            )  # fmt: skip
            staged.make(cursor)
            staged.apply(cursor, [Merge(whole=list(self._lines(keys)))])

    def _differences(self, source: CompareSide, target: CompareSide) -> Iterator[Difference]:
        return differences(source, target, ignores_extra=self._table.options.type == "append")

    def _target_side(self) -> CompareSide:
        only = {**self._mapping.own}
        if self._table.periods is not None:
            only[self._table.periods.end] = LAST
        conditions = [
            _SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in only.items()
        ]
        return CompareSide(
            connection=self._target, key=self._staged.key, columns=self._names,
            rows=_SQL("(SELECT *, ctid, tableoid FROM {} WHERE {}) AS _t").format(
                self._staged.target, _SQL(" AND ").join([_SQL("true"), *conditions])
            ),
        )  # fmt: skip

    @contextmanager
    def _source_side(self) -> Iterator[CompareSide]:
        """The source's rows as they should be at the target: expressions are the target's, so its
        server makes them, of rows that are copied there for the time of the block."""
        rows: sql.Composable = self._from
        if not self._mapping.has_expressions:
            yield CompareSide(
                connection=self._source, rows=rows, key=self._staged.key, columns=self._names
            )
            return
        with self._target.transaction():
            cursor = self._target.cursor()
            self._staged.make(cursor)
            self._staged.stage(cursor, self._lines(None))
            yield CompareSide(
                connection=self._target, rows=self._staged.made_rows(), key=self._staged.key,
                columns=self._names,
            )  # fmt: skip

    def _lines(self, keys: Sequence[str] | None) -> Iterator[str]:
        """Rows of the source as lines of COPY: those with these keys, or all."""
        names = _SQL(", ").join(map(sql.Identifier, self._staged.relation.names))
        which: sql.Composable = _SQL("")
        if keys is not None:
            which = _SQL(" WHERE {} = ANY ({})").format(row_text(self._staged.key), list(keys))
        rows: sql.Composable = self._from
        if self._mapping.has_expressions:
            rows = _SQL("(SELECT 'READ' AS {}, NULL AS {}, * FROM {}) AS _s").format(
                *(sql.Identifier(column.name) for column in META), rows
            )
        statement = _SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(names, rows, which)
        with self._source.cursor().copy(statement) as copy:
            rest = b""
            for data in copy:
                *lines, rest = (rest + bytes(data)).split(b"\n")
                yield from (line.decode() for line in lines)
