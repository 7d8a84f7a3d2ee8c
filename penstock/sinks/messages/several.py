"""A batch of changes -> messages that hold several changes each: `messages: batch`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model.position import Place
from penstock.sinks.messages.compression import Compression
from penstock.sinks.messages.destinations import Destinations, destinations
from penstock.sinks.messages.dialect import Dialect
from penstock.sinks.messages.encode import Bodies, fitting, sizes_of
from penstock.sinks.messages.grouping import Group, Sizes, ends_of, grouped, lined_up
from penstock.sinks.messages.kinds import KindFinder, MessageKind, RowKinds, schema_lines
from penstock.sinks.messages.layout import Layout
from penstock.sinks.messages.message import Headers, Messages
from penstock.sinks.rows.columns import BINARY, Column, Columns
from penstock.sinks.rows.part import OriginRun, Part
from penstock.sinks.subject import Template

# Bytes that a message's headers and the shared part of its body are taken to need at most.
_AROUND = 4096
_CACHED = 10_000  # pairs of a kind and a number of changes


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
        """See Encoder."""
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
        messages = Messages(
            runs, cursor, ordinal, event_id,
            pa.array([where.subject(group.number) for group in groups], BINARY), formatted,
            sent, sizes_of(formatted) + sizes_of(sent),
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
        rows = self._elements.of(part.columns, row_kinds)
        return rows, sizes_of(rows)

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
