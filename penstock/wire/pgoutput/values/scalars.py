"""Scalars: PostgreSQL's text of one value -> what a row image holds.

text, and every type that travels as its text (numeric at its declared scale, uuid, enums, inet,
ranges, composites), is UTF-8, because the session's client_encoding is; a database in SQL_ASCII may
send bytes that are not, and those are a ValueError (the decoder names table and column).

Integers and floats are numbers. A float that is no number travels as `NaN`, `Infinity` or
`-Infinity`, which is also how numeric spells it: JSON has no word for them.

bytea is bytes in MessagePack, base64 (RFC 4648, padded) in JSON. The session sends hex.

Dates and times are ISO 8601: timestamptz with Z, timestamp without. Years outside 0000 to 9999 use
the expanded form with a sign and six digits, the one that ECMAScript and java.time read too: the
year 12000 is `+012000`, 44 BC is `-000043` (there is a year zero in ISO 8601: 1 BC is `0000`).
Infinite ones stay `infinity` and `-infinity`. time, timetz and interval are ISO 8601 already
(IntervalStyle=iso_8601); they travel as text.
"""

import re
from binascii import unhexlify
from collections.abc import Callable
from typing import Any

from penstock.model.images import base64_of

Converter = Callable[[bytes], Any]

_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_INFINITE = ("infinity", "-infinity")
_SHAPE = re.compile(
    r"(\d{4,7})(-\d\d-\d\d)(?: (\d\d:\d\d:\d\d(?:\.\d{1,6})?)([+-]\d\d(?::\d\d){0,2})?)?( BC)?"
)

text = bytes.decode

# int2, int4, int8, oid: at most 64 bit, so exact in MessagePack and digit by digit in JSON.
integer = int


def floating(raw: bytes) -> float | str:
    """float4 and float8; the server writes the shortest text that reads back the same."""
    value = float(raw)
    if value - value == 0:  # not so for NaN and infinities
        return value
    text = raw.decode()
    if text in _NO_NUMBERS:
        return text
    raise ValueError("a float out of range")


def boolean(raw: bytes) -> bool:
    """`t` or `f`."""
    if raw == b"t":
        return True
    if raw == b"f":
        return False
    raise ValueError("neither t nor f")


def binary(raw: bytes) -> bytes:
    r"""`\x6869` -> b"hi"."""
    if raw[:2] != b"\\x":
        raise ValueError("bytea is not in hex format")
    return unhexlify(raw[2:])


def binary_as_base64(raw: bytes) -> str:
    r"""`\x6869` -> "aGk="."""
    return base64_of(binary(raw))


def timestamptz(raw: bytes) -> str:
    """`2026-01-02 03:04:05.6+00` -> `2026-01-02T03:04:05.6Z`."""
    text = raw.decode()
    if text[10:11] == " " and text[-3:] == "+00" and text[4] == "-":
        return f"{text[:10]}T{text[11:-3]}Z"
    return _unusual(text)


def timestamp(raw: bytes) -> str:
    """`2026-01-02 03:04:05.6` -> `2026-01-02T03:04:05.6`."""
    text = raw.decode()
    if text[10:11] == " " and text[-2:] != "BC" and text[4] == "-":
        return f"{text[:10]}T{text[11:]}"
    return _unusual(text)


def date(raw: bytes) -> str:
    """`2026-01-02` as it is."""
    text = raw.decode()
    return text if len(text) == 10 else _unusual(text)


def _unusual(text: str) -> str:
    if text in _INFINITE:
        return text
    if (match := _SHAPE.fullmatch(text)) is None:
        raise ValueError("not a date of DateStyle ISO")
    year, day, clock, offset, before_christ = match.groups()
    moment = _year(1 - int(year) if before_christ else int(year)) + day
    if clock is None:
        return moment
    return f"{moment}T{clock}{'Z' if offset == '+00' else offset or ''}"


def _year(year: int) -> str:
    if 0 <= year <= 9999:
        return f"{year:04d}"
    return f"{'-' if year < 0 else '+'}{abs(year):06d}"
