"""A batch of changes -> messages, one for each change, column by column."""

import ctypes
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.model.change import IMAGES, Images, images_of
from penstock.model.errors import Rejected
from penstock.native import NativeColumn
from penstock.sinks.messages.compression import Compression
from penstock.sinks.messages.convert import Unconvertible, converted
from penstock.sinks.messages.destinations import Subjects
from penstock.sinks.messages.dialect import Dialect
from penstock.sinks.messages.formatter import Formatter, Texts, Together
from penstock.sinks.messages.kinds import KindFinder, KindSet, RowKinds
from penstock.sinks.messages.layout import Layout
from penstock.sinks.messages.message import Framing, Headers, Messages
from penstock.sinks.messages.plain import LineBreak, change_maps
from penstock.sinks.messages.traces import Traces
from penstock.sinks.rows import kernel as native
from penstock.sinks.rows.columns import FIRST_EXTRA, Column, Columns, binary, sizes_of
from penstock.sinks.rows.part import Origin, Part
from penstock.sinks.subject import Template

_PLANS = 1000  # that are kept: of each origin and set of kinds


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
        self.columnar = columnar = layout.columnar(dialect)
        self._formatters: dict[bool, Formatter] = {}  # by whether images are converted
        if columnar is not None:
            self.pieces = self._separator, *columnar.pieces(element=element)
            for images in ((), IMAGES):
                names = "kind", "fields", *images, *columnar.extras
                self._formatters[bool(images)] = Formatter(self.pieces, names)
            self._subjects = Subjects(template)
        self.kinds = KindFinder(template.segments, columnar)

    def unlike(self, part: Part) -> bool:
        """Whether images of the part have another encoding."""
        return part.images != self._dialect.images

    def of(self, part: Part, row_kinds: RowKinds) -> Column:
        """The bytes of each change. Raises Rejected."""
        images = _with_images(part.columns, self._dialect.images)
        if (columnar := self.columnar) is not None:
            extras = {"kind": row_kinds.numbers, "fields": row_kinds.set.fields, **images}
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
        compression: Compression | None = None, traces: Traces | None = None,
    ) -> None:  # fmt: skip
        self._bodies, self._headers, self._compression = bodies, headers, compression
        self._traces = traces
        self._subjects = Subjects(template)
        self._usual: Usual | None = None
        if compression is None and traces is None and not template.joints:
            self._usual = Usual.of(headers, bodies, self._subjects)

    def encode(self, part: Part) -> Messages:
        columns = part.columns
        row_kinds = self._bodies.kinds.of(columns)
        if self._usual is not None and (made := self._usual.run(part, row_kinds)) is not None:
            return Messages(part.runs, part, *made)
        lines = row_kinds.set.schema_lines
        schemas = None if lines is None else (row_kinds.numbers, lines)
        traces = None if self._traces is None else self._traces.lines(part)
        headers = self._headers.of(part.runs, columns, schemas, traces)
        bodies = self._bodies.of(part, row_kinds)
        if self._compression is not None:
            headers, bodies = self._compression.of(
                headers, bodies, row_kinds.numbers, row_kinds.set.kinds
            )
        subjects = self._subjects.of(part, row_kinds)
        weight = int((sizes_of(headers) + sizes_of(bodies)).sum())
        messages = Messages(part.runs, part, Texts.of(subjects, headers, bodies), weight)
        return fitting(messages, self._headers.framing)


class _Plan(NamedTuple):
    """How parts with changes of one origin and of some kinds are formatted. `columns` has room for
    a batch's; what else it points to is `held`."""

    formatters: Together
    columns: Any
    held: KindSet


class Usual:
    """The usual part at once: changes of one origin, whose images are in the dialect's encoding."""

    def __init__(self, headers: Headers, bodies: Bodies, subjects: Subjects) -> None:
        self._headers, self._bodies, self._subjects = headers, bodies, subjects
        self._plans: dict[tuple[Origin, int], _Plan] = {}

    @classmethod
    def of(cls, headers: Headers, bodies: Bodies, subjects: Subjects) -> "Usual | None":
        """None without the kernel, and where bodies need more than the columns of changes."""
        columnar = bodies.columnar
        if native.kernel() is None or columnar is None or columnar.extras:
            return None
        return cls(headers, bodies, subjects)

    def run(self, part: Part, row_kinds: RowKinds) -> tuple[Texts, int] | None:
        """Subjects, headers and bodies, and the bytes of the latter two; None for another part, and
        for one with a change that cannot be stored."""
        rows, given = len(part), part.columns.native
        if given is None or len(part.runs) > 1 or self._bodies.unlike(part):
            return None
        plan = self._plan(part.runs[0].origin, row_kinds)
        ctypes.memmove(plan.columns, given, ctypes.sizeof(given))
        plan.columns[len(given)] = NativeColumn(None, None, row_kinds.at, 0, rows)
        try:
            made = plan.formatters.run(plan.columns, rows)
        except LineBreak:
            return None
        if made is None:
            return None
        texts, weight, most = made
        return None if most > self._headers.framing.limit else (texts, weight)

    def _plan(self, origin: Origin, row_kinds: RowKinds) -> _Plan:
        # The values are kept with the plan: no others have their id.
        key = origin, id(row_kinds.set.fields)
        if (plan := self._plans.get(key)) is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._made(origin, row_kinds)
        return plan

    def _made(self, origin: Origin, row_kinds: RowKinds) -> _Plan:
        lines = row_kinds.set.schema_lines
        values: dict[str, Any] = dict(
            zip(self._subjects.parts, row_kinds.set.subjects, strict=True)
        )
        values["fields"] = row_kinds.set.fields
        if lines is not None:
            values["schema_lines"] = lines
        names = ("kind", *values)
        columns = Columns(0, kind=np.empty(0, np.int32), **values)
        room = (NativeColumn * (FIRST_EXTRA + len(names)))()
        room[FIRST_EXTRA:] = columns.native
        headers = self._headers.pieces(origin, None if lines is None else "kind", traced=False)
        pieces = self._subjects.pieces, headers, self._bodies.pieces
        formatters = (Formatter(each, names) for each in pieces)
        return _Plan(Together(*formatters), room, row_kinds.set)


def fitting(messages: Messages, framing: Framing) -> Messages:
    """The messages; raises Rejected for the first that has more bytes than its system takes. (The
    publisher's own headers, subject and reply take some more.)"""
    sizes = messages.sizes
    if np.maximum.reduce(sizes) > framing.limit:
        index = int(np.argmax(sizes > framing.limit))
        partition = next(run.origin.partition for run in messages.runs if index < run.stop)
        raise Rejected(
            f"the change at {messages.place(index)} of {partition} is {sizes[index]} bytes"
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
