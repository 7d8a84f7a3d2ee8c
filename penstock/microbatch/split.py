"""What crosses from the reader process to a task that makes whole rows: pages, and which of their
changes are meant. (For stubs, and where no rows are needed, a `ticket` crosses instead.)

Pages are cut where the socket ran dry, so after a crash they are cut elsewhere. A micro-batch that
Spark planned before the crash must still hold the same changes: `after` and `until` bound it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from penstock.model.page import Page
from penstock.model.position import PartitionId, Place


class Range(NamedTuple):
    """What lies in a partition after one place, up to another."""

    partition: PartitionId
    after: Place | None
    until: Place


class SplitPages(NamedTuple):
    """The changes of `pages` (one partition, in order) after `after` and up to `until`."""

    pages: tuple[Page, ...]
    after: Place | None
    until: Place


@dataclass(slots=True, kw_only=True)
class Split:
    """The changes of one task, of any number of partitions."""

    parts: tuple[SplitPages, ...]


def bounded(
    page: Page, batches: Iterable[pa.RecordBatch], after: Place | None, until: Place | None
) -> Iterator[pa.RecordBatch]:
    """The changes of a decoded page that are after `after` and up to `until`, if there is one."""
    if (after is None or page.first > after) and (until is None or page.last <= until):
        yield from batches
        return
    for batch in batches:
        kept = batch.filter(pa.array(_inside(batch, after, until), pa.bool_()))
        if kept.num_rows:
            yield kept


def _inside(batch: pa.RecordBatch, after: Place | None, until: Place | None) -> list[bool]:
    cursors, ordinals = (batch.column(name).to_pylist() for name in ("cursor", "ordinal"))
    return [
        (after is None or place > after) and (until is None or place <= until)
        for place in zip(cursors, ordinals, strict=True)
    ]
