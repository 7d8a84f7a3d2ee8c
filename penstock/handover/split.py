"""What crosses from the planner to a task that makes whole rows: pages, and which of their changes
are meant. (For stubs, and where no rows are needed, a `ticket` crosses instead.)

Pages are cut where the socket ran dry, so after a crash they are cut elsewhere. A micro-batch that
Spark planned before the crash must still hold the same changes: `after` and `until` bound it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.page import Page
from penstock.position import Place

__all__ = ["Split", "bounded"]


@dataclass(slots=True, kw_only=True)
class Split:
    """The changes of `pages` (one partition, in order) behind `after` and up to `until`."""

    pages: tuple[Page, ...]
    after: Place | None
    until: Place


def bounded(
    page: Page, batches: Iterable[pa.RecordBatch], after: Place | None, until: Place | None
) -> Iterator[pa.RecordBatch]:
    """The changes of a decoded page that are behind `after` and up to `until`, if there is one."""
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
