"""Whether a Delta table has the rows of a source's table: both are read as Arrow, and hashed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.delta.staged import DeltaStagedRows
from penstock.sinks.tables.comparing import BUCKETS, TableComparison
from penstock.tables.staged import escaped
from penstock.tables.staging import set_session
from penstock.wire.pgoutput.values import SESSION

compute: Any = pc
_ROWS = 50_000  # of the source that are compared at once
# Between values, and for null: no text of PostgreSQL has a zero.
_NEXT, _NULL = "\0\1", "\0\2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowSide:
    """See `CompareSide`: `read` gives the rows, in parts."""

    read: Callable[[], Iterable[pa.Table]]
    key: Sequence[str]
    columns: Sequence[str]

    def buckets(self) -> dict[int, tuple[int, int]]:
        return self._summed(lambda key: hash(key) % BUCKETS)

    def only(self, keys: Sequence[str]) -> "ArrowSide":
        wanted = pa.array(keys, pa.string())
        return replace(self, read=partial(self._chosen, wanted))

    def keys(self, buckets: Sequence[int] = range(BUCKETS)) -> dict[str, tuple[int, int]]:
        wanted = {*buckets}
        return self._summed(lambda key: key if hash(key) % BUCKETS in wanted else None)

    def hashes(self, keys: Sequence[str]) -> dict[str, Sequence[int]]:
        found: dict[str, Sequence[int]] = {}
        for rows in self.only(keys).read():
            texts = [map(hash, _texts(rows, [name]).to_pylist()) for name in self.columns]
            found |= dict(zip(self._keys(rows).to_pylist(), zip(*texts, strict=True), strict=True))
        return found

    def _summed(self, group: Callable[[str], Any]) -> dict[Any, tuple[int, int]]:
        found: dict[Any, tuple[int, int]] = {}
        for rows in self.read():
            pairs = zip(self._keys(rows).to_pylist(), _texts(rows, self.columns).to_pylist(),
                        strict=True)  # fmt: skip
            for key, text in pairs:
                if (name := group(key)) is not None:
                    count, total = found.get(name, (0, 0))
                    found[name] = count + 1, total + hash(text)
        return found

    def _keys(self, rows: pa.Table) -> Any:
        return _texts(rows, self.key or self.columns)

    def _chosen(self, wanted: Any) -> Iterator[pa.Table]:
        for rows in self.read():
            yield rows.filter(compute.is_in(self._keys(rows), wanted))


def _texts(rows: pa.Table, names: Sequence[str]) -> Any:
    """A text for each row, of its values in these columns."""
    return compute.binary_join_element_wise(
        *(_text(rows.column(name)) for name in names), _NEXT,
        null_handling="replace", null_replacement=_NULL,
    )  # fmt: skip


def _text(column: Any) -> Any:
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        return pa.array([None if v is None else repr(v) for v in column.to_pylist()], pa.string())
    return column.cast(pa.string())


class DeltaComparison(TableComparison):
    """See `TableComparison`."""

    _staged: DeltaStagedRows

    def __init__(self, source: Any, target: Any, **options: Any) -> None:
        super().__init__(source, target, **options)
        set_session(source, SESSION)  # texts are as changes have them

    def shown(self, key: str) -> str:
        return f"({escaped(','.join(key.split(_NEXT)))})"

    def _target_side(self) -> ArrowSide:
        return ArrowSide(read=self._staged.current_rows, key=self._staged.key, columns=self._names)

    @contextmanager
    def _source_side(self) -> Iterator[ArrowSide]:
        yield ArrowSide(read=self._rows, key=self._staged.key, columns=self._names)

    def _mend(self, cursor: Any, keys: Sequence[str], extra: Sequence[str]) -> None:
        wanted: Any = pa.array(keys, pa.string())
        lines: list[str] = []
        for some in self._parts():
            are_wanted = compute.is_in(
                _texts(self._staged.compared(some), self._staged.key), wanted
            )
            lines += compress(some, are_wanted.to_pylist())
        there = replace(self._target_side(), read=partial(self._staged.current_rows, is_whole=True))
        self._staged.mend(cursor, lines, there.only(extra).read())

    def _rows(self) -> Iterator[pa.Table]:
        return map(self._staged.compared, self._parts())

    def _parts(self) -> Iterator[list[str]]:
        rest = self._lines(None)
        while some := [*islice(rest, _ROWS)]:
            yield some
