"""Formatting with pyarrow alone: the reference that the compiled kernel is compared with, and what
runs where there is none."""

import re
from collections.abc import Callable
from typing import Any, assert_never

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.encoding.columns import BINARY, Column, Columns
from penstock.sinks.encoding.pieces import (
    Behind,
    Const,
    Count,
    Edge,
    Form,
    Pick,
    Piece,
    PlacePiece,
    RawPiece,
    Size,
    Strings,
    TextPiece,
    Time,
)

__all__ = ["LineBreak", "format_rows"]

_ESCAPED_IN_JSON = re.compile(rb'["\\\x00-\x1f]')
_LINE_BREAK = re.compile(rb"[\r\n]")
_SHORT = pa.array([bytes([0xA0 | n]) if n < 32 else bytes([0xD9, n]) for n in range(256)], BINARY)


class LineBreak(Exception):
    """There is one in a row where none may be."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def format_rows(pieces: tuple[Piece, ...], columns: Columns, first: int) -> Column:
    """See `Formatter.run`; raises LineBreak."""
    formatted: list[Column] = []
    for piece in pieces:
        if isinstance(piece, Size):  # of what comes after it
            formatted.append(None)
        else:
            formatted.append(_formatted(piece, columns, first))
    for at, piece in enumerate(pieces):
        if isinstance(piece, Size):
            sizes = [_sized(one) for one in formatted[piece.first : piece.last]]
            formatted[at] = _digits(pa.array(sum(sizes, np.zeros(columns.rows, np.int64))))
    if all(isinstance(one, bytes) for one in formatted):
        return pa.array([b"".join(formatted)] * columns.rows, BINARY)
    return _join(*formatted)


def _formatted(piece: Piece, columns: Columns, first: int) -> Column:
    match piece:
        case Const(data):
            return data
        case Size():
            raise AssertionError(piece)
        case Count():
            return _digits(pa.array(range(first, first + columns.rows), pa.int64()))
        case Pick(number, values):
            return pa.array(columns[values].values, BINARY).take(pa.array(columns[number]))
        case Edge() | Behind():
            return _placed(piece, columns)
        case PlacePiece(cursor, ordinal, form):
            parts = columns[cursor].cast(BINARY), b":", _digits(columns[ordinal])
            return _text(_join(*parts), form)
        case _:
            column, null = _converted(piece, columns[piece.column]), piece.null
            return pc.fill_null(column, pa.scalar(null, BINARY)) if column.null_count else column


def _placed(piece: Edge | Behind, columns: Columns) -> Column:
    values, rows = columns[piece.values].values, columns.rows
    if isinstance(piece, Behind):
        before = columns[piece.column].cast(BINARY).slice(0, rows - 1)
        return pa.concat_arrays([pa.array([values[piece.at]], BINARY), before])
    where = [piece.at + (row == 0) + 2 * (row == rows - 1) for row in range(rows)]
    return pa.array([values[number] for number in where], BINARY)


def _converted(piece: RawPiece | TextPiece | Time | Strings, column: Column) -> Column:
    match piece:
        case RawPiece():
            return _refused(column.cast(BINARY), piece.form)
        case TextPiece():
            return _text(column.cast(BINARY), piece.form)
        case Time():
            return _few(column, lambda times: _text(_iso(times), piece.form))
        case Strings():
            return _strings(column, piece.form)
        case _:
            assert_never(piece)


def _join(*pieces: Column) -> Column:
    """Row by row, the pieces one after the other: columns, or bytes that are the same for all."""
    columns = [pa.scalar(piece, BINARY) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", BINARY))


def _sized(column: Column) -> Any:
    return len(column) if isinstance(column, bytes) else np.asarray(pc.binary_length(column))


def _refused(column: Column, form: Form) -> Column:
    if form == "line" and _LINE_BREAK.search(_bytes_of(column)):
        found = (
            row for row, one in enumerate(column.to_pylist()) if one and _LINE_BREAK.search(one)
        )
        raise LineBreak(next(found))
    return column


def _text(column: Column, form: Form) -> Column:
    match form:
        case "plain" | "line":
            return _refused(column, form)
        case "json":
            return _quoted(column)
        case "msgpack":
            return _headed(column)
        case _:
            assert_never(form)


def _headed(column: Column) -> Column:
    lengths: Any = pc.binary_length(column)
    if (pc.max(lengths).as_py() or 0) < 256:
        heads = _SHORT.take(lengths)
    else:
        heads = pa.array([_string_head(n) for n in lengths.to_pylist()], BINARY)
    return _join(heads, column)


def _string_head(length: int | None) -> bytes | None:
    if length is None:
        return None
    if length < 256:
        return bytes([0xA0 | length]) if length < 32 else bytes([0xD9, length])
    if length < 1 << 16:
        return b"\xda" + length.to_bytes(2, "big")
    return b"\xdb" + length.to_bytes(4, "big")


def _quoted(column: Column) -> Column:
    if _ESCAPED_IN_JSON.search(_bytes_of(column)):
        texts = [None if v is None else orjson.dumps(v.decode()) for v in column.to_pylist()]
        return pa.array(texts, BINARY)
    return _join(b'"', column, b'"')


def _bytes_of(column: Column) -> memoryview:
    """The bytes of all values, with no copy."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)
    return memoryview(data)[bounds[column.offset] : bounds[column.offset + len(column)]]


def _strings(column: Column, form: Form) -> Column:
    pack: Any = orjson.dumps if form == "json" else ormsgpack.packb
    none = pack([])
    lists = [None if one is None else pack(one) if one else none for one in column.to_pylist()]
    return pa.array(lists, BINARY)


def _few(column: Column, encode: Callable[[Column], Column]) -> Column:
    """Encodes each distinct value of a column that mostly has few."""
    values = column.dictionary_encode(null_encoding="encode")
    return encode(values.dictionary).take(values.indices)


def _digits(column: Column) -> Column:
    return column.cast(pa.string()).cast(BINARY)


def _iso(column: Column) -> Column:
    # The cast writes all six digits, and a space for the T.
    text = column.cast(pa.timestamp("us")).cast(pa.string())
    return _join(pc.binary_replace_slice(text, 10, 11, "T").cast(BINARY), b"Z")
