"""Eras around decoding: a page of a later history is decoded as one of the first, then renamed.

Rare (a server was restored), so that nothing on the fast path knows of it.
"""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.page import Page
from penstock.position import Place
from penstock.wire.pgoutput.lsn import era_of

__all__ = ["in_era", "without_era"]


def without_era(page: Page) -> Page:
    """The page as it would be in the first era."""
    return replace(page, first=_plain(page.first), last=_plain(page.last))


def _plain(place: Place) -> Place:
    return place._replace(cursor=place.cursor.removeprefix(era_of(place.cursor)))


def in_era(batch: pa.RecordBatch, era: str) -> pa.RecordBatch:
    """The same changes with the era in their cursors and event ids, where identity is."""
    text = pa.string()
    colon, prefix = pa.scalar(":", text), pa.scalar(era, text)
    empty: Any = pa.scalar("", text)
    cursor = pc.binary_join_element_wise(prefix, batch.column("cursor"), empty)
    ordinal = batch.column("ordinal").cast(text)
    event_id = pc.binary_join_element_wise(batch.column("backend"), cursor, ordinal, colon)
    names = batch.schema.names
    columns = list(batch.columns)
    columns[names.index("cursor")] = cursor
    columns[names.index("event_id")] = event_id
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
