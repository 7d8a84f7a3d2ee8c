"""A batch of changes -> messages that hold several changes each: `messages: batch`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model.position import Place
from penstock.sinks.messages.compression import Compression
from penstock.sinks.messages.destinations import Destinations, destinations
from penstock.sinks.messages.dialect import Dialect
from penstock.sinks.messages.encode import Bodies, fitting
from penstock.sinks.messages.formatter import Texts
from penstock.sinks.messages.grouping import Group, Sizes, ends_of, grouped, lined_up
from penstock.sinks.messages.kinds import KindFinder, MessageKind, RowKinds, schema_lines
from penstock.sinks.messages.layout import SHARED, Layout
from penstock.sinks.messages.message import Framing, Headers, KeyColumns, Messages
from penstock.sinks.rows.columns import BINARY, Column, Columns, sizes_of
from penstock.sinks.rows.part import OriginRun, Part
from penstock.sinks.subject import Template

# Bytes that a message's headers and the shared part of its body are taken to need at most.
_AROUND = 4096
_CACHED = 10_000  # pairs of a kind and a number of changes, or schemas
_VERSION = b"1"
_ARROW = b"application/vnd.apache.arrow.stream"
# The message's column -> the change's.
_COLUMNS: Mapping[str, str] = {
    "event_id": "event_id", "cursor": "cursor", "ordinal": "ordinal", "document_id": "document_id",
    "key": "key", "data": "after", "before": "before", "unchanged": "unchanged",
    "transaction": "transaction", "committed_at": "committed_at", "captured_at": "captured_at",
    "delta": "delta",
}  # fmt: skip
_TEXTS = ("event_id", "cursor", "document_id", "key", "after", "before", "transaction", "delta")
_EACH = 96  # bytes of a row beside its texts: offsets, validity, times
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an IPC stream


class Grouped(ABC):
    """An `Encoder`: up to `most` changes and `largest` bytes of one kind are one message."""

    def __init__(
        self, template: Template, headers: Headers, kinds: KindFinder,
        *, most: int, largest: int, compression: Compression | None,
    ) -> None:  # fmt: skip
        self._headers, self._kinds, self._compression = headers, kinds, compression
        # Bytes that the changes of one message may have together.
        self._largest = max(min(largest, headers.framing.limit - _AROUND), 1)
        self._most = most
        self._joints = template.joints

    @abstractmethod
    def _rows(self, part: Part, row_kinds: RowKinds) -> tuple[Any, Sizes]:
        """The changes as `_bodies` takes them, and their bytes."""

    @abstractmethod
    def _bodies(self, rows: Any, groups: Sequence[Group], where: Destinations) -> Iterator[bytes]:
        """The body of each message."""

    def encode(self, part: Part) -> Messages:
        row_kinds = self._kinds.of(part.columns)
        rows, sizes = self._rows(part, row_kinds)
        where = destinations(part, row_kinds, self._joints)
        groups = grouped(where.numbers, where.tables, sizes, most=self._most, largest=self._largest)
        return self._collected(part, groups, where, list(self._bodies(rows, groups, where)))

    def _collected(
        self, part: Part, groups: Sequence[Group], where: Destinations, bodies: Sequence[bytes]
    ) -> Messages:
        """Messages of groups and their bodies. Raises Rejected."""
        lasts = [group.last for group in groups]
        taken = {
            name: _taken(part.batch.column(name), lasts)
            for name in ("event_id", "cursor", "ordinal", "mark")
        }
        event_id, cursor, ordinal, _ = taken.values()
        count = pa.array([b"%d" % group.count for group in groups], BINARY)
        lines = schema_lines(where.kinds)
        runs = tuple(_runs(groups, where, cursor, ordinal))
        numbers = np.array([one.number for one in groups], np.int32)
        formatted = self._headers.of(
            runs,
            Columns(len(groups), **taken, count=count),
            None if lines is None else (numbers, lines),
        )
        sent = pa.array(bodies, BINARY)
        if self._compression is not None:
            formatted, sent = self._compression.of(formatted, sent, numbers, where.kinds)
        sizes = sizes_of(formatted) + sizes_of(sent)
        subjects = pa.array([where.subject(group.number) for group in groups], BINARY)
        messages = Messages(
            runs, KeyColumns(cursor, ordinal, event_id), Texts.of(subjects, formatted, sent),
            int(sizes.sum()),
            np.array([group.count for group in groups], np.int64), ends_of(groups),
        )  # fmt: skip
        return fitting(messages, self._headers.framing)


class Several(Grouped):
    """Bodies are elements, one after the other, and what stands around them."""

    def __init__(
        self, template: Template, layout: Layout, dialect: Dialect, elements: Bodies,
        headers: Headers, **limits: Any,
    ) -> None:  # fmt: skip
        super().__init__(template, headers, elements.kinds, **limits)
        self._layout, self._dialect, self._elements = layout, dialect, elements
        self._skip = len(dialect.separator)
        self._known: dict[tuple[int, int], tuple[bytes, bytes, MessageKind]] = {}

    def _rows(self, part: Part, row_kinds: RowKinds) -> tuple[Column, Sizes]:
        rows = self._elements.of(part, row_kinds)
        return rows, sizes_of(rows)

    def _bodies(
        self, rows: Column, groups: Sequence[Group], where: Destinations
    ) -> Iterator[bytes]:
        order = lined_up(groups)
        _, ends, data = (rows if order is None else rows.take(pa.array(order))).buffers()
        bounds, view = np.frombuffer(ends, np.int32), memoryview(data)
        stops = list(accumulate((group.count for group in groups), initial=0))
        for group, (start, stop) in zip(groups, pairwise(bounds[stops].tolist()), strict=True):
            head, tail = self._around(where.kinds[group.number], group.count)
            # No separator before the first.
            yield b"".join([head, view[start + self._skip : stop], tail])

    def _around(self, kind: MessageKind, count: int) -> tuple[bytes, bytes]:
        """What stands around a body's elements; kept, because kinds and counts repeat."""
        key = id(kind), count
        if key not in self._known:
            if len(self._known) >= _CACHED:
                self._known.clear()
            # With the kind, so that no other has its id.
            self._known[key] = (*self._made_around(kind, count), kind)
        return self._known[key][:2]

    def _made_around(self, kind: MessageKind, count: int) -> tuple[bytes, bytes]:
        say, fields = self._dialect, self._layout.around(kind.values)
        if fields is None:
            return say.list_start(count), say.list_end
        head = say.start(len(fields) + 1)
        for number, (name, value) in enumerate(fields.items()):
            head += say.name(name, first=not number) + say.value(value)
        return head + say.name("changes") + say.list_start(count), say.list_end + say.end


