"""What goes around the JVM in a pipeline with a transform: late columns, and undecodable changes.

Two tasks share a folder: the one that decodes, before the transform, and the one that writes. To
Spark they are one task attempt, because nothing between them moves rows to another: its number
names the files.

Late columns are those that a transform neither reads nor makes. The task that decodes writes its
batches to files, and passes stubs to Spark: the columns that are read, and a column of their own
that says where the rest is. After the transform, the task that writes puts both together: a
column's way through the JVM and two times Arrow costs ten times a file's.

Changes that cannot be decoded are written to files instead of being passed to Spark, and put back
in their places. No statement can drop or change one, and each gets its dead letter.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model.change import COLUMNS, OPTIONAL, images_of, schema, unreadable
from penstock.model.errors import Malformed, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """`number` is Spark's, over all tasks of a session. Without a shuffle between them, the task
    that decodes is the one that writes. `is_first`: one task of its `stage` is."""

    stage: int
    number: int
    is_first: bool


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
        self._folder, self._late, self._task = folder, late, task
        self._written = 0
        # The last file that was opened, and what is in it.
        self._open: tuple[Path, pa.RecordBatch] | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for batch in _joined(batches):
            yield self._stub(batch)

    def fetch(self, stubs: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The changes of stubs that came through a transform, in their order; own columns that are
        not late win. Raises Malformed; Unavailable if their file is gone."""
        places = stubs.column(CARRIER).to_numpy(zero_copy_only=False)
        if places.dtype != np.int64 or np.any(np.diff(places) <= 0):
            raise Malformed(
                "a transform changed the column that leads to the late ones", "microbatch"
            )
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
        number, self._written = self._written, self._written + 1
        path = str(self._path(number))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
        places = pa.array((number << _ROW_BITS) | np.arange(batch.num_rows, dtype=np.int64))
        chosen = stub_schema(batch.schema, self._late)
        columns = [places if name == CARRIER else batch.column(name) for name in chosen.names]
        return pa.RecordBatch.from_arrays(columns, schema=chosen)

    def _opened(self, path: Path) -> pa.RecordBatch:
        """The batch of a file, mapped; its name is removed: nothing else reads it."""
        if self._open is None or self._open[0] != path:
            try:
                with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
                    self._open = path, reader.read_next_batch()
            except OSError as error:
                raise Unavailable(
                    f"the late columns of a row are gone: {error}", "microbatch"
                ) from error
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


_SUFFIX = ".errors"

# Places of a partition compare as text and number.
_Place = tuple[str, int]
_BEFORE_ALL: _Place = ("", -1)


class ErrorFiles:
    """The files of one task attempt in `folder`: written by the task that decodes, merged by the
    task that writes. After a shuffle these are different attempts; then the first task of the later
    stage merges, which starts when the earlier one is complete."""

    def __init__(self, folder: Path, attempt: Attempt) -> None:
        self._folder, self._attempt = folder, attempt
        self._written = 0
        # What was read from files and not merged yet: one row each, by partition.
        self._held: dict[str, deque[tuple[_Place, pa.RecordBatch]]] = defaultdict(deque)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The changes that can be decoded; the others of a batch are in a file before it."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for batch in batches:
            if not (errors := unreadable(batch)):
                yield batch
                continue
            self._write(batch.take(pa.array(errors)))
            if others := sorted(set(range(batch.num_rows)).difference(errors)):
                yield batch.take(pa.array(others))

    def merge(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Changes that went through the transform, and what belongs before the last of them. Their
        order within the batch is the sink's to restore."""
        self._load()
        if not any(self._held.values()):
            return batch
        early = []
        for partition, last in _last_places(batch).items():
            held = self._held[partition]
            while held and held[0][0] < last:
                early.append(held.popleft()[1])
        return _as_one([*early, batch])

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """What belongs after the last change that went through the transform."""
        self._load()
        left = [row for held in self._held.values() for _, row in held]
        self._held.clear()
        if left:
            yield _as_one(left)

    def _write(self, errors: pa.RecordBatch) -> None:
        """The file gets its name when it is complete: the other task looks for it meanwhile."""
        attempt = self._attempt
        name = f"{attempt.number}-{attempt.stage}-{self._written:09d}{_SUFFIX}"
        self._written += 1
        draft = self._folder / f"{name}.draft"
        with pa.OSFile(str(draft), "wb") as file, pa.ipc.new_stream(file, errors.schema) as writer:
            writer.write_batch(errors)
        draft.rename(self._folder / name)

    def _load(self) -> None:
        for path in sorted(filter(self._is_ours, self._folder.glob(f"*{_SUFFIX}"))):
            with pa.ipc.open_stream(path.read_bytes()) as reader:
                batch = reader.read_next_batch()
            path.unlink()
            for row, (partition, place) in enumerate(_places(batch)):
                self._held[partition].append((place, batch.slice(row, 1)))

    def _is_ours(self, path: Path) -> bool:
        number, stage, _ = path.name.split("-")
        if int(stage) == self._attempt.stage:
            return int(number) == self._attempt.number
        return self._attempt.is_first


def _places(batch: pa.RecordBatch) -> Iterator[tuple[str, _Place]]:
    columns = (batch.column(name).to_pylist() for name in ("partition", "cursor", "ordinal"))
    return ((partition, (cursor, ordinal)) for partition, cursor, ordinal in zip(*columns))  # noqa: B905


def _last_places(batch: pa.RecordBatch) -> dict[str, _Place]:
    last: dict[str, _Place] = {}
    for partition, place in _places(batch):
        last[partition] = max(place, last.get(partition, _BEFORE_ALL))
    return last


class SideChannel:
    """One task's side of `folder`. Without `late` columns, changes go through the JVM whole."""

    def __init__(self, folder: Path, late: Collection[str], attempt: Attempt) -> None:
        self._folder, self._attempt = folder, attempt
        self._errors = ErrorFiles(folder, attempt)
        self._files = SideFiles(folder, late, attempt.number) if late else None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Before the transform: what goes through Spark of these changes."""
        changes = self._errors.write(batches)
        yield from changes if self._files is None else self._files.write(changes)

    def join(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """After the transform: the changes of these rows. Raises Malformed, Unavailable."""
        whole = [as_changes(rows)] if self._files is None else self._files.fetch(rows)
        for batch in whole:
            yield self._errors.merge(batch)

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """After the last rows: what they do not lead to."""
        yield from self._errors.remaining()

    def clear(self) -> None:
        """Removes what this task left, and no row led to."""
        for path in self._folder.glob(f"{self._attempt.number}-*"):
            path.unlink(missing_ok=True)


def as_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A DataFrame's batch with the columns of a change, in their order and exact types."""
    chosen = schema(images_of(batch.schema))
    absent = OPTIONAL.difference(batch.schema.names)
    columns = [
        pa.nulls(batch.num_rows, field.type)
        if field.name in absent
        else batch.column(field.name).cast(field.type)
        for field in chosen
    ]
    return pa.RecordBatch.from_arrays(columns, schema=chosen)
