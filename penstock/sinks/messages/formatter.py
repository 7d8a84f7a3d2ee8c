"""Rows of bytes out of columns, the same pieces in every row, in one pass.

A `Formatter` is made once and run often: over all rows of some `Columns`, by the compiled kernel,
or by `plain` where there is none.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, assert_never

import pyarrow as pa

from penstock.native import NativeColumn
from penstock.sinks.messages import plain
from penstock.sinks.messages.pieces import (
    Behind,
    Const,
    Count,
    Edge,
    Header,
    Pick,
    Piece,
    PlacePiece,
    RawPiece,
    Size,
    Strings,
    TextPiece,
    Time,
    merged,
)
from penstock.sinks.messages.plain import LineBreak
from penstock.sinks.rows import kernel as native
from penstock.sinks.rows.columns import BINARY, ITEMS, Column, Columns, slot
from penstock.sinks.rows.kernel import UNKNOWN, NativeFormatting, NativePiece, NativeSizes

# The enumerations of format.c.
_KINDS = (
    Const, RawPiece, TextPiece, Pick, Time, PlacePiece, Strings, Size, Count, Edge, Behind, Header,
)  # fmt: skip
_FORMS = {"plain": 0, "line": 1, "msgpack": 2, "json": 3}
_MOST = (1 << 31) - 1  # bytes that a column may have


class Formatter:
    """`extras` names the columns beside the batch's; with `batch` False there are no others."""

    def __init__(
        self, pieces: Sequence[Piece | bytes], extras: Sequence[str] = (), *, batch: bool = True
    ) -> None:
        sized = any(isinstance(piece, Size) for piece in pieces)
        # A Size counts pieces: they have to stay where they are.
        self.pieces = tuple(
            [Const(one) if isinstance(one, bytes) else one for one in pieces]
            if sized
            else merged(*pieces)
        )

        def number(name: str) -> int:
            return slot(name, extras, batch=batch)

        # The pieces as the kernel has them.
        self.native = (NativePiece * len(self.pieces))(
            *(_compiled(piece, number) for piece in self.pieces)
        )

    def run(self, columns: Columns, first: int = 0) -> Column:
        """A binary column. `Count` is `first` in its first row. Raises LineBreak."""
        if (formatted := self._run(columns, first)) is None:
            return pa.array(plain.lines(self.pieces, columns, first), BINARY)
        ends, data, _ = formatted
        return pa.Array.from_buffers(BINARY, columns.rows, [None, ends, data], 0)

    def bytes(self, columns: Columns, first: int = 0) -> pa.Buffer:
        """All rows, one after the other. Raises LineBreak."""
        if (formatted := self._run(columns, first)) is None:
            return pa.py_buffer(b"".join(plain.lines(self.pieces, columns, first)))
        _, data, size = formatted
        return data.slice(0, size)

    def _run(self, columns: Columns, first: int) -> tuple[pa.Buffer, pa.Buffer, int] | None:
        """(where rows end, their bytes, how many); None when the kernel can't."""
        kernel, rows = native.kernel(), columns.rows
        if kernel is None or columns.native is None:
            return None
        count = len(self.pieces)
        bound = kernel.penstock_format_bound(self.native, count, columns.native, rows)
        if bound > _MOST:
            return None
        data, ends = pa.allocate_buffer(bound), pa.allocate_buffer(4 * (rows + 1))
        size = kernel.penstock_format(
            self.native, count, columns.native, rows, first, data.address, ends.address
        )
        if size == UNKNOWN:
            return None
        if size < 0:
            raise LineBreak(-1 - size)
        return ends, data, size


