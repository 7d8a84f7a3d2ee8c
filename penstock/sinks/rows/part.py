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

from penstock.model.change import Images, images_of, schema
from penstock.model.position import PartitionId, Place
from penstock.native import NativeColumn
from penstock.native.batch import (
    LAST_ID,
    MARK,
    SURVEY_SLOTS,
    Batch,
    NativeBatch,
    NativeSurvey,
    arrow,
)
from penstock.sinks.rows import kernel as native
from penstock.sinks.rows.columns import Column, Columns, offsets_of, slot

_KEY, _ID = (slot(name, (), batch=True) for name in ("key", "event_id"))


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
    that is not known. `survey`: what the kernel found, if the rows are of one origin.
    """

    changes: Batch
    columns: Columns
    runs: tuple[OriginRun, ...]
    weight: int | None
    survey: NativeSurvey | None = None

    @property
    def batch(self) -> pa.RecordBatch:
        return arrow(self.changes)

    @property
    def images(self) -> Images:
        """How the images are encoded."""
        if isinstance(self.changes, NativeBatch):
            return self.changes.images
        return images_of(self.changes.schema)

    @property
    def is_keyed(self) -> bool:
        """Whether all rows have keys."""
        if isinstance(self.changes, NativeBatch):
            return self.columns.native[_KEY].valid is None
        return self.changes.column("key").null_count == 0

    def mark(self, run: OriginRun) -> str | bytes | None:
        """Of the last row of a run, as JSON."""
        if self.survey is not None:
            return self.survey.text(MARK) or None
        found: str | None = self.batch.column("mark")[run.stop - 1].as_py()
        return found

    @property
    def cursors(self) -> Column:
        return self.batch.column("cursor")

    @property
    def ordinals(self) -> Column:
        return self.batch.column("ordinal")

    @property
    def ids(self) -> Column:
        """Event ids."""
        return self.batch.column("event_id")

    @property
    def last_id(self) -> str:
        if self.survey is not None:
            return self.survey.text(LAST_ID).decode()
        found: str = self.ids[len(self) - 1].as_py()
        return found

    @property
    def written_ids(self) -> Column | NativeColumn:
        """Event ids as a formatter takes them."""
        given = self.columns.native
        return self.ids if given is None else given[_ID]

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """A batch whose places rise in each run of one origin."""
        part = cls.seen(batch)
        assert part is not None, "the rows are not in order"
        return part

    @classmethod
    def seen(cls, changes: Batch) -> Self | None:
        """A batch; None if the places of a run do not rise."""
        if isinstance(changes, NativeBatch):
            return cls._of_page(changes)
        batch = _exact(changes)
        columns = Columns(len(batch), batch)
        if columns.native is None:
            starts = _starts(batch)
            return None if starts is None else cls(batch, columns, _runs(batch, starts), None)
        survey = _surveyed(columns)
        if survey.simple:
            return cls(batch, columns, (_only_run(survey, len(batch)),), survey.weight, survey)
        starts = _native_starts(columns)
        return None if starts is None else cls(batch, columns, _runs(batch, starts), survey.weight)

    @classmethod
    def _of_page(cls, changes: NativeBatch) -> Self | None:
        survey = changes.survey
        if not survey.simple:
            return cls.seen(changes.batch)
        origin = Origin(survey.text(0).decode(), changes.partition)
        run = OriginRun(origin, 0, changes.rows, changes.first, changes.last)
        return cls(changes, Columns(changes.rows, changes), (run,), survey.weight, survey)

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
    native.kernel().penstock_rows_survey(
        columns.native, SURVEY_SLOTS, columns.rows, ctypes.byref(survey)
    )
    return survey


def _only_run(survey: NativeSurvey, rows: int) -> OriginRun:
    backend, partition, first, last = [survey.text(number).decode() for number in range(4)]
    origin = Origin(backend, PartitionId(partition))
    return OriginRun(origin, 0, rows, Place(first, survey.first), Place(last, survey.last))


def _native_starts(columns: Columns) -> list[int] | None:
    """The first row of each run; None if the places of one do not rise."""
    starts = array("i", bytes(4 * columns.rows))
    count = native.kernel().penstock_rows_runs(
        columns.native, SURVEY_SLOTS, columns.rows, starts.buffer_info()[0]
    )
    return starts[:count].tolist() or None


def _starts(batch: pa.RecordBatch) -> list[int] | None:
    """The same without the kernel."""
    origins = map(batch.column, ("backend", "partition"))
    changes = [pc.not_equal(column[:-1], column[1:]) for column in origins]
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
