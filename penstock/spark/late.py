"""Columns that come late: what a transform neither reads nor makes goes around the JVM.

The task that decodes lays its batches into files of the run folder, and sends stubs through Spark:
only the columns that are read, and where the rest lies. Behind the transform, the sink's task puts
both together. So it is done for stores of columns ("late materialization"); a column's way through
the JVM and two times Arrow costs ten times a file's.

Both tasks are one task to Spark, because nothing between them moves rows to another: its number
names the files.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from penstock.change import COLUMNS
from penstock.errors import Malformed, Unavailable

__all__ = ["CARRIER", "Depot", "columns_of", "stub_schema"]

# The late column that says where a stub's row lies: in which file, and which row of it.
CARRIER = "relation_id"
_ROW_BITS = 32
_ROW = (1 << _ROW_BITS) - 1

# Rows in a file, at least, unless there are no more: as many as Spark hands on at a time.
_ROWS = 2000


def columns_of(text: str) -> frozenset[str]:
    """The option's value as columns; none, or the carrier is among them."""
    columns = frozenset(filter(None, text.split(",")))
    assert not columns or (CARRIER in columns and columns <= set(COLUMNS))
    return columns


def stub_schema(whole: pa.Schema, late: Collection[str]) -> pa.Schema:
    """Of stubs, when these columns of a change are late; all of them, when none is."""
    return pa.schema([field for field in whole if field.name not in late or field.name == CARRIER])


class Depot:
    """What one Spark task has laid into `folder`. `late` are the columns that stubs lack."""

    def __init__(self, folder: Path, late: Collection[str], task: int | None = None) -> None:
        self._folder = folder
        self._late = late
        self._task = _this_task() if task is None else task
        self._laid = 0
        # The last file that was opened: its number, and what is in it.
        self._open: tuple[int, pa.RecordBatch] | None = None

    def lay(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lays batches of changes down; yields their stubs."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        held: list[pa.RecordBatch] = []
        for batch in batches:
            held.append(batch)
            if sum(each.num_rows for each in held) >= _ROWS:
                yield self._stub(held)
                held = []
        if held:
            yield self._stub(held)

    def fetch(self, stubs: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The changes of stubs that came through a transform, in their order: their own columns
        where these are not late. Raises Malformed if these are no stubs, and Unavailable if what
        they lead to is gone."""
        places = stubs.column(CARRIER).to_numpy(zero_copy_only=False)
        if places.dtype != np.int64 or np.any(np.diff(places) <= 0):
            raise Malformed("a transform changed what leads to the late columns")
        files = places >> _ROW_BITS
        cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for begin, end in pairwise(cuts):
            laid = _rows(self._opened(int(files[begin])), places[begin:end] & _ROW)
            own = stubs.slice(begin, end - begin)
            columns = [
                laid.column(field.name)
                if field.name in self._late
                else own.column(field.name).cast(field.type)
                for field in laid.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=laid.schema)

    def clear(self) -> None:
        """Removes what no row led to any more."""
        self._open = None
        for path in self._folder.glob(f"{self._task}-*"):
            path.unlink(missing_ok=True)

    def _stub(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        batch = _as_one(batches)
        path = str(self._path(self._laid))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
        rows = np.arange(batch.num_rows, dtype=np.int64)
        places = pa.array((self._laid << _ROW_BITS) | rows)
        self._laid += 1
        chosen = stub_schema(batch.schema, self._late)
        columns = [places if name == CARRIER else batch.column(name) for name in chosen.names]
        return pa.RecordBatch.from_arrays(columns, schema=chosen)

    def _opened(self, number: int) -> pa.RecordBatch:
        """The batch of a file, mapped; its name is removed, for nobody needs it any more."""
        if self._open is None or self._open[0] != number:
            path = self._path(number)
            try:
                with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
                    self._open = number, reader.read_next_batch()
            except OSError as error:
                raise Unavailable(f"the late columns of a row are gone: {error}") from error
            with suppress(OSError):
                path.unlink()
        return self._open[1]

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._task}-{number}"


def _this_task() -> int:
    context = TaskContext.get()
    assert context is not None, "only Spark's tasks have a depot"
    return context.taskAttemptId()


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _rows(batch: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    """The rows with these numbers, which rise."""
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first + 1 == count:
        return batch.slice(first, count)
    return batch.take(pa.array(rows))
