"""What a sink of tables may tell of a target: which of its rows are not those of the source.

A difference counts once it is there although the source's row did not change meanwhile and
everything up to the first look was written: what is on its way differs, too.

Keys are divided into buckets by their hash: that needs no order, which two databases may not share,
and reads each table once. Only keys of buckets that differ are compared one by one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol, runtime_checkable

from psycopg import sql

from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.fitness import taken, wrong_expressions
from penstock.sinks.tables.settings import MappedTable, TableSinkSettings
from penstock.sinks.tables.source_table import relation_of
from penstock.tables.database import TableDatabase
from penstock.tables.staged import META
from penstock.tables.staging import set_session

_ROUNDS = 5  # looks at rows that change all the time
BUCKETS = 1024
_TOGETHER = 32  # buckets whose keys are held at once
_SHOWN = 1000  # keys whose columns are compared at once

_SQL = sql.SQL


class Difference(NamedTuple):
    """A key whose row differs: `missing` in the target, `extra` there, or in these `columns`."""

    key: str
    kind: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The keys that differ; and of how many rows, which change, that could not be told."""

    differences: Sequence[Difference]
    unsettled: int = 0


class CompareSide(Protocol):
    """One of the two tables. Its `key` and `columns` are names of the other side's, too; a row
    without a key is its own key. Methods raise the driver's errors."""

    @property
    def columns(self) -> Sequence[str]: ...

    def buckets(self) -> dict[int, tuple[int, int]]:
        """Of each bucket that has rows: how many, and the sum of their hashes."""
        ...

    def only(self, keys: Sequence[str]) -> "CompareSide":
        """The same with the rows of these keys."""
        ...

    def keys(self, buckets: Sequence[int] = ...) -> dict[str, tuple[int, int]]:
        """Of each key in these buckets: how many rows, and the sum of their hashes."""
        ...

    def hashes(self, keys: Sequence[str]) -> dict[str, Sequence[int]]:
        """Of each of these keys: the hash of each column."""
        ...


@runtime_checkable
class ComparesTables(Protocol):
    """A sink that compares a target with the table of one source."""

    settings: TableSinkSettings

    def compare(
        self, source: Any, settle: Callable[[], None], *, table: MappedTable, sid: str,
        schemas: Sequence[TableSchema], repair: bool,
    ) -> Verdict:  # fmt: skip
        """Rows that differ get what the source has of them, if it may `repair`. `source`: a
        connection, and `settle` returns once what it has now was written, or can't be waited for.
        `schemas`: of the table, or of all its partitions. Raises Unavailable, SettingsError."""
        ...


def row_text(names: Sequence[str]) -> sql.Composable:
    """A row as text, by the output functions of its types."""
    return _SQL("ROW({})::text").format(_SQL(", ").join(map(sql.Identifier, names)))


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


def compare(
    made: "type[TableComparison]", database: TableDatabase, source: Any, *, repair: bool,
    **options: Any,
) -> Verdict:  # fmt: skip
    """See `ComparesTables`."""
    with closing(database.connect()) as target, database.translated("comparing"):
        comparison = made(source, target, database=database, **options)
        verdict = comparison.run()
        if repair and verdict.differences:
            comparison.repair(verdict.differences)
    shown = [each._replace(key=comparison.shown(each.key)) for each in verdict.differences]
    return replace(verdict, differences=shown)


class TableComparison(ABC):
    """Compares one table of one source with its target, over two connections. `schemas`: of the
    table, or of all partitions that go into the target. `settle` returns once everything that the
    source has now was written, or can't be waited for."""

    def __init__(
        self, source: Any, target: Any, *, table: MappedTable, schemas: Sequence[TableSchema],
        sid: str, settle: Callable[[], None], database: TableDatabase,
    ) -> None:  # fmt: skip
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
        relation, cursor = relation_of(schema), target.cursor()
        if (found := database.find(cursor, table.target_schema, table.target)) is None:
            raise SettingsError(
                f"there is no table {table.full_target} at the destination",
                "tables.target-missing", hint="start the pipeline first, or create it",
            )  # fmt: skip
        self._staged: Any = database.staged(
            relation, found, table.mapping(sid, found), periods=table.periods
        )
        wrong = wrong_expressions(cursor, database, self._staged)
        for problem in chain(taken(table, relation, found.columns), wrong):
            raise SettingsError(
                f"{table.source}: {problem.message}", problem.code, hint=problem.hint
            )
        self._mapping = self._staged.mapping
        order = found.columns if self._mapping.computed else relation.names
        self._names = [name for name in order if name in self._staged.written]

    def shown(self, key: str) -> str:
        """A key as people read it."""
        return key

    @abstractmethod
    def _target_side(self) -> CompareSide:
        """The rows of the target that are of the source."""

    @abstractmethod
    def _source_side(self) -> AbstractContextManager[CompareSide]:
        """The source's rows as they should be at the target."""

    @abstractmethod
    def _mend(self, cursor: Any, keys: Sequence[str], extra: Sequence[str]) -> None:
        """Gives rows what the source has of them; those of the keys `extra` go."""

    def run(self) -> Verdict:
        """Compares them. Raises the driver's errors."""
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
        meanwhile: what it writes later is newer, or the same. Raises SettingsError, and the
        driver's errors."""
        staged = self._staged
        if self._mapping.has_expressions or not staged.key or self._table.periods is not None:
            raise SettingsError(
                f"{self._table.source} has `set`, `filter` or no key, or is a history: rows"
                " cannot be mended", "tables", hint="penstock reload loads it anew",
            )  # fmt: skip
        keys = [each.key for each in found]
        with self._target.transaction():
            cursor = self._target.cursor()
            ledger = self._database.ledger(cursor)
            tables = ledger.tables((self._table.backend, self._sid))
            ledger.lock(each.row.id for each in tables if each.table == self._table.source)
            self._mend(cursor, keys, [one.key for one in found if one.kind == "extra"])

    def _differences(self, source: CompareSide, target: CompareSide) -> Iterator[Difference]:
        return differences(source, target, ignores_extra=self._table.options.type == "append")

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
