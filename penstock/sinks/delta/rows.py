"""Changes of a table -> rows of Arrow: folded by key, or one for each change; rows of a load."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.model.errors import Rejected, SettingsError
from penstock.tables.fold import EMPTYING, LINES
from penstock.tables.lines import NULL, LineChange, SourceRelation
from penstock.typed.columns import COLUMNS
from penstock.typed.line_rows import LineRows
from penstock.typed.lines import read_lines

_FITS = (
    "correct it at its source; or set `sink.on_misfit`; or make the table by hand, with a string"
    " there"
)
# Whether the row with the key goes, in the source of a MERGE.
GONE = "__gone"
_REST = "_rest"


@dataclass(slots=True)
class FoldedRows:
    """What changes leave, by key: a row, and the key of the row in the table that has the values
    that it lacks, if it lacks any; None where the row goes. `is_cleared`: all other rows go.
    `moved`: rows that lack values and get another key."""

    rows: dict[str, tuple[str, str | None] | None] = field(default_factory=dict)
    is_cleared: bool = False
    moved: list[LineChange] = field(default_factory=list)

    @classmethod
    def of(cls, changes: Iterable[LineChange], key: Sequence[int], *, keeps: bool) -> "FoldedRows":
        """In their order; `keeps`: rows are never deleted."""
        self = cls()
        for one in changes:
            if one.operation in EMPTYING:
                if not keeps:
                    self.rows, self.is_cleared = {}, True
            elif one.operation == "DELETE":
                if not keeps:
                    self.rows[one.key] = None
            elif one.after is not None:
                self._put(one, one.old_key(key))
        return self

    def _put(self, one: LineChange, old: str) -> None:
        row, origin = one.after, None
        if one.has_unsent:
            before = self.rows.get(old)
            row = LINES.completed(row, before and before[0], one.before)
            if LINES.unsent(row):
                origin = (before and before[1]) or old
                if old != one.key:
                    self.moved.append(one)
        if old != one.key:
            self.rows[old] = None
        self.rows[one.key] = row, origin

    def lines(self, relation: SourceRelation) -> list[str]:
        """A line for each key; of rows that go it has the key alone."""
        key, width = relation.key, len(relation.names)
        return [of_key(text, key, width) if row is None else row[0]
                for text, row in self.rows.items()]  # fmt: skip


class SpooledRows:
    """Rows of a part of a load, which may be a whole table: in a file of a folder, without a name.
    With a `key`, of rows with the same values there the last one counts."""

    def __init__(self, folder: Path, key: Sequence[str] = ()) -> None:
        self._file: Any = TemporaryFile(dir=folder)  # noqa: SIM115 - `parts` closes it
        self._writer: Any = None
        self._key, self._last = key, dict[tuple[Any, ...], int]()
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._count)

    def add(self, rows: pa.Table) -> None:
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_stream(self._file, rows.schema, options=options)
        self._writer.write_table(rows)
        if self._key:
            self._last.update(zip(tuples(rows, self._key), count(self._count)))
        self._count += len(rows)

    def parts(self) -> Iterator[pa.Table]:
        """All that was added; once."""
        if self._writer is None:
            return
        self._writer.close()
        self._file.seek(0)
        kept = np.ones(self._count, np.bool_)
        if self._key and len(self._last) < self._count:
            kept[:] = False
            kept[[*self._last.values()]] = True
        start = 0
        with closing(self._file):
            for batch in pa.ipc.open_stream(self._file):
                mask = kept[start : start + len(batch)]
                start += len(batch)
                yield pa.Table.from_batches([batch if mask.all() else batch.filter(pa.array(mask))])


def tuples(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def of_key(text: str, key: Sequence[int], width: int) -> str:
    """A line with the key alone."""
    cells = [NULL] * width
    for number, cell in zip(key, text.split("\t"), strict=True):
        cells[number] = cell
    return "\t".join(cells)


class ReadRows(NamedTuple):
    """`nulled`: columns that are null in a row, as their type cannot hold its value."""

    rows: pa.Table
    nulled: Collection[str] = ()


def read_rows(
    table: str, lines: Iterable[str], names: Sequence[str], kinds: pa.Schema, boxes: Sequence[str],
    *, nulls: Collection[str] = (),
) -> ReadRows:  # fmt: skip
    """The columns `kinds` of lines of `names`. A value that its column's type cannot hold is null
    in one of `nulls`. Raises Rejected for others."""
    data = "".join([f"{line}\n" for line in lines]).encode()
    if not data:
        return ReadRows(kinds.empty_table())
    columns, misfits = read_lines(data, names, kinds, boxes)
    nulled = {each.column for each in misfits}
    for name in sorted(nulled - {*nulls}):
        raise _misfit(table, name, kinds.field(name).type)
    return ReadRows(pa.Table.from_arrays(columns, schema=kinds), nulled)


def _misfit(table: str, column: str, kind: Any) -> Rejected:
    return Rejected(
        f"{table} has a value in the column {column} that {kind} cannot hold", "delta.misfit",
        hint=_FITS,
    )  # fmt: skip


def log_rows(
    table: str, changes: Sequence[LineChange], relation: SourceRelation, kinds: pa.Schema,
    *, nulls: Collection[str] = (),
) -> ReadRows:  # fmt: skip
    """A row for each change, with the columns `kinds`. Raises Rejected as `read_rows`."""
    batch, schema = _batch(changes, relation), kinds.append(pa.field(_REST, COLUMNS[_REST]))
    reader = LineRows(
        table=table, schema=schema if nulls else kinds,
        on_misfit="PERMISSIVE" if nulls else "FAILFAST",
    )  # fmt: skip
    try:
        rows = pa.Table.from_batches(reader.of_page([batch], [batch]), reader.schema)
    except SettingsError as error:
        raise Rejected(error.message, "delta.misfit", hint=_FITS) from error
    if not nulls:
        return ReadRows(rows)
    rest: list[Any] = rows.column(_REST).drop_null().to_pylist()
    nulled = {name for row in rest for name, _ in row} & {*kinds.names}
    for name in sorted(nulled - {*nulls}):
        raise _misfit(table, name, kinds.field(name).type)
    return ReadRows(rows.drop_columns([_REST]), nulled)


def _batch(changes: Sequence[LineChange], relation: SourceRelation) -> pa.RecordBatch:
    """Changes as `LineRows` takes them."""
    names, text = relation.names, pa.string()
    operation, key, before, after, lacks, at, cursor, ordinal, _, _ = zip(*changes, strict=True)
    unchanged = [
        [names[number] for number in LINES.unsent(row)] if is_lacking and row is not None else []
        for row, is_lacking in zip(after, lacks, strict=True)
    ]
    columns: Mapping[str, tuple[Sequence[Any], Any]] = {
        "operation": (operation, text), "key": (key, text), "before": (before, text),
        "after": (after, text), "cursor": (cursor, text), "ordinal": (ordinal, pa.int64()),
        "unchanged": (unchanged, pa.list_(text)),
        "committed_at": (at, pa.timestamp("us", tz="UTC")),
        "delta": ([relation.to_json()] + [None] * (len(changes) - 1), text),
        "relation_id": ([0] * len(changes), pa.int64()),
        "schema_version": ([relation.version] * len(changes), text),
    }  # fmt: skip
    arrays: list[Any] = [pa.array(values, kind) for values, kind in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
