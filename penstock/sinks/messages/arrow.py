"""Several changes as one Arrow record batch: `encoding: arrow`, with `messages: batch`.

The columns of a change go out as they came in, with no copy but the one into the message. What the
changes of a message share is in the schema's metadata.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.sinks.messages.destinations import Destinations
from penstock.sinks.messages.grouping import Group, Sizes, lined_up
from penstock.sinks.messages.kinds import KindFinder, RowKinds
from penstock.sinks.messages.layout import SHARED
from penstock.sinks.messages.message import Framing, Headers
from penstock.sinks.messages.several import Grouped
from penstock.sinks.rows.part import Part
from penstock.sinks.subject import Template

VERSION = b"1"
CONTENT_TYPE = b"application/vnd.apache.arrow.stream"
# The message's column -> the change's.
COLUMNS: Mapping[str, str] = {
    "event_id": "event_id", "cursor": "cursor", "ordinal": "ordinal", "document_id": "document_id",
    "key": "key", "data": "after", "before": "before", "unchanged": "unchanged",
    "transaction": "transaction", "committed_at": "committed_at", "captured_at": "captured_at",
    "delta": "delta",
}  # fmt: skip
_TEXTS = ("event_id", "cursor", "document_id", "key", "after", "before", "transaction", "delta")
_EACH = 96  # bytes of a row beside its texts: offsets, validity, times
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an IPC stream
_CACHED = 10_000


class Tabular(Grouped):
    """A message is an IPC stream of one record batch."""

    def __init__(self, template: Template, framing: Framing, **limits: Any) -> None:
        headers = Headers(framing, version=VERSION, content_type=CONTENT_TYPE, counted=True)
        super().__init__(template, headers, KindFinder(template.segments, None), **limits)
        self._schemas: dict[tuple[Any, ...], bytes] = {}

    def _rows(self, part: Part, row_kinds: RowKinds) -> tuple[pa.RecordBatch, Sizes]:
        columns = [_shown(part.batch, name) for name in COLUMNS.values()]
        return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS)), _sizes(part.batch)

    def _bodies(
        self, rows: pa.RecordBatch, groups: Sequence[Group], where: Destinations
    ) -> Iterator[bytes]:
        order = lined_up(groups)
        ordered = rows if order is None else rows.take(order)
        start = 0
        for group in groups:
            part = ordered.slice(start, group.count)
            yield b"".join([self._schema(rows, group, where), part.serialize(), _END])
            start += group.count

    def _schema(self, shown: pa.RecordBatch, group: Group, where: Destinations) -> bytes:
        values = where.kinds[group.number].values
        # How `key`, `data` and `before` are encoded.
        images = "msgpack" if pa.types.is_binary(shown.schema.field("data").type) else "json"
        key = images, shown.schema.field("delta").type, *values.values()
        if key not in self._schemas:
            if len(self._schemas) >= _CACHED:
                self._schemas.clear()
            shared = {name: str(values[name]) for name in SHARED if values[name] is not None}
            schema = shown.schema.with_metadata({**shared, "images": images})
            self._schemas[key] = schema.serialize().to_pybytes()
        return self._schemas[key]


def _shown(batch: pa.RecordBatch, name: str) -> Any:
    column = batch.column(name)
    if name == "delta" and column.null_count == len(column):
        return pa.array([None] * len(column), pa.null())  # which takes no bytes
    return column


def _sizes(batch: pa.RecordBatch) -> Sizes:
    """About the bytes of each row in a record batch."""
    sizes = np.full(len(batch), _EACH, np.int64)
    for name in _TEXTS:
        column = batch.column(name)
        ends: Any = np.frombuffer(memoryview(column.buffers()[1]), np.int32)  # type: ignore[arg-type]
        ends = ends[column.offset : column.offset + len(batch) + 1]
        sizes += ends[1:] - ends[:-1]
    unchanged: Any = batch.column("unchanged")
    if len(unchanged.flatten()):
        sizes += np.array(
            [sum(map(len, one or ())) + 4 * len(one or ()) for one in unchanged.to_pylist()]
        )
    return sizes
