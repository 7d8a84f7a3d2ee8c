"""Row by row in Python: the formatter where there is no compiled kernel, and the maps that layouts
of one's own make bodies of."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.encoding.columns import BINARY, Column, Columns, hashes_of
from penstock.sinks.encoding.dialect import Dialect
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
from penstock.sinks.encoding.routes import Routed

_IMAGES = {"key": "key", "data": "after", "before": "before", "delta": "delta"}
_ZONE = pa.scalar("Z", pa.string())
_EMPTY = pa.scalar("", pa.string())


class LineBreak(Exception):
    """There is one in a row where none may be."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def lines(pieces: Sequence[Piece], columns: Columns, first: int) -> Iterator[bytes]:
    """The bytes of each row; `first` is the `Count` of the first. Raises LineBreak."""
    written = [_written(piece, columns, first) for piece in pieces]
    for at, piece in enumerate(pieces):
        if isinstance(piece, Size):  # of what comes after it
            written[at] = _sizes(written[piece.first : piece.last])
    pattern = b"".join(
        [one.replace(b"%", b"%%") if isinstance(one, bytes) else b"%b" for one in written]
    )
    values = [one for one in written if not isinstance(one, bytes)]
    if not values:
        return repeat(pattern % (), columns.rows)
    return (pattern % row for row in zip(*values, strict=True))


def _written(  # noqa: PLR0911
    piece: Piece, columns: Columns, first: int
) -> bytes | Iterable[bytes]:
    """A piece in each row, or in all; nothing yet for a Size."""
    rows = columns.rows
    match piece:
        case Const(data):
            return data
        case Pick(number, values):
            known = columns[values].values
            return known[0] if len(known) == 1 else [known[n] for n in columns[number].tolist()]
        case Count():
            return [b"%d" % number for number in range(first, first + rows)]
        case Edge(values, at):
            middle, head, last, only = columns[values].values[at : at + 4]
            return [only] if rows == 1 else [head, *[middle] * (rows - 2), last]
        case Behind(column, values, at):
            return [columns[values].values[at], *_bytes(columns[column])[: rows - 1]]
        case RawPiece() | TextPiece() | Strings() | Time() | PlacePiece():
            return _value(piece, columns)
    return b""


def _value(  # noqa: PLR0911
    piece: RawPiece | TextPiece | Strings | Time | PlacePiece, columns: Columns
) -> bytes | Iterable[bytes]:
    match piece:
        case RawPiece(name, form, null):
            column = columns[name]
            if column.null_count == columns.rows:
                return null
            return _refused([null if one is None else one for one in _bytes(column)], form)
        case Time(name, form):
            return _packed(_iso(columns[name]), form)
        case PlacePiece(cursor, ordinal, form):
            if form in ("json", "msgpack"):
                return _packed(_positions(columns[cursor], columns[ordinal]), form)
            places = zip(_bytes(columns[cursor]), columns[ordinal].to_pylist(), strict=True)
            return _refused([b"%b:%d" % place for place in places], form)
        case TextPiece(name, form):
            return _packed(columns[name].cast(pa.string()).to_pylist(), form)
        case Strings(name, form):
            return _packed(columns[name].to_pylist(), form)


def _sizes(written: Sequence[bytes | Iterable[bytes]]) -> bytes | list[bytes]:
    size = sum([len(one) for one in written if isinstance(one, bytes)])
    others = [map(len, one) for one in written if isinstance(one, list)]
    if not others:
        return b"%d" % size
    return [b"%d" % (size + sum(row)) for row in zip(*others, strict=True)]


def _bytes(column: Column) -> list[Any]:
    found: list[Any] = column.cast(BINARY).to_pylist()
    return found


def _packed(values: list[Any], form: Form) -> bytes | Iterator[bytes]:
    """One at a time; see `binary`. Transactions and times are mostly the same in all rows."""
    pack: Any = orjson.dumps if form == "json" else ormsgpack.packb
    first = values[0]
    if values[-1] == first and values.count(first) == len(values):
        return bytes(pack(first))
    return map(pack, values)


def _refused(found: list[bytes], form: Form) -> list[bytes]:
    if form == "line":
        joined = b"".join(found)
        if b"\n" in joined or b"\r" in joined:
            raise LineBreak(next(n for n, one in enumerate(found) if b"\n" in one or b"\r" in one))
    return found


def change_maps(
    columns: Columns, routed: Routed, names: Sequence[str], dialect: Dialect, connector: str
) -> Iterator[dict[str, Any]]:
    """The fields `names` of each change; see `Layout.fields`. The images of `columns` are in the
    dialect's encoding."""
    kinds, routes = routed.kinds.tolist(), [route.values for route in routed.routes]
    taken: list[list[Any]] = []
    for name in names:
        if name in routes[0]:
            taken.append(list(map([route[name] for route in routes].__getitem__, kinds)))
        elif name == "connector":
            taken.append([connector] * len(kinds))
        else:
            taken.append(_field(name, columns, dialect))
    return (dict(zip(names, row, strict=True)) for row in zip(*taken, strict=True))


def _field(name: str, columns: Columns, dialect: Dialect) -> list[Any]:
    if name in _IMAGES:
        return _images(columns[_IMAGES[name]], dialect)
    match name:
        case "position":
            return _positions(columns["cursor"], columns["ordinal"])
        case "committed_at" | "captured_at":
            return _iso(columns[name])
        case "committed_ms" | "captured_ms":
            micros = columns[f"{name[:-2]}at"].cast(pa.int64()).to_pylist()
            return [None if one is None else one // 1000 for one in micros]
        case "hash_partition":
            return list(hashes_of(columns["route"]).tolist())
    found: list[Any] = columns[name].to_pylist()
    return found


def _images(column: Column, dialect: Dialect) -> list[Any]:
    return [None if one is None else dialect.image(one) for one in _bytes(column)]


def _positions(cursors: Column, ordinals: Column) -> list[str]:
    places = zip(cursors.to_pylist(), ordinals.to_pylist(), strict=True)
    return [f"{cursor}:{ordinal}" for cursor, ordinal in places]


def _iso(column: Column) -> list[str | None]:
    """`2026-11-21T10:02:03.000004Z`: the cast writes all six digits, and a space for the T."""
    text = pc.binary_replace_slice(column.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    found: list[str | None] = pc.binary_join_element_wise(text, _ZONE, _EMPTY).to_pylist()
    return found
