"""A batch of changes -> messages that hold several changes each: `messages: batch`."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from penstock.model.position import Place
from penstock.sinks.encoding.columns import BINARY, Column, Columns
from penstock.sinks.encoding.compression import Compression
from penstock.sinks.encoding.destinations import Destinations, destinations
from penstock.sinks.encoding.dialect import Dialect
from penstock.sinks.encoding.encode import Bodies, fitting, sizes_of
from penstock.sinks.encoding.grouping import Group, ends_of, grouped, lined_up
from penstock.sinks.encoding.kinds import MessageKind, schema_lines
from penstock.sinks.encoding.layout import Layout
from penstock.sinks.encoding.message import Headers, Messages, OriginRun
from penstock.sinks.encoding.part import Part
from penstock.sinks.subject import Template

# Bytes that a message's headers and the shared part of its body are taken to need at most.
_AROUND = 4096
_CACHED = 10_000  # pairs of a kind and a number of changes


class Several:
    """An `Encoder`: up to `most` changes and `largest` bytes of one kind are one message."""

    def __init__(
        self, template: Template, layout: Layout, dialect: Dialect, rows: Bodies, headers: Headers,
        *, most: int, largest: int, compression: Compression | None = None,
    ) -> None:  # fmt: skip
        self._compression = compression
        self._layout, self._dialect, self._rows, self._headers = layout, dialect, rows, headers
        self._most, self._largest = most, largest_body(headers.framing.limit, largest)
        self._joints = template.joints
        self._skip = len(dialect.separator)
        self._known: dict[tuple[int, int], tuple[bytes, bytes, MessageKind]] = {}

    def encode(self, part: Part) -> Messages:
        """See Encoder."""
        row_kinds = self._rows.kinds.of(part.columns)
        rows = self._rows.of(part.columns, row_kinds)
        where = destinations(part, row_kinds, self._joints)
        groups = grouped(
            where.numbers, where.tables, sizes_of(rows), most=self._most, largest=self._largest
        )
        bodies = list(self._bodies(rows, groups, where))
        return collected(
            part, groups, where,
            bodies=bodies, headers=self._headers, compression=self._compression,
        )  # fmt: skip

    def _bodies(
        self, rows: Column, groups: Sequence[Group], where: Destinations
    ) -> Iterator[bytes]:
        order = lined_up(groups)
        _, ends, data = (rows if order is None else rows.take(pa.array(order))).buffers()
        bounds, view = np.frombuffer(ends, np.int32), memoryview(data)
        stops = list(accumulate((group.count for group in groups), initial=0))
        edges = bounds[stops].tolist()
        for group, (start, stop) in zip(groups, pairwise(edges), strict=True):
            head, tail = self._around(where.kinds[group.number], group.count)
            # No separator before the first.
            yield b"".join([head, view[start + self._skip : stop], tail])

    def _around(self, kind: MessageKind, count: int) -> tuple[bytes, bytes]:
        """What stands before and after the elements of a body; kept, because messages repeat
        kinds and counts."""
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


def largest_body(limit: int, largest: int) -> int:
    """Bytes that the changes of one message may have together."""
    return max(min(largest, limit - _AROUND), 1)


def collected(
    part: Part, groups: Sequence[Group], where: Destinations, *,
    bodies: Sequence[bytes], headers: Headers, compression: Compression | None,
) -> Messages:  # fmt: skip
    """Messages of groups and their bodies. Raises Rejected."""
    event_id, cursor, ordinal, mark = (
        _taken(part.batch.column(name), [group.last for group in groups])
        for name in ("event_id", "cursor", "ordinal", "mark")
    )
    count = pa.array([b"%d" % group.count for group in groups], BINARY)
    lines = schema_lines(where.kinds)
    runs = tuple(_runs(groups, where, cursor, ordinal))
    numbers = np.array([one.number for one in groups], np.int32)
    formatted = headers.of(
        runs,
        Columns(
            len(groups), event_id=event_id, cursor=cursor, ordinal=ordinal, mark=mark, count=count
        ),
        None if lines is None else (numbers, lines),
    )
    sent = pa.array(bodies, BINARY)
    if compression is not None:
        formatted, sent = compression.of(formatted, sent, numbers, where.kinds)
    messages = Messages(
        runs, cursor, ordinal, event_id,
        pa.array([where.subject(group.number) for group in groups], BINARY), formatted,
        sent, sizes_of(formatted) + sizes_of(sent),
        np.array([group.count for group in groups], np.int64), ends_of(groups),
    )  # fmt: skip
    return fitting(messages, headers.framing)


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
