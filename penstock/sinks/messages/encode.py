"""A batch of changes -> messages, one for each change, column by column."""

from typing import Protocol

import numpy as np

from penstock.model.change import IMAGES, Images, images_of
from penstock.model.errors import Rejected
from penstock.sinks.messages.compression import Compression
from penstock.sinks.messages.convert import Unconvertible, converted
from penstock.sinks.messages.destinations import Subjects
from penstock.sinks.messages.dialect import Dialect
from penstock.sinks.messages.formatter import Formatter
from penstock.sinks.messages.kinds import KindFinder, RowKinds
from penstock.sinks.messages.layout import Layout
from penstock.sinks.messages.message import Framing, Headers, Messages
from penstock.sinks.messages.plain import change_maps
from penstock.sinks.rows.columns import Column, Columns, binary, sizes_of
from penstock.sinks.rows.part import Part
from penstock.sinks.subject import Template


class Encoder(Protocol):
    """Makes messages of changes."""

    def encode(self, part: Part) -> Messages:
        """Raises Rejected when a change can't be stored: too large, or not to be encoded."""


class Bodies:
    """Formats changes as a layout has them, each as a body, or (`element`) as one of several, after
    the dialect's separator. `kinds` finds the kinds of messages that it needs."""

    def __init__(
        self, layout: Layout, dialect: Dialect, connector: str, template: Template, *, element: bool
    ) -> None:
        self._layout, self._dialect, self._connector = layout, dialect, connector
        self._separator = dialect.separator if element else b""
        self._columnar = columnar = layout.columnar(dialect)
        self._formatters: dict[bool, Formatter] = {}  # by whether images are converted
        if columnar is not None:
            pieces = self._separator, *columnar.pieces(element=element)
            for images in ((), IMAGES):
                names = "kind", "fields", *images, *columnar.extras
                self._formatters[bool(images)] = Formatter(pieces, names)
            self._subjects = Subjects(template)
        self.kinds = KindFinder(template.segments, columnar)

    def of(self, part: Part, row_kinds: RowKinds) -> Column:
        """The bytes of each change. Raises Rejected."""
        images = _with_images(part.columns, self._dialect.images)
        if (columnar := self._columnar) is not None:
            extras = {"kind": row_kinds.numbers, "fields": row_kinds.fields, **images}
            columns = part.columns.with_extras(**extras)
            if columnar.extras:
                subjects = self._subjects.of(part, row_kinds)
                columns = columns.with_extras(**columnar.made(columns, row_kinds, subjects))
            return self._formatters[bool(images)].run(columns)
        columns = part.columns.with_extras(**images)
        layout, write = self._layout, self._dialect.value
        maps = change_maps(columns, row_kinds, layout.fields, self._dialect, self._connector)
        return binary(self._separator + write(layout.body(change)) for change in maps)


class Singles:
    """An `Encoder`: each change is one message. Keeps what repeats from batch to batch: kinds."""

    def __init__(
        self, template: Template, bodies: Bodies, headers: Headers,
        compression: Compression | None = None,
    ) -> None:  # fmt: skip
        self._bodies, self._headers, self._compression = bodies, headers, compression
        self._subjects = Subjects(template)

    def encode(self, part: Part) -> Messages:
        batch, columns = part.batch, part.columns
        row_kinds = self._bodies.kinds.of(columns)
        lines = row_kinds.schema_lines
        schemas = None if lines is None else (row_kinds.numbers, lines)
        headers = self._headers.of(part.runs, columns, schemas)
        bodies = self._bodies.of(part, row_kinds)
        if self._compression is not None:
            headers, bodies = self._compression.of(
                headers, bodies, row_kinds.numbers, row_kinds.kinds
            )
        messages = Messages(
            part.runs, batch.column("cursor"), batch.column("ordinal"), batch.column("event_id"),
            self._subjects.of(part, row_kinds), headers, bodies,
            sizes_of(headers) + sizes_of(bodies),
        )  # fmt: skip
        return fitting(messages, self._headers.framing)


def fitting(messages: Messages, framing: Framing) -> Messages:
    """The messages; raises Rejected for the first that has more bytes than its system takes. (The
    publisher's own headers, subject and reply take some more.)"""
    if np.maximum.reduce(messages.sizes) > framing.limit:
        index = int(np.argmax(messages.sizes > framing.limit))
        partition = next(run.origin.partition for run in messages.runs if index < run.stop)
        raise Rejected(
            f"the change at {messages.place(index)} of {partition} is {messages.sizes[index]} bytes"
            f" as a message; the server takes {framing.limit}",
            "messages.too-large",
            hint=framing.remedy,
        )
    return messages


def _with_images(columns: Columns, wanted: Images) -> dict[str, Column]:
    """The images in the wanted encoding, if they have another. Raises Rejected."""
    batch = columns.batch
    assert batch is not None
    if images_of(batch.schema) == wanted:
        return {}
    found = {}
    for name in IMAGES:
        try:
            found[name] = converted(batch.column(name), wanted)
        except Unconvertible as error:
            place = f"{batch.column('cursor')[error.row]}:{batch.column('ordinal')[error.row]}"
            raise Rejected(
                f"the {name} image at {place} of {batch.column('partition')[error.row]} "
                "cannot be converted to the sink's encoding",
                "messages",
                hint="give source and sink the same encoding of images",
            ) from None
    return found
