"""What rows of bytes are made of: one piece after the other, the same list for every row.

Names are those of the columns that a `Formatter` is run over.
"""

from typing import Literal, NamedTuple

# How a text is written. `line` is as it is, but with a line break it is refused.
Form = Literal["plain", "line", "msgpack", "json"]


class Const(NamedTuple):
    """The same in every row."""

    data: bytes


class RawPiece(NamedTuple):
    """A value's bytes as they are; `null` instead of a null."""

    column: str
    form: Form = "plain"
    null: bytes = b""


class Header(NamedTuple):
    """A value without line breaks after `before`; nothing for a null."""

    column: str
    before: bytes


class TextPiece(NamedTuple):
    """A string of the encoding; `null` instead of a null."""

    column: str
    form: Form
    null: bytes


class Pick(NamedTuple):
    """One of a few values, by a column of their numbers."""

    number: str
    values: str


class Time(NamedTuple):
    """Microseconds since 1970 as `2026-11-21T10:02:03.000004Z`; `null` instead of a null."""

    column: str
    form: Form
    null: bytes


class PlacePiece(NamedTuple):
    """CURSOR:ORDINAL."""

    cursor: str
    ordinal: str
    form: Form


class Strings(NamedTuple):
    """A list of strings as an array of the encoding; `null` instead of a null."""

    column: str
    form: Form
    null: bytes


class Size(NamedTuple):
    """Bytes of the pieces `first` to before `last` in this row, in decimal. They may be Const,
    plain Raw, Pick, Count, Edge and Behind."""

    first: int
    last: int


class Count(NamedTuple):
    """The row's number in decimal, from the number that the run is given for its first row."""


class Edge(NamedTuple):
    """One of four values from `at` on, by the row's place: middle, first, last, the only one."""

    values: str
    at: int = 0


class Behind(NamedTuple):
    """The value of the row before this one, as it is; in the first row number `at` of `values`."""

    column: str
    values: str
    at: int = 0


Piece = (
    Const
    | RawPiece
    | TextPiece
    | Pick
    | Time
    | PlacePiece
    | Strings
    | Size
    | Count
    | Edge
    | Behind
    | Header
)


def merged(*pieces: Piece | bytes) -> tuple[Piece, ...]:
    """Neighbouring constants as one; bytes are constants."""
    found: list[Piece] = []
    for piece in pieces:
        one = Const(piece) if isinstance(piece, bytes) else piece
        if found and isinstance(one, Const) and isinstance(found[-1], Const):
            one = Const(found.pop().data + one.data)  # type: ignore[union-attr]
        if one != Const(b""):
            found.append(one)
    return tuple(found)
