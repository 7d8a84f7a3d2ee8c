"""Many new rows of one relation at once: the same as `rows.read_tuple`, column by column.

numpy walks all rows in step, so that finding a cell costs no Python per cell; only its conversion
does. It takes no decisions: a row that is not entirely plain (a value that was not sent, bytes
that don't add up) is left to the row path, and so are all of them if one does not convert.
"""

from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.wire.pgoutput.rows import BROKEN
from penstock.wire.pgoutput.values import Converter

__all__ = ["WORTH_IT", "read_columns"]

# Below this many rows numpy's calls cost more than they save.
WORTH_IT = 40

_TEXT, _NULL, _NEW = b"tnN"

Positions = npt.NDArray[np.int64]


def read_columns(
    data: bytes, starts: list[int], stops: list[int], columns: list[tuple[str, Converter]]
) -> tuple[list[int], list[list[Any]]] | None:
    """Which of the rows were read, and their values, a list for each column. None if a value does
    not convert.

    A row's tuple (tag, count, cells) begins at its start and should end at its stop; `data` is
    padded with at least 16 bytes.
    """
    # Any uint32 that starts at any byte, and so for uint16.
    words = np.ndarray((len(data) - 3,), ">u4", buffer=data, strides=(1,))
    counts = np.ndarray((len(data) - 1,), ">u2", buffer=data, strides=(1,))
    octets = np.frombuffer(data, np.uint8)
    last = len(data) - 16
    at: Positions = np.array(starts, np.int64)
    plain = (octets[at] == _NEW) & (counts[at + 1] == len(columns))
    at += 3
    found: list[tuple[Positions, Positions, npt.NDArray[np.bool_]]] = []
    for _ in columns:
        kinds = octets[at]
        text = kinds == _TEXT
        begin = at + 5
        end = begin + words[at + 1]
        if not text.all():
            plain &= text | (kinds == _NULL)
            end = np.where(text, end, at + 1)
        found.append((begin, end, text))
        at = np.minimum(end, last)
    plain &= at == np.array(stops)
    chosen = np.flatnonzero(plain)
    every = len(chosen) == len(starts)
    try:
        values = [
            _convert(data, cells if every else tuple(part[chosen] for part in cells), convert)
            for cells, (_, convert) in zip(found, columns, strict=True)
        ]
    except BROKEN:
        return None
    return chosen.tolist(), values


def _convert(data: bytes, cells: tuple[Any, ...], convert: Converter) -> list[Any]:
    begin, end, text = cells
    if text.all():
        return [convert(data[a:b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    values: list[Any] = list(repeat(None, len(text)))
    where = np.flatnonzero(text)
    pieces = zip(where.tolist(), begin[where].tolist(), end[where].tolist(), strict=True)
    for index, a, b in pieces:
        values[index] = convert(data[a:b])
    return values
