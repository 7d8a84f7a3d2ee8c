"""Columns that come late: what a transform neither reads nor makes goes around the JVM.

The task that decodes lays its batches into files of the run folder, and sends stubs through Spark:
only the columns that are read, and where the rest lies. Behind the transform, the sink's task puts
both together. So it is done for stores of columns ("late materialization"); a column's way through
the JVM and two times Arrow costs ten times a file's.

What cannot be decoded has no stub: no statement can choose or change it, and a dead letter is made
of every such change. It lies in a file of its own, between those of the changes around it.

Both tasks are one task to Spark, because nothing between them moves rows to another: its number
names the files.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.change import COLUMNS, unreadable
from penstock.errors import Malformed, Unavailable

__all__ = ["CARRIER", "SideFiles", "columns_of", "stub_schema"]

# The late column that says where a stub's row lies: in which file, and which row of it.
CARRIER = "relation_id"
_ROW_BITS = 32
_ROW = (1 << _ROW_BITS) - 1

# Behind the number of a file without stubs.
_UNSEEN = "-unseen"

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


class SideFiles:
    """What one Spark task has laid into `folder`. `late` are the columns that stubs lack, `task` is
    the number of the task attempt, which names the files."""

    def __init__(self, folder: Path, late: Collection[str], task: int) -> None:
        self._folder = folder
        self._late = late
        self._task = task
        # The numbers of the next file to lay, and of the next to come to.
        self._laid = 0
        self._next = 0
        # The last file that was opened, and what is in it.
        self._open: tuple[Path, pa.RecordBatch] | None = None

    def lay(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lays batches of changes down; yields their stubs."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for is_seen, run in groupby(_parted(batches), itemgetter(1)):
            for batch in _joined(part for part, _ in run):
                if is_seen:
                    yield self._stub(batch)
                else:
                    self._lay(batch, _UNSEEN)

    def fetch(self, stubs: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The changes of stubs that came through a transform, in their order: their own columns
        where these are not late; and before each what no stub leads to. Raises Malformed if these
        are no stubs, and Unavailable if what they lead to is gone."""
        places = stubs.column(CARRIER).to_numpy(zero_copy_only=False)
        if places.dtype != np.int64 or np.any(np.diff(places) <= 0):
            raise Malformed("a transform changed what leads to the late columns")
        files = places >> _ROW_BITS
        cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for begin, end in pairwise(cuts):
            number = int(files[begin])
            yield from self._unseen(number)
            self._next = max(self._next, number + 1)
            laid = _rows(self._opened(self._path(number)), places[begin:end] & _ROW)
            own = stubs.slice(begin, end - begin)
            columns = [
                laid.column(field.name)
                if field.name in self._late
                else own.column(field.name).cast(field.type)
                for field in laid.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=laid.schema)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What no stub leads to behind the last one; once the other task has laid everything."""
        yield from self._unseen(None)

    def clear(self) -> None:
        """Removes what no row led to any more."""
        self._open = None
        for path in self._folder.glob(f"{self._task}-*"):
            path.unlink(missing_ok=True)

    def _stub(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = np.arange(batch.num_rows, dtype=np.int64)
        places = pa.array((self._lay(batch) << _ROW_BITS) | rows)
        chosen = stub_schema(batch.schema, self._late)
        columns = [places if name == CARRIER else batch.column(name) for name in chosen.names]
        return pa.RecordBatch.from_arrays(columns, schema=chosen)

    def _lay(self, batch: pa.RecordBatch, kind: str = "") -> int:
        """Writes a file; returns its number."""
        number, self._laid = self._laid, self._laid + 1
        path = str(self._path(number, kind))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
        return number

    def _unseen(self, until: int | None) -> Iterator[pa.RecordBatch]:
        """Of the files that were not come to yet, those without stubs: before the file `until`, or
        of all that were laid."""
        while until is None or self._next < until:
            path = self._path(self._next, _UNSEEN)
            if path.exists():
                yield self._opened(path)
            elif until is None and not self._path(self._next).exists():
                return
            self._next += 1

    def _opened(self, path: Path) -> pa.RecordBatch:
        """The batch of a file, mapped; its name is removed, for nobody needs it any more."""
        if self._open is None or self._open[0] != path:
            try:
                with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
                    self._open = path, reader.read_next_batch()
            except OSError as error:
                raise Unavailable(f"the late columns of a row are gone: {error}") from error
            with suppress(OSError):
                path.unlink()
        return self._open[1]

    def _path(self, number: int, kind: str = "") -> Path:
        return self._folder / f"{self._task}-{number}{kind}"


def _parted(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """The batches, cut where what can be decoded begins or ends; and whether it can."""
    for batch in batches:
        begin = 0
        for row in unreadable(batch):
            if row > begin:
                yield batch.slice(begin, row - begin), True
            yield batch.slice(row, 1), False
            begin = row + 1
        if begin < batch.num_rows:
            yield batch.slice(begin), True


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
    """The rows with these numbers, which rise."""
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first + 1 == count:
        return batch.slice(first, count)
    return batch.take(pa.array(rows))
