"""Changes of messages -> steps of a table whose rows are values of a target. Pure."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from penstock.consumer.mirror.steps import RestoreRows, Step, Values, key_of, refused
from penstock.consumer.mirror.target_table import TargetTable
from penstock.tables.fold import ABSENT, EMPTYING, OF_ROWS, VALUES, Row, RowFold
from penstock.tables.lines import LineChange
from penstock.tables.values import Encoder


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
        return self.encoded(values)

    def encoded(self, values: Values) -> Values:
        """Values of messages, in the order of the columns, as the target's. Raises TableRefused."""
        if not self._encoded:
            return values
        made, number = list(values), 0
        try:
            for number, encode in self._encoded:
                if made[number] is not None:
                    made[number] = encode(made[number])
        except Exception as error:
            row = dict(zip(self.names, values, strict=True))
            raise refused(self._table, row, self.names[number], error) from error
        return tuple(made)

    def _one(self, row: Row) -> Values:
        return (row[self.names[0]],) if self.names else ()


_WHOLE = frozenset(OF_ROWS) - {"DELETE"}


class TablePlan:
    """`add` the changes of a table in their order, then take the `steps`. `restores`: the target
    has rows of a later point in the log than that of the changes, which are right as they are."""

    def __init__(
        self, table: TargetTable, encoders: Mapping[str, Encoder], *, restores: bool = False
    ) -> None:
        self._row = RowCoder(table, table.names, encoders)
        self._key = RowCoder(table, table.key, encoders)
        self._names = frozenset(table.key)
        self._key_of = key_of(table)
        self._fold = RowFold([*map(table.names.index, table.key)], VALUES)
        self._restores, self._is_plain = restores, bool(table.key) and not restores
        self._named: dict[Values, None] | None = {}  # keys to restore; None: all

    def put(self, values: Values) -> None:
        """Adds the next change, of which `add` would say that it is plain: a row's values."""
        row = self._row.encoded(values)
        self._fold.put(self._key_of(row), row)

    def add(self, change: Row) -> bool:
        """Adds the next change. Returns whether it is plain: a whole row that keeps its key, in
        rows that are right up to it."""
        operation = change["operation"]
        is_whole = operation in _WHOLE and not change["before"] and not change["unchanged"]
        if is_whole and self._is_plain:
            row = self._row(change["data"])
            key = self._key_of(row)
            if None not in key:  # it keeps its key, as nearly all do
                self._fold.put(key, row)
                return True
        if operation in EMPTYING:
            self._fold.add(LineChange(operation, None, None, None))
            self._named = None
        elif operation in OF_ROWS:
            made = self._changed(change) if self._names else self._counted(change)
            self._fold.add(made)
            if self._restores and self._named is not None:
                self._named |= dict.fromkeys((made.old_key(()), made.key))
        return False

    def steps(self) -> list[Step]:
        """What to do, in order; the plan is empty then."""
        steps: list[Step] = [*self._fold.steps()]
        if self._restores:
            steps.append(RestoreRows(self._named if self._named is None else [*self._named]))
        return steps

    def _changed(self, change: Row) -> LineChange:
        """Of a table with a key."""
        operation, data, before = change["operation"], change["data"], change["before"]
        if operation == "DELETE":
            return LineChange(operation, self._key(before or change["key"]), None, None)
        if not data.keys() >= self._names:
            data = {**(change["key"] or before), **data}  # a large key that did not change
        key = old = self._key(data)
        if before and before.keys() >= self._names:
            old = self._key(before)
        row, unsent = self._row_of(data, change["unchanged"], before)
        return LineChange(operation, key, None, row, unsent, old=old)

    def _counted(self, change: Row) -> LineChange:
        """Of a table without one."""
        operation, data, before = change["operation"], change["data"], change["before"]
        row = None
        if operation != "DELETE":
            row = VALUES.nulled(self._row_of(data, change["unchanged"], before)[0])
        return LineChange(operation, None, None if before is None else self._row(before), row)

    def _row_of(self, data: Row, unsent: Sequence[str], before: Row | None) -> tuple[Values, bool]:
        """The values; and whether some are absent."""
        if not unsent:
            return self._row(data), False
        known = before or {}
        values = self._row({**data, **{name: known[name] for name in unsent if name in known}})
        lacking = set(unsent) - known.keys()
        row = tuple(
            ABSENT if name in lacking else value
            for name, value in zip(self._row.names, values, strict=True)
        )
        return row, bool(lacking)
