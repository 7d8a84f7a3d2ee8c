"""Whether two tables have the same rows, by counts and hashes of both sides.

Keys are divided into buckets by their hash: that needs no order, which the collations of two
databases may not share, and reads each table once. Only keys of buckets that differ are compared
one by one. Values stay where they are: what is returned are keys and names of columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from psycopg import sql

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
