"""What crosses from the planner to a task: pages, and which of their changes are meant.

Pages are cut where the socket ran dry, so after a crash they are cut elsewhere. A micro-batch that
Spark planned before the crash must still hold the same changes: `after` and `until` bound it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.page import Page
from penstock.position import PartitionId, Place

__all__ = ["CHUNK", "PACKED", "Split", "bounded", "pack", "unpack"]

# One page per row, as it came from the source, with the pickled decoder that reads it.
_COLUMNS: list["pa.Field[Any]"] = [
    pa.field("decoder", pa.binary(), nullable=False),
    pa.field("partition", pa.string(), nullable=False),
    pa.field("first", pa.string(), nullable=False),
    pa.field("last", pa.string(), nullable=False),
    pa.field("count", pa.int64(), nullable=False),
    pa.field("captured_at", pa.int64(), nullable=False),
    pa.field("context", pa.binary(), nullable=False),
    pa.field("payload", pa.binary(), nullable=False),
    pa.field("after", pa.string()),
    pa.field("until", pa.string(), nullable=False),
]
PACKED = pa.schema(_COLUMNS)

# Bytes of pages that go in one batch: small pages share its cost, large ones overlap the stages.
CHUNK = 2**20


@dataclass(slots=True, kw_only=True)
class Split(InputPartition):
    """The changes of `pages` (one partition, in order) behind `after` and up to `until`."""

    pages: tuple[Page, ...]
    after: Place | None
    until: Place


class Packed(NamedTuple):
    """A row of PACKED, typed."""

    decoder: bytes
    page: Page
    after: Place | None
    until: Place


def pack(split: Split, decoder: bytes) -> Iterator[pa.RecordBatch]:
    """The pages as rows, in batches of about `CHUNK` bytes; payloads are copied once."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    for page in split.pages:
        rows.append(_row(split, page, decoder))
        size += page.size
        if size >= CHUNK:
            yield _packed(rows)
            rows, size = [], 0
    if rows:
        yield _packed(rows)


def _row(split: Split, page: Page, decoder: bytes) -> tuple[Any, ...]:
    return (
        decoder,
        page.partition,
        str(page.first),
        str(page.last),
        page.count,
        page.captured_at,
        page.context,
        page.payload,
        str(split.after) if split.after is not None else None,
        str(split.until),
    )


def _packed(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, PACKED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED)


def unpack(batch: pa.RecordBatch) -> Iterator[Packed]:
    """The inverse of `pack`."""
    for row in batch.to_pylist():
        page = Page(
            partition=PartitionId(row["partition"]),
            first=Place.parse(row["first"]),
            last=Place.parse(row["last"]),
            count=row["count"],
            captured_at=row["captured_at"],
            context=row["context"],
            payload=row["payload"],
        )
        after = Place.parse(row["after"]) if row["after"] is not None else None
        yield Packed(row["decoder"], page, after, Place.parse(row["until"]))


def bounded(
    page: Page, batches: Iterable[pa.RecordBatch], after: Place | None, until: Place
) -> Iterator[pa.RecordBatch]:
    """The changes of a decoded page that are behind `after` and up to `until`."""
    if (after is None or page.first > after) and page.last <= until:
        yield from batches
        return
    for batch in batches:
        kept = batch.filter(pa.array(_inside(batch, after, until), pa.bool_()))
        if kept.num_rows:
            yield kept


def _inside(batch: pa.RecordBatch, after: Place | None, until: Place) -> list[bool]:
    cursors, ordinals = (batch.column(name).to_pylist() for name in ("cursor", "ordinal"))
    return [
        (after is None or place > after) and place <= until
        for place in zip(cursors, ordinals, strict=True)
    ]
