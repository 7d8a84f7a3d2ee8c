"""Row by row in Python: the formatter where there is no compiled kernel, and the maps that layouts
of one's own make bodies of."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.messages.dialect import Dialect
from penstock.sinks.messages.kinds import RowKinds
from penstock.sinks.messages.pieces import (
    Behind,
    Const,
    Count,
    Edge,
    Form,
    Header,
    Pick,
    Piece,
    PlacePiece,
    RawPiece,
    Size,
    Strings,
    TextPiece,
    Time,
)
from penstock.sinks.rows.columns import BINARY, Column, Columns, hashes_of

_IMAGES = {"key": "key", "data": "after", "before": "before", "delta": "delta"}
_ZONE = pa.scalar("Z", pa.string())
_EMPTY = pa.scalar("", pa.string())
_COLON = pa.scalar(":", pa.string())


class LineBreak(Exception):
    """There is one in a row where none may be."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def lines(pieces: Sequence[Piece], columns: Columns, first: int) -> list[bytes]:
    """The bytes of each row; `first` is the `Count` of the first. Raises LineBreak."""
    written = [_written(piece, columns, first) for piece in pieces]
    for at, piece in enumerate(pieces):
        if isinstance(piece, Size):  # of what comes after it
            written[at] = _sizes(written[piece.first : piece.last], columns.rows)
    pattern = b"".join(
        [one.replace(b"%", b"%%") if isinstance(one, bytes) else b"%b" for one in written]
    )
    if not (values := [one for one in written if not isinstance(one, bytes)]):
        return [pattern % ()] * columns.rows
    return list(map(pattern.__mod__, zip(*values, strict=True)))


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
        case PlacePiece(cursor, ordinal, form):
            return _formed(_positions(columns[cursor], columns[ordinal]), form)
        case RawPiece(name) | TextPiece(name) | Strings(name) | Time(name) | Header(name):
            column = columns[name]
            # Most columns have one value in all rows of a batch.
            same = rows > 1 and column[1:].equals(column[:-1])
            found = _values(piece, column[:1] if same else column)
            return next(iter(found)) if same else found
    return b""


def _values(
    piece: RawPiece | TextPiece | Strings | Time | Header, column: Column
) -> Iterable[bytes]:
    match piece:
        case Header(before=before):
            values = _bytes(column)
            _refused([one or b"" for one in values], "line")
            return [b"" if one is None else before + one for one in values]
        case RawPiece(form=form, null=null):
            values = _bytes(column)
            if column.null_count:
                values = [null if one is None else one for one in values]
            return _refused(values, form)
        case Time(form=form):
            return _packed(_iso(column).to_pylist(), form)
        case TextPiece(form=form):
            return _formed(column.cast(pa.string()), form)
        case Strings(form=form):
            return _packed(column.to_pylist(), form)


def _formed(texts: Column, form: Form) -> Iterable[bytes]:
    if form in ("json", "msgpack"):
        return _packed(texts.to_pylist(), form)
    return _refused(_bytes(texts), form)


def _sizes(written: Sequence[bytes | Iterable[bytes]], rows: int) -> bytes | list[bytes]:
    size = sum([len(one) for one in written if isinstance(one, bytes)])
    if not (others := [one for one in written if isinstance(one, list)]):
        return b"%d" % size
    sizes = np.full(rows, size)
    for one in others:
        sizes += np.fromiter(map(len, one), np.int64, rows)
    return list(map(b"%d".__mod__, sizes.tolist()))


def _bytes(column: Column) -> list[Any]:
    found: list[Any] = column.cast(BINARY).to_pylist()
    return found


def _packed(values: list[Any], form: Form) -> Iterator[bytes]:
    """One at a time; see `binary`."""
    pack: Any = orjson.dumps if form == "json" else ormsgpack.packb
    return map(pack, values)


def _refused(found: list[bytes], form: Form) -> list[bytes]:
    if form == "line":
        joined = b"".join(found)
        if b"\n" in joined or b"\r" in joined:
            raise LineBreak(next(n for n, one in enumerate(found) if b"\n" in one or b"\r" in one))
    return found


def change_maps(
    columns: Columns, row_kinds: RowKinds, names: Sequence[str], dialect: Dialect, connector: str
) -> Iterator[dict[str, Any]]:
    """The fields `names` of changes; see `Layout.fields`. Images are in the dialect's encoding."""
    numbers, kinds = row_kinds.numbers.tolist(), [kind.values for kind in row_kinds.set.kinds]
    taken: list[list[Any]] = []
    for name in names:
        if name in kinds[0]:
            taken.append(list(map([kind[name] for kind in kinds].__getitem__, numbers)))
        elif name == "connector":
            taken.append([connector] * len(numbers))
        else:
            taken.append(_field(name, columns, dialect))
    return (dict(zip(names, row, strict=True)) for row in zip(*taken, strict=True))


def _field(name: str, columns: Columns, dialect: Dialect) -> list[Any]:
    if name in _IMAGES:
        images = _bytes(columns[_IMAGES[name]])
        return [None if one is None else dialect.image(one) for one in images]
    match name:
        case "position":
            places: list[Any] = _positions(columns["cursor"], columns["ordinal"]).to_pylist()
            return places
        case "committed_at" | "captured_at":
            times: list[Any] = _iso(columns[name]).to_pylist()
            return times
        case "committed_ms" | "captured_ms":
            micros = columns[f"{name[:-2]}at"].cast(pa.int64()).to_pylist()
            return [None if one is None else one // 1000 for one in micros]
        case "hash_partition":
            return list(hashes_of(columns["route"]).tolist())
    found: list[Any] = columns[name].to_pylist()
    return found


def _positions(cursors: Column, ordinals: Column) -> Column:
    texts = cursors.cast(pa.string()), ordinals.cast(pa.string())
    return pc.binary_join_element_wise(*texts, _COLON)


def _iso(column: Column) -> Column:
    """`2026-11-21T10:02:03.000004Z`: the cast writes all six digits, and a space for the T."""
    text = pc.binary_replace_slice(column.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    return pc.binary_join_element_wise(text, _ZONE, _EMPTY)
