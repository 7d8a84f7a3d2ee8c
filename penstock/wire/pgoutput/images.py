"""A row as an image: a map in JSON or MessagePack, or a line of COPY."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.wire.pgoutput.values.scalars import Converter, text

# A map of column values -> a row image. Raises TypeError on a value that the encoding can't hold.
Pack = Callable[[Any], bytes]

# What a row of a relation is decoded with: (name, converter) in the order of the wire.
Cells = list[tuple[str, Converter]]

# copyto.c, CopyAttributeOutText. (In a class, \b is a backspace.)
_SPECIAL = re.compile(r"[\\\b\f\n\r\t\v]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
                          "\t": "\\t", "\v": "\\v"})  # fmt: skip
_NULL, _UNSENT = "\\N", "\\U"


class RowImages(Protocol):
    """What images are made of, and how, for one relation. A row maps names of columns to what
    `cells` makes of them."""

    cells: Cells

    def row(self, row: dict[str, Any], /) -> bytes:
        """The image of a row, as far as it was sent."""

    def key(self, key: dict[str, Any], /) -> bytes:
        """The image of all columns of the key."""

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        """What the document id or the tenant is made of, as `layout.key_text` takes it."""


class Maps:
    """`RowImages` that are maps of column name to value."""

    def __init__(self, cells: Cells, pack: Pack) -> None:
        self.cells = cells
        self.row = self.key = pack

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        return list(row.values())


class Lines:
    r"""`RowImages` that are lines of COPY's text format without their end: all columns in the
    relation's order, parted by tabs. Null is `\N`, and `\U` a column that was not sent, or (of a K
    tuple) is no key.
    `identifying` are the columns whose text is converted as well: the key's, the tenant's."""

    def __init__(self, cells: Cells, key: Sequence[str], identifying: Sequence[str | None]) -> None:
        self._converters = {name: convert for name, convert in cells if name in identifying}
        self.cells: Cells = [(name, text) for name, _ in cells]
        self._names = [name for name, _ in cells]
        self._key = [name for name in self._names if name in key]

    def row(self, row: dict[str, Any]) -> bytes:
        return _line(row, self._names)

    def key(self, key: dict[str, Any]) -> bytes:
        return _line(key, self._key)

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        return [
            None if value is None else self._converters.get(name, text)(value.encode())
            for name, value in row.items()
        ]


def _line(row: Mapping[str, str | None], names: Sequence[str]) -> bytes:
    if _SPECIAL.search("\0".join(filter(None, row.values()))):
        row = {name: value and value.translate(_ESCAPES) for name, value in row.items()}
    cells = [row.get(name, _UNSENT) for name in names]
    return "\t".join([_NULL if cell is None else cell for cell in cells]).encode()
