"""Columns that come late: what a transform neither reads nor makes goes around the JVM.

The task that decodes writes its batches to files of the run folder, and passes stubs to Spark: the
columns that are read, and a column of their own that says where the rest is. After the transform,
the task that writes puts both together. Stores of columns do the same ("late materialization"); a
column's way through the JVM and two times Arrow costs ten times a file's.

Both tasks are one task attempt to Spark, because nothing between them moves rows to another: its
number names the files.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model.change import COLUMNS
from penstock.model.errors import Malformed, Unavailable

# The column of a stub that says where its row is: in which file, and which row of it. It is no
# column of a change.
CARRIER = "_late"
_ROW_BITS = 32
_ROW = (1 << _ROW_BITS) - 1

# Rows in a file, at least, unless there are no more: as many as Spark passes on at a time.
_ROWS = 2000


def columns_of(text: str) -> frozenset[str]:
    """The option's value as columns of a change; none without it."""
    columns = frozenset(filter(None, text.split(",")))
    assert columns <= set(COLUMNS)
    return columns


def stub_schema(whole: pa.Schema, late: Collection[str]) -> pa.Schema:
    """Of stubs, when these columns of a change are late; all of them, when none is."""
    if not late:
        return whole
    kept = [field for field in whole if field.name not in late]
    return pa.schema([*kept, pa.field(CARRIER, pa.int64(), nullable=False)])


class SideFiles:
    """What one Spark task has written to `folder`. `late` are the columns that stubs lack, `task`
    is the number of the task attempt, which names the files."""

    def __init__(self, folder: Path, late: Collection[str], task: int) -> None:
        self._folder = folder
        self._late = late
        self._task = task
        self._written = 0
        # The last file that was opened, and what is in it.
        self._open: tuple[Path, pa.RecordBatch] | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes batches of changes; yields their stubs."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for batch in _joined(batches):
            yield self._stub(batch)

    def fetch(self, stubs: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The changes of stubs that came through a transform, in their order: their own columns
        where these are not late. Raises Malformed if these are no stubs, and Unavailable if their
        file is gone."""
        places = stubs.column(CARRIER).to_numpy(zero_copy_only=False)
        if places.dtype != np.int64 or np.any(np.diff(places) <= 0):
            raise Malformed("a transform changed the column that leads to the late ones")
        files = places >> _ROW_BITS
        cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for begin, end in pairwise(cuts):
            written = _rows(self._opened(self._path(int(files[begin]))), places[begin:end] & _ROW)
            own = stubs.slice(begin, end - begin)
            columns = [
                written.column(field.name)
                if field.name in self._late
                else own.column(field.name).cast(field.type)
                for field in written.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=written.schema)

    def _stub(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = np.arange(batch.num_rows, dtype=np.int64)
        places = pa.array((self._write_batch(batch) << _ROW_BITS) | rows)
        chosen = stub_schema(batch.schema, self._late)
        columns = [places if name == CARRIER else batch.column(name) for name in chosen.names]
        return pa.RecordBatch.from_arrays(columns, schema=chosen)

    def _write_batch(self, batch: pa.RecordBatch) -> int:
        """Writes a file; returns its number."""
        number, self._written = self._written, self._written + 1
        path = str(self._path(number))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
        return number

    def _opened(self, path: Path) -> pa.RecordBatch:
        """The batch of a file, mapped; its name is removed: nothing else reads it."""
        if self._open is None or self._open[0] != path:
            try:
                with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
                    self._open = path, reader.read_next_batch()
            except OSError as error:
                raise Unavailable(f"the late columns of a row are gone: {error}") from error
            with suppress(OSError):
                path.unlink()
        return self._open[1]

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._task}-{number}"


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of _ROWS at least, but for the last."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= _ROWS:
            yield _as_one(held)
            held = []
    if held:
        yield _as_one(held)


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _rows(batch: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    """The rows with these numbers, in ascending order."""
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first + 1 == count:
        return batch.slice(first, count)
    return batch.take(pa.array(rows))
