"""The changes of one table in one transaction -> as few steps as leave the same rows. Pure.

Unchanged is not null: a row whose unchanged columns are not known yet is updated in the others. A
key change removes the old key. Without a key, equal rows are counted.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from penstock.tables.fold import EMPTYING, OF_ROWS
from penstock.tables.target_table import TargetTable
from penstock.tables.targets import (
    ClearRows,
    DeleteRows,
    Encoder,
    InsertRows,
    RemoveRows,
    RestoreRows,
    Step,
    UpdateRows,
    UpsertRows,
    Values,
    refused,
)

Row = Mapping[str, Any]
_NOTHING: Row = {}


class RowCoder:
    """Rows of messages -> values of the target, in the order of the columns."""

    def __init__(
        self, table: TargetTable, names: Sequence[str], encoders: Mapping[str, Encoder]
    ) -> None:
        self.names, self._table = tuple(names), table
        self._get: Callable[[Row], Any] = itemgetter(*names) if len(names) > 1 else self._one
        self._encoded = [
            (number, encode) for number, name in enumerate(names) if (encode := encoders.get(name))
        ]

    def __call__(self, row: Row) -> Values:
        """The values; null where the row lacks a column. Raises TableRefused."""
        try:
            values: Values = self._get(row)
        except KeyError:
            values = tuple(map(row.get, self.names))
        if not self._encoded:
            return values
        made, number = list(values), 0
        try:
            for number, encode in self._encoded:
                if made[number] is not None:
                    made[number] = encode(made[number])
        except Exception as error:
            raise refused(self._table, row, self.names[number], error) from error
        return tuple(made)

    def rows(self, rows: Sequence[Row]) -> list[Values]:
        """The values of several rows."""
        return list(map(self, rows))

    def _one(self, row: Row) -> Values:
        return (row[self.names[0]],) if self.names else ()


class TablePlan:
    """`add` the changes of a table in their order, then take the `steps`. `restores`: the target
    has rows of a later point in the log than that of the changes, which are right as they are."""

    def __init__(
        self, table: TargetTable, encoders: Mapping[str, Encoder], *, restores: bool = False
    ) -> None:
        self.table = table
        self._encoders = encoders
        self._row = RowCoder(table, table.names, encoders)
        self._key = RowCoder(table, table.key, encoders)
        self._names = frozenset(table.key)
        self._steps: list[Step] = []
        self._rows: dict[Values, Values] = {}  # whole rows by their key
        self._parts: dict[Values, dict[str, Any]] = {}  # columns that change, of other keys
        self._gone: dict[Values, None] = {}  # a set in order
        self._counts: Counter[Values] = Counter()  # of rows without a key, more or less
        self._restores = restores
        self._named: dict[Values, None] | None = {}  # keys to restore; None: all

    def add(self, change: Mapping[str, Any]) -> None:
        """Adds the next change."""
        operation = change["operation"]
        if operation in EMPTYING:
            self._forget()
            self._steps, self._named = [ClearRows()], None
        elif operation not in OF_ROWS:
            return
        elif not self.table.key:
            self._count(change)
        elif operation == "DELETE":
            gone = self._key(change["before"] or change["key"])
            if self._restores:
                self._name(gone)
            self._drop(gone)
        else:
            self._change(change)

    def steps(self) -> list[Step]:
        """What to do, in order; the plan is empty then."""
        self._flush()
        if self._restores:
            self._steps.append(RestoreRows(self._named if self._named is None else [*self._named]))
        steps, self._steps = self._steps, []
        return steps

    def _change(self, change: Mapping[str, Any]) -> None:
        data: Row = change["data"]
        before: Row = change["before"] or _NOTHING
        if not data.keys() >= self._names:
            data = {**(change["key"] or before), **data}  # a large key that did not change
        new = self._key(data)
        old = self._key(before) if before and before.keys() >= self._names else new
        if self._restores:
            self._name(old, new)
        missing = change["unchanged"]
        if missing and all(name in before for name in missing):
            data = {**data, **{name: before[name] for name in missing}}  # the whole old row came
            missing = ()
        if not missing:
            if old != new:
                self._drop(old)
            self._put(new, self._row(data))
        elif whole := self._rows.get(old):
            given = {name: number for number, name in enumerate(self.table.names) if name in data}
            values, row = self._row(data), list(whole)
            for number in given.values():
                row[number] = values[number]
            if old != new:
                self._drop(old)
            self._put(new, tuple(row))
        elif old not in self._gone:
            part = dict(
                zip(data, RowCoder(self.table, tuple(data), self._encoders)(data), strict=True)
            )
            if old == new:
                self._parts.setdefault(new, {}).update(part)
            else:
                self._flush()
                self._steps.append(UpdateRows(tuple(part), [old], [tuple(part.values())]))

    def _name(self, *keys: Values) -> None:
        if self._named is not None:
            self._named.update(dict.fromkeys(keys))

    def _put(self, key: Values, row: Values) -> None:
        self._gone.pop(key, None)
        self._parts.pop(key, None)
        self._rows[key] = row

    def _drop(self, key: Values) -> None:
        self._rows.pop(key, None)
        self._parts.pop(key, None)
        self._gone[key] = None

    def _count(self, change: Mapping[str, Any]) -> None:
        before: Row | None = change["before"]
        if before is not None:
            self._counts[self._row(before)] -= 1
        if change["operation"] != "DELETE":
            known = before or _NOTHING
            left = {name: known[name] for name in change["unchanged"] if name in known}
            self._counts[self._row({**change["data"], **left})] += 1

    def _flush(self) -> None:
        if self._gone:
            self._steps.append(DeleteRows(list(self._gone)))
        groups: dict[tuple[str, ...], list[tuple[Values, Values]]] = {}
        for key, part in self._parts.items():
            groups.setdefault(tuple(part), []).append((key, tuple(part.values())))
        for columns, some in groups.items():
            self._steps.append(
                UpdateRows(columns, [key for key, _ in some], [row for _, row in some])
            )
        if self._rows:
            self._steps.append(UpsertRows(list(self._rows.values())))
        if removed := [row for row, n in self._counts.items() for _ in range(-n)]:
            self._steps.append(RemoveRows(removed))
        if added := [row for row, n in self._counts.items() for _ in range(n)]:
            self._steps.append(InsertRows(added))
        self._forget()

    def _forget(self) -> None:
        for each in (self._rows, self._parts, self._gone, self._counts):
            each.clear()
