"""Whether a target has the rows of a source's table: both servers hash their rows.

Values stay where they are: what is returned are keys and names of columns.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from penstock.sinks.tables.comparing import BUCKETS, TableComparison, row_text
from penstock.tables.fold import Merge
from penstock.tables.history import LAST

_SQL = sql.SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSide:
    """See `CompareSide`: `rows` is what may follow FROM."""

    connection: Any
    rows: sql.Composable
    key: Sequence[str]
    columns: Sequence[str]

    def buckets(self) -> dict[int, tuple[int, int]]:
        found = self._run(
            _SQL("SELECT {}, count(*), sum({}) FROM {} GROUP BY 1").format(
                self._bucket, _hash(self._row), self.rows
            )
        )
        return {bucket: (count, int(total)) for bucket, count, total in found}

    def only(self, keys: Sequence[str]) -> "PostgresSide":
        rows = _SQL("(SELECT * FROM {} WHERE {} = ANY ({})) AS _o").format(
            self.rows, self._key, sql.Literal(list(keys))
        )
        return replace(self, rows=rows)

    def keys(self, buckets: Sequence[int] = range(BUCKETS)) -> dict[str, tuple[int, int]]:
        found = self._run(
            _SQL("SELECT {}, count(*), sum({}) FROM {} WHERE {} = ANY ({}) GROUP BY 1").format(
                self._key, _hash(self._row), self.rows, self._bucket, sql.Literal(list(buckets))
            )
        )
        return {key: (count, int(total)) for key, count, total in found}

    def hashes(self, keys: Sequence[str]) -> dict[str, Sequence[int]]:
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


def _hash(text: sql.Composable) -> sql.Composable:
    return _SQL('hashtextextended({} COLLATE "C", 0)').format(text)


class PostgresComparison(TableComparison):
    """See `TableComparison`."""

    def _mend(self, cursor: Any, keys: Sequence[str], extra: Sequence[str]) -> None:
        cursor.execute(
            _SQL("DELETE FROM {} WHERE (ctid, tableoid) IN (SELECT ctid, tableoid FROM {})")
            .format(self._staged.target, self._target_side().only(extra).rows)
        )  # fmt: skip
        self._staged.make(cursor)
        self._staged.apply(cursor, [Merge(whole=list(self._lines(keys)))])

    def _target_side(self) -> PostgresSide:
        only = {**self._mapping.own}
        if self._table.periods is not None:
            only[self._table.periods.end] = LAST
        conditions = [
            _SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in only.items()
        ]
        return PostgresSide(
            connection=self._target, key=self._staged.key, columns=self._names,
            rows=_SQL("(SELECT *, ctid, tableoid FROM {} WHERE {}) AS _t").format(
                self._staged.target, _SQL(" AND ").join([_SQL("true"), *conditions])
            ),
        )  # fmt: skip

    @contextmanager
    def _source_side(self) -> Iterator[PostgresSide]:
        """The source's rows as they should be at the target: expressions are the target's, so its
        server makes them, of rows that are copied there for the time of the block."""
        rows: sql.Composable = self._from
        if not self._mapping.has_expressions:
            yield PostgresSide(
                connection=self._source, rows=rows, key=self._staged.key, columns=self._names
            )
            return
        with self._target.transaction():
            cursor = self._target.cursor()
            self._staged.make(cursor)
            self._staged.stage(cursor, self._lines(None))
            yield PostgresSide(
                connection=self._target, rows=self._staged.made_rows(), key=self._staged.key,
                columns=self._names,
            )  # fmt: skip