class Texts:
    """Subjects, headers and bodies of `rows` messages. `columns` are Arrow's, which are made when
    they are asked for; `written` is how a formatter takes them."""

    __slots__ = ("_columns", "_ends", "_found", "rows")

    def __init__(self, rows: int, found: pa.Buffer, ends: int) -> None:
        """Of what the kernel wrote to `found`: the ends of each, and from byte `ends` on all."""
        self.rows, self._found, self._ends = rows, found, ends
        self._columns: tuple[Column, Column, Column] | None = None

    @classmethod
    def of(cls, subjects: Column, headers: Column, bodies: Column) -> "Texts":
        """Of columns that are there."""
        texts = cls.__new__(cls)
        texts.rows, texts._columns = len(bodies), (subjects, headers, bodies)
        return texts

    @property
    def columns(self) -> tuple[Column, Column, Column]:
        if self._columns is None:
            rows, found, size = self.rows, self._found, 4 * (self.rows + 1)
            data = found.slice(self._ends)
            parts = [found.slice(size * number, size) for number in range(3)]
            subjects, headers, bodies = (
                pa.Array.from_buffers(BINARY, rows, [None, part, data], 0) for part in parts
            )
            self._columns = subjects, headers, bodies
        return self._columns

    @property
    def written(self) -> Sequence[Any]:
        if self._columns is not None:
            return self._columns
        at, size = self._found.address, 4 * (self.rows + 1)
        data = at + self._ends
        return [NativeColumn(None, at + size * number, data, 0, self.rows) for number in range(3)]


class Together:
    """The formatters of subjects, headers and bodies, which are run over the same columns in one
    call of the kernel, which is there. They have the same `extras`, and no `Count`."""

    def __init__(self, *formatters: Formatter) -> None:
        self._formatters = formatters  # whose pieces are pointed to
        self._native = (NativeFormatting * len(formatters))(
            *(NativeFormatting(each.native, len(each.pieces)) for each in formatters)
        )
        self._sizes = NativeSizes()
        self._at = ctypes.byref(self._sizes)

    def run(self, columns: Any, rows: int) -> tuple[Texts, int, int] | None:
        """The texts of `rows` rows of the kernel's columns; bytes of all headers and bodies, and
        of the largest ones. None when the kernel can't. Raises LineBreak."""
        kernel, count = native.kernel(), len(self._formatters)
        bound = kernel.penstock_format_all_bound(self._native, count, columns, rows)
        if bound > _MOST:
            return None
        ends = 4 * count * (rows + 1)
        found = pa.allocate_buffer(ends + bound)
        at = found.address
        size = kernel.penstock_format_all(
            self._native, count, columns, rows, at + ends, at, self._at
        )
        if size == UNKNOWN:
            return None
        if size < 0:
            raise LineBreak(-1 - size)
        return Texts(rows, found, ends), self._sizes.all, self._sizes.most


def _compiled(piece: Piece, number: Callable[[str], int]) -> NativePiece:
    kind = _KINDS.index(type(piece))
    match piece:
        case Const(data):
            made = NativePiece(kind, 0, 0, 0, data, len(data))
        case (
            RawPiece(column, form, null) | TextPiece(column, form, null) | Time(column, form, null)
        ):
            made = NativePiece(kind, number(column), 0, _FORMS[form], null, len(null))
        case Header(column, before):
            made = NativePiece(kind, number(column), 0, _FORMS["line"], before, len(before))
        case Strings(column, form, null):
            made = NativePiece(kind, number(column), ITEMS, _FORMS[form], null, len(null))
        case PlacePiece(cursor, ordinal, form):
            made = NativePiece(kind, number(cursor), number(ordinal), _FORMS[form], None, 0)
        case Pick(one, other):
            made = NativePiece(kind, number(one), number(other), 0, None, 0)
        case Size(first, last):
            made = NativePiece(kind, first, last, 0, None, 0)
        case Edge(values, at):
            made = NativePiece(kind, number(values), 0, at, None, 0)
        case Behind(column, values, at):
            made = NativePiece(kind, number(column), number(values), at, None, 0)
        case Count():
            made = NativePiece(kind, 0, 0, 0, None, 0)
        case _:
            assert_never(piece)
    return made
