"""Rows of a table as pages of the log: what a snapshot reads goes through the decoder of changes.

COPY's text and pgoutput's are the output of the same functions. A row of the one, wrapped as an
Insert message of the other, is byte for byte what the log has of it. Pure.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.page import Page
from penstock.position import PartitionId, Place
from penstock.wire.pgoutput.context import Context, TypeEntry

_NULL = b"\\N"
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
# COPY's escapes (copyto.c, CopyAttributeOutText); any other character stands for itself.
_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
# CopyData `d` and its length, XLogData `w` and 24 bytes of LSNs and time.
_FRAME = struct.Struct(">cIc24x")
_LENGTH = struct.Struct(">cI")
_HEADS = [_LENGTH.pack(b"t", size) for size in range(256)]
_SPLIT = 1 << 16  # bytes that are split into rows at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPages:
    """Makes pages of COPY's text. `relation` is the Relation message, from `R`; `place` where the
    rows are: the first place after the snapshot."""

    partition: PartitionId
    place: Place
    relation: bytes
    columns: int
    types: dict[int, TypeEntry]
    key: tuple[str, ...]
    lsn: int
    taken_at: int

    def pages(self, data: Iterable[bytes], *, rows: int, size: int) -> Iterator[Page]:
        """Pages of at most `rows` rows and about `size` bytes, of COPY's text, cut anywhere."""
        head = b"I" + self.relation[1:5] + b"N" + struct.pack(">H", self.columns)
        messages: list[bytes] = []
        total = 0
        for line in _lines(data):
            body = head + (_cells(line) if self.columns else b"")
            messages.append(_FRAME.pack(b"d", 29 + len(body), b"w") + body)
            total += len(messages[-1])
            if len(messages) >= rows or total >= size:
                yield self._page(messages)
                messages, total = [], 0
        if messages:
            yield self._page(messages)

    def _page(self, messages: list[bytes]) -> Page:
        oid = int.from_bytes(self.relation[1:5], "big")
        context = Context(
            commit_lsn=self.lsn,
            committed_at=self.taken_at,
            relations=(self.relation,),
            types=self.types,
            keys={oid: self.key} if self.key else {},
        )
        return Page(
            partition=self.partition,
            first=self.place,
            last=self.place._replace(ordinal=len(messages) - 1),
            count=len(messages),
            captured_at=self.taken_at,
            context=context.pack(),
            payload=b"".join(messages),
        )


def _lines(data: Iterable[bytes]) -> Iterator[bytes]:
    """Rows without their line ends. A line break in a value is escaped."""
    pieces: list[bytes] = []
    size = 0
    for piece in data:
        pieces.append(piece)
        size += len(piece)
        if size >= _SPLIT:
            lines = b"".join(pieces).split(b"\n")
            pieces = [lines.pop()]
            size = len(pieces[0])
            yield from lines
    yield from b"".join(pieces).split(b"\n")[:-1]


def _cells(line: bytes) -> bytes:
    parts: list[bytes] = []
    for value in line.split(b"\t"):
        if value == _NULL:
            parts.append(b"n")
            continue
        if b"\\" in value:
            value = _ESCAPE.sub(_unescaped, value)  # noqa: PLW2901
        size = len(value)
        parts += [_HEADS[size] if size < len(_HEADS) else _LENGTH.pack(b"t", size), value]
    return b"".join(parts)


def _unescaped(match: "re.Match[bytes]") -> bytes:
    return _ESCAPES.get(match[1], match[1])
