"""Rows of a source's table -> rows of a table in SQLite, through temporary tables.

Rows go there many to a statement: an executemany takes twice as long, and JSON that SQLite takes
apart four times.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from penstock.tables.fold import Merge, form_of
from penstock.tables.lines import SourceRelation
from penstock.tables.staged import Destination, RowMapping, StagedRows

# Rows of a statement, and parameters that it may have.
_ROWS, _PARAMETERS = 200, 32_766


class SqliteStagedTable(StagedRows):
    """See `StagedRows`. Rows are tuples of values. `row_id` is what the number of a row of the
    target is called, for rows without a key. Methods raise sqlite3's errors."""

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int,
        row_id: str,
    ) -> None:  # fmt: skip
        super().__init__(relation, destination, mapping, number)
        self._target, self._row_id = f"main.{quoted(destination.table)}", row_id

    def make(self, cursor: Any) -> None:
        """See `StagedRows`."""
        kinds = self.destination.columns
        for table, names in ((self.rows, self.relation.names), (self.keys, self._key_names)):
            columns = [f"{quoted(name)} {kinds.get(name, 'TEXT')}" for name in names]
            cursor.execute(f"DROP TABLE IF EXISTS temp.{table}")
            cursor.execute(f"CREATE TEMP TABLE {table} ({', '.join(columns) or 'no_key'})")

    def stage(self, cursor: Any, rows: Iterable[Any], keys: Sequence[Any] = ()) -> None:
        """See `StagedRows`."""
        cursor.execute(f"DELETE FROM temp.{self.rows}")
        cursor.execute(f"DELETE FROM temp.{self.keys}")
        insert_rows(cursor, f"temp.{self.rows}", self.relation.names, rows)
        insert_rows(cursor, f"temp.{self.keys}", self._key_names, keys)

    def copy(self, cursor: Any, rows: Sequence[Any]) -> None:
        """See `StagedRows`."""
        insert_rows(cursor, self._target, self.relation.names, rows)

    def clear(self, cursor: Any) -> None:
        """See `StagedRows`."""
        cursor.execute(f"DELETE FROM {self._target}")

    def _merge(self, cursor: Any, step: Merge) -> None:
        if step.gone:
            self.stage(cursor, (), step.gone)
            key = joined(self._key_names)
            cursor.execute(
                f"DELETE FROM {self._target} WHERE ({key}) IN (SELECT {key} FROM temp.{self.keys})"
            )
        for unsent, rows in step.parts.items():
            self.stage(cursor, rows)
            cursor.execute(self._update(unsent))
        if step.whole:
            self.stage(cursor, step.whole)
            self._put(cursor)

    def _move(self, cursor: Any, old: Any, row: Any) -> None:
        form = form_of(row)
        self.stage(cursor, [form.nulled(row)], [old])
        cursor.execute(self._update(form.unsent(row), moves=True))

    def _put(self, cursor: Any) -> None:
        """The staged rows are new, or replace those with their keys."""
        names = joined(self.relation.names)
        rest = [name for name in self.relation.names if name not in self.key]
        sets = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in rest)
        then = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
        conflict = f"WHERE true ON CONFLICT ({joined(self.unique)}) {then}" if self.key else ""
        cursor.execute(
            f"INSERT INTO {self._target} ({names}) SELECT {names} FROM temp.{self.rows} {conflict}"
        )

    def _update(self, unsent: Sequence[int], *, moves: bool = False) -> str:
        """Rows get the values that were sent; with `moves`, by their old keys."""
        sent = [
            name for number, name in enumerate(self.relation.names)
            if number not in unsent and (moves or name not in self.key)
        ]  # fmt: skip
        if not sent:
            return "SELECT NULL"
        sets = ", ".join(f"{quoted(name)} = _s.{quoted(name)}" for name in sent)
        keys, key = (f", temp.{self.keys} AS _k", "_k") if moves else ("", "_s")
        same = " AND ".join(f"_t.{name} = {key}.{name}" for name in map(quoted, self._key_names))
        return (
            f"UPDATE {self._target} AS _t SET {sets} FROM temp.{self.rows} AS _s{keys} WHERE {same}"
        )

    def _recount(self, cursor: Any, counts: Mapping[Any, int]) -> None:
        fewer = [row for row, count in counts.items() for _ in range(-count)]
        if fewer:
            self.stage(cursor, fewer)
            cursor.execute(self._remove())
        if more := [row for row, count in counts.items() for _ in range(count)]:
            self.copy(cursor, more)

    def _remove(self) -> str:
        """For each staged row one row goes that equals it; the target is read once."""
        names = [*map(quoted, self.relation.names)]
        staged, own = ", ".join(f"_s.{name}" for name in names), f"_t.{self._row_id}"
        return (
            f"DELETE FROM {self._target} WHERE {self._row_id} IN (SELECT place FROM ("
            f"SELECT {own} AS place, most, row_number() OVER (PARTITION BY {staged}) AS number"
            f" FROM {self._target} AS _t JOIN (SELECT *, count(*) AS most FROM temp.{self.rows}"
            f" GROUP BY {', '.join(names)}) AS _s"
            f" ON {' AND '.join(f'_t.{name} IS _s.{name}' for name in names)})"
            " WHERE number <= most)"
        )


def insert_rows(cursor: Any, table: str, names: Sequence[str], rows: Iterable[Any]) -> None:
    """Inserts tuples of values."""
    rest, one = iter(rows), f"({', '.join('?' * len(names))})"
    most = max(1, min(_ROWS, _PARAMETERS // max(1, len(names))))
    start = f"INSERT INTO {table} ({joined(names)}) VALUES "
    whole = start + ", ".join([one] * most)
    while some := list(islice(rest, most)):
        statement = whole if len(some) == most else start + ", ".join([one] * len(some))
        cursor.execute(statement, list(chain.from_iterable(some)))


def quoted(name: str) -> str:
    """A name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def joined(names: Iterable[str]) -> str:
    """Names with commas."""
    return ", ".join(map(quoted, names))