class Tabular(Grouped):
    """A message is an IPC stream of one Arrow record batch: `encoding: arrow`. The columns of a
    change go out as they came in, with no copy but the one into the message; what the changes of a
    message share is in the schema's metadata."""

    def __init__(self, template: Template, framing: Framing, **limits: Any) -> None:
        headers = Headers(framing, version=_VERSION, content_type=_ARROW, counted=True)
        super().__init__(template, headers, KindFinder(template.segments, None), **limits)
        self._schemas: dict[tuple[Any, ...], bytes] = {}

    def _rows(self, part: Part, row_kinds: RowKinds) -> tuple[pa.RecordBatch, Sizes]:
        columns = [_shown(part.batch, name) for name in _COLUMNS.values()]
        return pa.RecordBatch.from_arrays(columns, names=list(_COLUMNS)), _sizes(part.batch)

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


def _runs(
    groups: Sequence[Group], where: Destinations, cursor: Column, ordinal: Column
) -> Iterator[OriginRun]:
    """The origins of the messages; `cursor` and `ordinal` are their places."""
    places = list(map(Place, cursor.to_pylist(), ordinal.to_pylist()))
    owners = [where.origins[group.number] for group in groups]
    start = 0
    for stop in range(1, len(groups) + 1):
        if stop == len(groups) or owners[stop] != owners[start]:
            yield OriginRun(owners[start], start, stop, places[start], places[stop - 1])
            start = stop


def _taken(column: Column, rows: Sequence[int]) -> Column:
    # A slice costs a tenth of `take`, and one message is what there mostly is.
    return column.slice(rows[0], 1) if len(rows) == 1 else column.take(pa.array(rows, pa.int64()))


def _shown(batch: pa.RecordBatch, name: str) -> Any:
    column = batch.column(name)
    if name == "delta" and column.null_count == len(column):
        return pa.array([None] * len(column), pa.null())  # which takes no bytes
    return column


def _sizes(batch: pa.RecordBatch) -> Sizes:
    """About the bytes of each row in a record batch."""
    sizes = np.full(len(batch), _EACH, np.int64)
    for name in _TEXTS:
        sizes += sizes_of(batch.column(name))
    unchanged: Any = batch.column("unchanged")
    if len(unchanged.flatten()):
        sizes += np.array(
            [sum(map(len, one or ())) + 4 * len(one or ()) for one in unchanged.to_pylist()]
        )
    return sizes
