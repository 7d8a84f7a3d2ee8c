"""The header `traceparent` (W3C Trace Context) of changes, where their source has one.

It comes in a logical message of the transaction, before the changes that it is of, or in a field of
the row itself. What is no traceparent makes no header.
"""

import re
from collections.abc import Callable
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import Operation, images_of
from penstock.sinks.messages.settings import TraceparentSettings
from penstock.sinks.rows.columns import Column
from penstock.sinks.rows.part import Part

HEADER = "traceparent"
_VALID = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# Transactions that are remembered: parts of them may be encoded again.
_REMEMBERED = 10_000
_MESSAGE = pa.scalar(Operation.MESSAGE.value, pa.string())
Read = Callable[[Any], Any]
_LINE = "\r\n" + HEADER + ": "


class Traces:
    """What is known of the transactions of one sink's changes, which come in order."""

    def __init__(self, settings: TraceparentSettings) -> None:
        self._settings = settings
        # Backend and cursor of a transaction -> the ordinal of the message, and the line.
        self._known: dict[tuple[str, ...], tuple[int, str]] = {}

    def lines(self, part: Part) -> Column | None:
        """The header of each row with its line break before it; null where there is none. None:
        there is none in any row."""
        batch = part.batch
        read: Read = orjson.loads if images_of(batch.schema) == "json" else _of_msgpack
        lines = self._of_transactions(batch, read) if self._settings.message else {}
        if self._settings.field:
            lines |= self._of_rows(batch, read)
        if not lines:
            return None
        return pa.array([lines.get(row) for row in range(len(batch))], pa.string())

    def _of_transactions(self, batch: pa.RecordBatch, read: Read) -> dict[int, str]:
        self._remember(batch, read)
        if not self._known:
            return {}
        names = ("backend", "cursor", "ordinal")
        taken: list[list[Any]] = [batch.column(name).to_pylist() for name in names]
        backends, cursors, ordinals = taken
        lines = {}
        for row, key in enumerate(zip(backends, cursors, strict=True)):
            found = self._known.get(key)
            if found is not None and ordinals[row] > found[0]:
                lines[row] = found[1]
        return lines

    def _remember(self, batch: pa.RecordBatch, read: Read) -> None:
        """Transactions whose message is in the batch. One that is not transactional has a cursor of
        its own, which no other change has."""
        prefix: Any = pa.scalar(self._settings.message, pa.string())
        is_message: Any = pc.equal(batch.column("operation"), _MESSAGE)
        wanted: Any = pc.and_(is_message, pc.equal(batch.column("collection"), prefix))
        if not pc.any(wanted).as_py():
            return
        said = batch.filter(wanted).select(["backend", "cursor", "ordinal", "after"])
        for backend, cursor, ordinal, after in zip(*said.to_pydict().values(), strict=True):
            if (line := _line(read(after).get("content"))) is not None:
                self._known[backend, cursor] = ordinal, line
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    def _of_rows(self, batch: pa.RecordBatch, read: Read) -> dict[int, str]:
        """Of the row as it is after the change; of one that was deleted, as it was before."""
        field, lines = self._settings.field, {}
        images = zip(batch.column("after"), batch.column("before"), strict=True)
        for row, (after, before) in enumerate(images):
            image = after.as_py() if after.is_valid else before.as_py()
            if image is not None and (line := _line(read(image).get(field))) is not None:
                lines[row] = line
        return lines


def _of_msgpack(image: bytes) -> Any:
    return ormsgpack.unpackb(image, option=ormsgpack.OPT_NON_STR_KEYS)


def _line(value: Any) -> str | None:
    return _LINE + value if isinstance(value, str) and _VALID.fullmatch(value) else None
