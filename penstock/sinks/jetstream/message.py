"""A batch of changes -> subjects, headers and bodies, column by column.

The body is one map (see `FIELDS`). The headers are `Nats-Msg-Id` (the event id; the server drops a
repeated one inside its duplicate window), `Penstock-Position` (`BACKEND PARTITION CURSOR:ORDINAL`,
the first two escaped as in subjects: what a restarted sink reads back) and `Content-Type`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import images_of
from penstock.errors import Malformed, Rejected
from penstock.position import PartitionId, Place
from penstock.sinks.jetstream.dialect import (
    BINARY,
    Column,
    Dialect,
    Unconvertible,
    bytes_of,
    converted,
    join,
    sized,
)
from penstock.sinks.jetstream.subject import Template, escape, unescape

__all__ = [
    "EVENT_ID",
    "FIELDS",
    "MSG_ID",
    "POSITION",
    "Encoder",
    "Messages",
    "Origin",
    "read_position",
]

MSG_ID = "Nats-Msg-Id"
EVENT_ID = "Penstock-Event-Id"  # instead of Nats-Msg-Id where the server shall not look at it
POSITION = "Penstock-Position"
FIELDS = (
    "event_id", "backend", "tenant", "database", "schema", "collection", "operation", "relation_id",
    "document_id", "key", "data", "before", "unchanged", "position", "transaction",
    "committed_at", "captured_at",
)  # fmt: skip
_ROUTE = (
    "backend", "tenant", "database", "namespace", "collection", "operation", "relation_id",
    "partition",
)  # fmt: skip
_ROUTES_KEPT = 10_000


class Origin(NamedTuple):
    """Whose places these are: cursors compare inside one partition of one backend."""

    backend: str
    partition: PartitionId


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Changes of one origin, in order, encoded. Columns of the same length.

    `headers` begin with `NATS/1.0` and lack the empty line at the end, so that a publisher can add
    its own; `sizes` are bytes of headers and body.
    """

    origin: Origin
    cursors: Column
    ordinals: Column
    subjects: Column
    headers: Column
    bodies: Column
    sizes: "np.ndarray[Any, np.dtype[np.int64]]"

    def __len__(self) -> int:
        return len(self.bodies)

    def place(self, index: int) -> Place:
        """The place of one change; negative counts from the end."""
        index %= len(self)
        return Place(self.cursors[index].as_py(), self.ordinals[index].as_py())

    def slice(self, start: int, stop: int) -> "Messages":
        """Rows `start` to before `stop`, with no copy."""
        rows = start, stop - start
        return Messages(
            self.origin,
            self.cursors.slice(*rows),
            self.ordinals.slice(*rows),
            self.subjects.slice(*rows),
            self.headers.slice(*rows),
            self.bodies.slice(*rows),
            self.sizes[start:stop],
        )

    def after(self, place: Place) -> "Messages":
        """Those behind `place`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.place(middle) <= place else (low, middle)
        return self.slice(low, len(self)) if low else self


class Encoder:
    """Makes messages of batches. Keeps what repeats from batch to batch: routes."""

    def __init__(self, template: Template, dialect: Dialect, *, ids: bool, limit: int) -> None:
        self._template, self._dialect, self._limit = template, dialect, limit
        self._id_header = f"NATS/1.0\r\n{MSG_ID if ids else EVENT_ID}: ".encode()
        self._routes: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
        self._names = {name: dialect.name(name, first=name == FIELDS[0]) for name in FIELDS}

    def encode(self, batch: pa.RecordBatch) -> Messages:
        """The messages of a batch that has one origin and at least one row.

        Raises Rejected when one is larger than the server takes.
        """
        column = {name: batch.column(name) for name in batch.schema.names}
        origin = Origin(column["backend"][0].as_py(), PartitionId(column["partition"][0].as_py()))
        event_id = column["event_id"].cast(BINARY)
        place = join(column["cursor"].cast(BINARY), b":", _digits(column["ordinal"]))
        subjects, routes = self._route(batch)
        headers = self._headers(origin, event_id, place)
        bodies = self._bodies(batch, event_id, place, routes)
        sizes = np.asarray(pc.add(sized(headers), sized(bodies)), np.int64)
        messages = Messages(
            origin, column["cursor"], column["ordinal"], subjects, headers, bodies, sizes
        )
        self._fit(messages)
        return messages

    def _headers(self, origin: Origin, event_id: Column, place: Column) -> Column:
        whose = f"{escape(origin.backend)} {escape(origin.partition)} ".encode()
        position = b"\r\n%b: %b" % (POSITION.encode(), whose)
        kind = b"\r\nContent-Type: %b\r\n" % self._dialect.content_type
        for column in (event_id, place):
            data = bytes(bytes_of(column))
            if b"\r" in data or b"\n" in data:
                raise Rejected(
                    f"{origin.partition} has a cursor or event id with a line break",
                    hint="no feed of penstock makes one: look at the transform",
                )
        return join(self._id_header, event_id, position, place, kind)

    def _bodies(
        self, batch: pa.RecordBatch, event_id: Column, place: Column, routes: Column
    ) -> Column:
        say, names = self._dialect, self._names
        pieces = (
            say.start(len(FIELDS)),
            names["event_id"], say.text(event_id),
            routes,
            names["document_id"], say.text(batch.column("document_id").cast(BINARY)),
            names["key"], self._image(batch, "key"),
            names["data"], self._image(batch, "after"),
            names["before"], self._image(batch, "before"),
            names["unchanged"], self._unchanged(batch.column("unchanged")),
            names["position"], say.text(place),
            names["transaction"], _few(batch.column("transaction"), self._text),
            names["committed_at"], _few(batch.column("committed_at"), self._time),
            names["captured_at"], _few(batch.column("captured_at"), self._time),
            say.end,
        )  # fmt: skip
        return join(*_merged(pieces))

    def _text(self, column: Column) -> Column:
        return self._dialect.text(column.cast(BINARY))

    def _time(self, column: Column) -> Column:
        return self._dialect.text(_iso(column))

    def _image(self, batch: pa.RecordBatch, name: str) -> Column:
        column = batch.column(name).cast(BINARY)
        nil = self._dialect.nil
        if column.null_count == len(column):
            return nil
        if images_of(batch.schema) != self._dialect.images:
            try:
                column = converted(column, self._dialect.convert)
            except Unconvertible as error:
                place = f"{batch.column('cursor')[error.row]}:{batch.column('ordinal')[error.row]}"
                raise Rejected(
                    f"the {name} image at {place} of {batch.column('partition')[error.row]} "
                    "cannot be converted to the sink's encoding",
                    hint="give source and sink the same encoding of images",
                ) from None
        return pc.fill_null(column, pa.scalar(nil, BINARY)) if column.null_count else column

    def _unchanged(self, column: Column) -> Column:
        none = self._dialect.value([])
        if not pc.sum(pc.list_value_length(column)).as_py():
            return none
        lists = [self._dialect.value(names) if names else none for names in column.to_pylist()]
        return pa.array(lists, BINARY)

    def _route(self, batch: pa.RecordBatch) -> tuple[Column, Column]:
        """(subjects, the encoded fields that a route determines), each a column."""
        kinds, first = _kinds([batch.column(name) for name in _ROUTE])
        rows = zip(*(batch.column(name).take(first).to_pylist() for name in _ROUTE), strict=True)
        pairs = [self._routes.get(row) or self._new_route(row) for row in rows]
        subjects = pa.array([subject for subject, _ in pairs], BINARY)
        return subjects.take(kinds), pa.array([fields for _, fields in pairs], BINARY).take(kinds)

    def _new_route(self, row: tuple[Any, ...]) -> tuple[bytes, bytes]:
        if len(self._routes) >= _ROUTES_KEPT:
            self._routes.clear()
        values = dict(zip(_ROUTE, row, strict=True))
        values["schema"] = _schema(values)
        fields = b"".join(
            self._names[name] + self._dialect.value(values[name])
            for name in FIELDS
            if name in values
        )
        subject = self._template.render(values).encode()
        self._routes[row] = subject, fields
        return subject, fields

    def _fit(self, messages: Messages) -> None:
        # The publisher's own headers, subject and reply take some more.
        over = np.flatnonzero(messages.sizes > self._limit)
        if over.size:
            index = int(over[0])
            origin, place = messages.origin, messages.place(index)
            raise Rejected(
                f"the change at {place} of {origin.partition} is {messages.sizes[index]} bytes as "
                f"a message; the server takes {self._limit}",
                hint="raise max_payload of nats-server, or leave the large column out",
            )


def _schema(route: Mapping[str, Any]) -> Any:
    # A document database's namespace is its database; it has no schema, and no relation ids.
    if route["relation_id"] is None and route["namespace"] == route["database"]:
        return None
    return route["namespace"]


def _kinds(columns: list[Column]) -> tuple[Column, Column]:
    """(number of each row's combination of values, first row of each combination)."""
    kinds = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        if (count := len(encoded.dictionary)) > 1:
            kinds = kinds * count + np.asarray(encoded.indices)
            # Small again, so that no number of columns can overflow.
            kinds = np.unique(kinds, return_inverse=True)[1]
    _, first, inverse = np.unique(kinds, return_index=True, return_inverse=True)
    return pa.array(inverse), pa.array(first)


def _merged(pieces: tuple[Column, ...]) -> list[Column]:
    """Neighbouring constants as one."""
    merged: list[Column] = []
    for piece in pieces:
        if merged and isinstance(piece, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _few(column: Column, encode: Callable[[Column], Column]) -> Column:
    """Encodes each distinct value of a column that has few; one value is a constant."""
    values = column.dictionary_encode(null_encoding="encode")
    encoded = encode(values.dictionary)
    return encoded[0].as_py() if len(encoded) == 1 else encoded.take(values.indices)


def _digits(column: Column) -> Column:
    return column.cast(pa.string()).cast(BINARY)


def _iso(column: Column) -> Column:
    """`2026-11-21T10:02:03.000004Z`; the cast writes all six digits, and a space for the T."""
    text = column.cast(pa.timestamp("us")).cast(pa.string())
    return join(pc.binary_replace_slice(text, 10, 11, "T").cast(BINARY), b"Z")


_POSITION = re.compile(r"(\S+) (\S+) (.+)")


def read_position(headers: Mapping[str, str]) -> tuple[Origin, Place] | None:
    """What `Penstock-Position` says; None when the message is not one of ours."""
    match = _POSITION.fullmatch(headers.get(POSITION, ""))
    if match is None:
        return None
    try:
        place = Place.parse(match[3])
    except Malformed:
        return None
    return Origin(unescape(match[1]), PartitionId(unescape(match[2]))), place
