"""Decoded changes -> one record batch of `change.schema`.

What repeats is kept once: a transaction's and a relation's constants are gathered by index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import Operation, schema
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import Place
from penstock.wire.pgoutput.layout import DecoderSettings, RowLayout
from penstock.wire.pgoutput.lsn import format_lsn, parse_lsn

# In place of a relation's index: a change that the tables filter drops.
FILTERED = -1
# The index of "no relation": logical messages, whose collection is their prefix.
NO_RELATION = 0

# What the tuple of a change has; `unit` and `relation` are indexes into the page's constants. (A
# NamedTuple costs three times as much.)
ROW = (
    "unit", "relation", "ordinal", "operation", "tenant", "collection", "document_id", "key",
    "before", "after", "unchanged",
)  # fmt: skip

_DESCRIBED = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.TRUNCATE)


@dataclass(slots=True)
class Constants:
    """What many rows of a page share. A unit is a transaction, or a message outside of any."""

    cursors: list[str] = field(default_factory=list)
    transactions: list[str | None] = field(default_factory=list)
    committed_at: list[int | None] = field(default_factory=list)
    relations: list[RowLayout | None] = field(default_factory=lambda: [None])

    def add_unit(self, lsn: int, xid: int | None, committed_at: int | None) -> int:
        self.cursors.append(format_lsn(lsn))
        self.transactions.append(None if xid is None else str(xid))
        self.committed_at.append(committed_at)
        return len(self.cursors) - 1

    def unit(self, index: int) -> tuple[int, int | None, int | None]:
        """The arguments of `add_unit`."""
        xid = self.transactions[index]
        lsn = parse_lsn(self.cursors[index])
        return lsn, None if xid is None else int(xid), self.committed_at[index]

    def add_relation(self, layout: RowLayout) -> int:
        """A new relation's index; FILTERED if the filter drops it."""
        if not layout.kept:
            return FILTERED
        self.relations.append(layout)
        return len(self.relations) - 1


def assemble(
    page: Page, rows: list[tuple[Any, ...]], constants: Constants, settings: DecoderSettings
) -> pa.RecordBatch | None:
    """The changes; None if the filter leaves none. Malformed if they are not what the page says."""
    _verify(page, rows, constants)
    rows = [row for row in rows if row[1] != FILTERED]
    if not rows:
        return None
    try:
        return _batch(page, rows, constants, settings)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise Malformed(
            f"a page of {page.partition} at {page.first} has no changes", "wire"
        ) from error


def _verify(page: Page, rows: list[tuple[Any, ...]], constants: Constants) -> None:
    if len(rows) != page.count:
        raise Malformed(
            f"a page at {page.first} says {page.count} changes and has {len(rows)}", "wire"
        )
    for stated, row in ((page.first, rows[0]), (page.last, rows[-1])) if rows else ():
        found = Place(constants.cursors[row[0]], row[2])
        if found != stated:
            raise Malformed(f"a page says it has the change {stated}, but it is {found}", "wire")


def _batch(
    page: Page, rows: list[tuple[Any, ...]], constants: Constants, settings: DecoderSettings
) -> pa.RecordBatch:
    size = len(rows)
    columns = dict(zip(ROW, zip(*rows, strict=True), strict=True))
    target = schema(settings.images)
    image = target.field("after").type
    text, time = pa.string(), target.field("committed_at").type
    unit, relation, layouts = columns["unit"], columns["relation"], constants.relations
    ordinal = pa.array(columns["ordinal"], pa.int32())
    nulls: Any = pa.nulls
    lines = settings.images == "text"
    cursor = _gather(constants.cursors, unit, text)
    backends = pa.repeat(pa.scalar(settings.backend, text), size)
    events: Any = pa.scalar(settings.events, text)
    colon = pa.repeat(pa.scalar(":", text), size)
    collection = _gather([layout and layout.relation.name for layout in layouts], relation, text)
    if NO_RELATION in relation:
        collection = pc.coalesce(collection, pa.array(columns["collection"], text))
    arrays = [
        backends,
        pa.repeat(pa.scalar(str(page.partition), text), size),
        cursor,
        ordinal,
        pc.binary_join_element_wise(events, cursor, ordinal.cast(text), colon),
        pa.array(columns["operation"], text),
        pa.array(columns["tenant"], text),
        pa.repeat(pa.scalar(settings.database, text), size),
        _gather([layout and layout.relation.namespace for layout in layouts], relation, text),
        collection,
        _gather([layout and layout.relation.oid for layout in layouts], relation, pa.int64()),
        _gather([layout and layout.version for layout in layouts], relation, text),
        pa.array(columns["document_id"], text),
        pa.array(columns["key"], image),
        pa.array(columns["before"], image),
        pa.array(columns["after"], image),
        pa.array(columns["unchanged"], target.field("unchanged").type),
        _gather(constants.transactions, unit, text),
        _gather(constants.committed_at, unit, time),
        pa.repeat(pa.scalar(page.captured_at, time), size),
        pa.array(_described(columns, layouts), image) if lines else nulls(size, image),
        *(nulls(size, target.field(name).type) for name in ("mark", "route")),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _described(
    columns: dict[str, tuple[Any, ...]], layouts: Sequence[RowLayout | None]
) -> list[bytes | None]:
    left, found = list(layouts), list[bytes | None]()
    for index, operation in zip(columns["relation"], columns["operation"], strict=True):
        layout = left[index] if operation in _DESCRIBED else None
        found.append(layout and layout.description)
        if layout is not None:
            left[index] = None
    return found


def _gather(constants: Sequence[Any], index: tuple[int, ...], kind: pa.DataType) -> Any:
    """Each row's constant; mostly one for all of them."""
    first = index[0]
    if index.count(first) == len(index):
        same: Any = pa.scalar(constants[first], kind)
        return pa.repeat(same, len(index))
    return pa.array(constants, kind).take(pa.array(index, pa.int32()))
