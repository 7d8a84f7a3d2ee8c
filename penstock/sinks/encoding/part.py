"""A part of a batch that messages are made of: changes of one origin, in order, and what one has to
know of them again and again."""

import ctypes
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from penstock.change import IMAGES, images_of, schema
from penstock.position import PartitionId, Place
from penstock.sinks.encoding import kernel as native
from penstock.sinks.encoding.columns import Columns, slot
from penstock.sinks.encoding.kernel import NativeSurvey
from penstock.sinks.encoding.message import Origin

__all__ = ["Part", "place_of"]

_SURVEYED = ("backend", "partition", "cursor", "ordinal", *IMAGES)
_SLOTS = (ctypes.c_int32 * len(_SURVEYED))(*(slot(name, (), batch=True) for name in _SURVEYED))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """At least one row, with exactly the change's columns; `first` and `last` are the places of
    its first and its last row, `weight` is the bytes of its images (None: nobody looked)."""

    batch: pa.RecordBatch
    columns: Columns
    origin: Origin
    first: Place
    last: Place
    weight: int | None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """A batch that has one origin and is in order."""
        batch = _exact(batch)
        columns = Columns(len(batch), batch)
        if columns.native is not None:
            return cls._of(_surveyed(columns), batch, columns)
        origin = Origin(*(batch.column(name)[0].as_py() for name in ("backend", "partition")))
        first, last = place_of(batch, 0), place_of(batch, len(batch) - 1)
        return cls(batch, columns, origin, first, last, None)

    @classmethod
    def seen(cls, batch: pa.RecordBatch) -> Self | None:
        """The whole of a batch, if it is seen at a glance that it has one origin and is in order,
        which nearly every one has and is. It takes the kernel to see it."""
        batch = _exact(batch)
        columns = Columns(len(batch), batch)
        if columns.native is None or not len(batch):
            return None
        survey = _surveyed(columns)
        return cls._of(survey, batch, columns) if survey.simple else None

    @classmethod
    def _of(cls, survey: NativeSurvey, batch: pa.RecordBatch, columns: Columns) -> Self:
        texts = map(ctypes.string_at, survey.texts, survey.sizes)
        backend, partition, first, last = [text.decode() for text in texts]
        return cls(
            batch,
            columns,
            Origin(backend, PartitionId(partition)),
            Place(first, survey.first),
            Place(last, survey.last),
            survey.weight,
        )

    def __len__(self) -> int:
        return self.columns.rows


def _surveyed(columns: Columns) -> NativeSurvey:
    survey = NativeSurvey()
    native.kernel().penstock_weave_survey(
        columns.native, _SLOTS, columns.rows, ctypes.byref(survey)
    )
    return survey


def place_of(batch: pa.RecordBatch, row: int) -> Place:
    """A row's place in its partition."""
    return Place(batch.column("cursor")[row].as_py(), batch.column("ordinal")[row].as_py())


def _exact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with exactly the change's columns and types."""
    wanted = schema(images_of(batch.schema))
    if batch.schema.equals(wanted):
        return batch
    return pa.RecordBatch.from_arrays(
        [batch.column(field.name).cast(field.type) for field in wanted], schema=wanted
    )
