"""A part of a batch that messages are made of: changes in order, with their origins."""

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import IMAGES, images_of, schema
from penstock.model.position import PartitionId, Place
from penstock.sinks.rows import kernel as native
from penstock.sinks.rows.columns import Column, Columns, offsets_of, slot
from penstock.sinks.rows.kernel import NativeSurvey

_SURVEYED = ("backend", "partition", "cursor", "ordinal", *IMAGES)
_SLOTS = (ctypes.c_int32 * len(_SURVEYED))(*(slot(name, (), batch=True) for name in _SURVEYED))


class Origin(NamedTuple):
    """Whose places these are: cursors compare inside one partition of one backend."""

    backend: str
    partition: PartitionId


class OriginRun(NamedTuple):
    """Neighbouring rows of one origin, `start` to before `stop`, whose places rise from `first` to
    `last`. An origin may have several runs in a batch; their places rise as well."""

    origin: Origin
    start: int
    stop: int
    first: Place
    last: Place


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """At least one row, with exactly the change's columns.

    `runs` are the origins of its rows, without a gap. `weight` is the bytes of its images; None if
    that is not known.
    """

    batch: pa.RecordBatch
    columns: Columns
    runs: tuple[OriginRun, ...]
    weight: int | None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """A batch whose places rise in each run of one origin."""
        part = cls.seen(batch)
        assert part is not None, "the rows are not in order"
        return part

    @classmethod
    def seen(cls, batch: pa.RecordBatch) -> Self | None:
        """A batch; None if the places of a run do not rise."""
        batch = _exact(batch)
        columns = Columns(len(batch), batch)
        if columns.native is None:
            starts = _starts(batch)
            return None if starts is None else cls(batch, columns, _runs(batch, starts), None)
        survey = _surveyed(columns)
        if survey.simple:
            return cls(batch, columns, (_only_run(survey, len(batch)),), survey.weight)
        starts = _native_starts(columns)
        return None if starts is None else cls(batch, columns, _runs(batch, starts), survey.weight)

    def __len__(self) -> int:
        return self.columns.rows

    def __getitem__(self, rows: slice) -> "Part":
        return Part.of(self.batch[rows])

    def split(self) -> Iterator["Part"]:
        """One part for each run."""
        for run in self.runs:
            yield self[run.start : run.stop]

    def after(self, stored: Mapping[Origin, Place | None]) -> "Part | None":
        """What is after the stored places of its origins; None if that is nothing."""
        spans = unstored(self.runs, stored, lambda row: place_of(self.batch, row))
        if not spans:
            return None
        if len(spans) == 1:
            start, stop = spans[0]
            return self if stop - start == len(self) else self[start:stop]
        rows = np.concatenate([np.arange(*span) for span in spans])
        return Part.of(self.batch.take(pa.array(rows)))


def _surveyed(columns: Columns) -> NativeSurvey:
    survey = NativeSurvey()
    native.kernel().penstock_rows_survey(columns.native, _SLOTS, columns.rows, ctypes.byref(survey))
    return survey


def _only_run(survey: NativeSurvey, rows: int) -> OriginRun:
    texts = map(ctypes.string_at, survey.texts, survey.sizes)
    backend, partition, first, last = [text.decode() for text in texts]
    origin = Origin(backend, PartitionId(partition))
    return OriginRun(origin, 0, rows, Place(first, survey.first), Place(last, survey.last))


def _native_starts(columns: Columns) -> list[int] | None:
    """The first row of each run; None if the places of one do not rise."""
    starts = array("i", bytes(4 * columns.rows))
    count = native.kernel().penstock_rows_runs(
        columns.native, _SLOTS, columns.rows, starts.buffer_info()[0]
    )
    return starts[:count].tolist() or None


def _starts(batch: pa.RecordBatch) -> list[int] | None:
    """The same without the kernel."""
    changes = [pc.not_equal(column[:-1], column[1:]) for column in map(batch.column, _SURVEYED[:2])]
    begins = np.asarray(pc.or_(*changes), np.bool_)
    cursor, ordinal = batch.column("cursor"), batch.column("ordinal")
    rises = pc.less(cursor[:-1], cursor[1:])
    further = pc.and_(pc.equal(cursor[:-1], cursor[1:]), pc.less(ordinal[:-1], ordinal[1:]))
    if not (begins | np.asarray(pc.or_(rises, further), np.bool_)).all():
        return None
    return [0, *(np.flatnonzero(begins) + 1).tolist()]


def _runs(batch: pa.RecordBatch, starts: list[int]) -> tuple[OriginRun, ...]:
    firsts = np.array(starts, np.int64)
    stops = np.array([*starts[1:], len(batch)], np.int64)
    backends, partitions = (_texts(batch.column(name), firsts) for name in ("backend", "partition"))
    ordinals = batch.column("ordinal").to_numpy()
    first, last = (
        map(Place, _texts(batch.column("cursor"), rows), ordinals[rows].tolist())
        for rows in (firsts, stops - 1)
    )
    origins = map(Origin, backends, map(PartitionId, partitions))
    return tuple(map(OriginRun, origins, starts, stops.tolist(), first, last))


def _texts(column: Column, rows: "np.ndarray[Any, np.dtype[np.int64]]") -> list[str]:
    """Some values of a text column without nulls; a fifth of what `take` and `to_pylist` cost."""
    if (data := column.buffers()[2]) is None:
        return [""] * len(rows)
    bounds = offsets_of(column)
    view = memoryview(data)
    spans = zip(bounds[rows].tolist(), bounds[rows + 1].tolist(), strict=True)
    return [str(view[start:stop], "utf-8") for start, stop in spans]


def place_of(batch: pa.RecordBatch, row: int) -> Place:
    return Place(batch.column("cursor")[row].as_py(), batch.column("ordinal")[row].as_py())


def _exact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with exactly the change's columns and types."""
    wanted = schema(images_of(batch.schema))
    if batch.schema.equals(wanted):
        return batch
    return pa.RecordBatch.from_arrays(
        [batch.column(field.name).cast(field.type) for field in wanted], schema=wanted
    )


def unstored(
    runs: Iterable[OriginRun], stored: Mapping[Origin, Place | None], place: Callable[[int], Place]
) -> list[tuple[int, int]]:
    """The rows after their origins' stored places, as spans. `place` is that of a row."""
    spans: list[tuple[int, int]] = []
    for run in runs:
        known, rows = stored.get(run.origin), range(run.start, run.stop)
        start = run.start
        if known is not None and run.first <= known:
            start = run.stop if run.last <= known else rows[bisect_right(rows, known, key=place)]
        if start == run.stop:
            continue
        if spans and spans[-1][1] == start:
            start = spans.pop()[0]
        spans.append((start, run.stop))
    return spans
