"""A batch of changes -> messages, one for each change, column by column."""

from typing import Any, Protocol

import numpy as np

from penstock.change import IMAGES, Images, images_of
from penstock.errors import Rejected
from penstock.sinks.encoding.columns import Column, Columns
from penstock.sinks.encoding.convert import Unconvertible, converted
from penstock.sinks.encoding.destinations import Subjects
from penstock.sinks.encoding.formatter import Formatter
from penstock.sinks.encoding.layout import Layout
from penstock.sinks.encoding.message import Headers, Messages, Sizes
from penstock.sinks.encoding.part import Part
from penstock.sinks.encoding.routes import Routed, Routes
from penstock.sinks.subject import Template

__all__ = [
    "Encoder", "Singles", "body_formatters", "fitting", "routed_columns", "routes_of", "sizes_of",
]  # fmt: skip

_ROUTED = ("kind", "fields")


class Encoder(Protocol):
    """Makes messages of changes."""

    def encode(self, part: Part) -> Messages:
        """Raises Rejected when a change can't be stored: too large, or not to be encoded."""
        ...


class Singles:
    """An `Encoder`: each change is one message. Keeps what repeats from batch to batch: routes."""

    def __init__(self, template: Template, layout: Layout, *, ids: bool, limit: int) -> None:
        self._layout, self._limit = layout, limit
        self._routes = routes_of(template, layout)
        self._headers = Headers(
            ids=ids, version=layout.version, content_type=layout.content_type, counted=False
        )
        self._subjects = Subjects(template)
        self._bodies = body_formatters(layout, layout.change())

    def encode(self, part: Part) -> Messages:
        """See Encoder."""
        batch, columns = part.batch, part.columns
        headers, routed = self._headers.of(part.runs, columns), self._routes.of(columns)
        columns, images = routed_columns(columns, routed, self._layout)
        bodies = self._bodies[images].run(columns)
        messages = Messages(
            part.runs, batch.column("cursor"), batch.column("ordinal"), batch.column("event_id"),
            self._subjects.of(part, routed), headers, bodies, sizes_of(headers) + sizes_of(bodies),
        )  # fmt: skip
        return fitting(messages, self._limit)


def fitting(messages: Messages, limit: int) -> Messages:
    """The messages; raises Rejected for the first that has more than `limit` bytes. (The
    publisher's own headers, subject and reply take some more.)"""
    if np.maximum.reduce(messages.sizes) > limit:
        raise _too_large(messages, int(np.argmax(messages.sizes > limit)), limit)
    return messages


def _too_large(messages: Messages, index: int, limit: int) -> Rejected:
    """The error for the first message that the server would not take."""
    place = messages.place(index)
    partition = next(run.origin.partition for run in messages.runs if index < run.stop)
    return Rejected(
        f"the change at {place} of {partition} is {messages.sizes[index]} bytes as a "
        f"message; the server takes {limit}",
        hint="raise max_payload of nats-server, or leave the large column out",
    )


def routes_of(template: Template, layout: Layout) -> Routes:
    """Routes whose subjects are the template's and whose fields are the layout's."""
    return Routes(template.segments, layout.shared)


def body_formatters(layout: Layout, pieces: Any) -> dict[bool, Formatter]:
    """The formatter of a layout's pieces, by whether images have to be converted."""
    names = (*_ROUTED, *layout.extra_names)
    return {False: Formatter(pieces, names), True: Formatter(pieces, (*names, *IMAGES))}


def routed_columns(columns: Columns, routed: Routed, layout: Layout) -> tuple[Columns, bool]:
    """The columns with what the layout's pieces need; whether images were converted."""
    extras: dict[str, Any] = {"kind": routed.kinds, "fields": routed.fields}
    images = _with_images(columns, layout.dialect.images)
    extras |= layout.extras(columns, routed, images)
    return columns.with_extras(**extras, **images), bool(images)


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
                hint="give source and sink the same encoding of images",
            ) from None
    return found


def sizes_of(column: Column) -> Sizes:
    """Bytes of each value of a formatted column."""
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    return (ends[1:] - ends[:-1]).astype(np.int64)
