"""json and jsonb: nested in the row image.

A JSON image takes the text as it is, so nothing is lost: digits, key order, even repeated keys.
A MessagePack image holds the parsed document; what MessagePack can't hold becomes text:

* a number that neither a 64-bit integer nor a double holds exactly is a string of its digits,
* half a surrogate pair (json allows `\\ud800`, UTF-8 does not) becomes `?`,
* a document nested deeper than 240 levels is a string of its JSON text. (So it is in JSON images
  past 1,024 levels, where no parser of ours can vouch for it.)
"""

import json
from decimal import Decimal
from typing import Any, NoReturn

import orjson
import ormsgpack

# Every digit, sign and dot of a number becomes 0, so that long numbers are runs of zeros.
_SHAPE = bytes(48 if chr(code) in "0123456789." else code for code in range(256))
# Doubles hold every number of 15 digits,
_LONG = b"0" * 16
# and lose small ones without a word (jsonb writes no exponents, json keeps what it was given).
_TINY = b"e-000"
# ormsgpack nests 255 levels; a row image and array dimensions take some of them.
_NESTS = 200
_MARGIN = 14


def document_as_json(raw: bytes) -> orjson.Fragment | str:
    """The text itself, checked."""
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Valid for PostgreSQL all the same: huge numbers, half surrogates, great depth.
        try:
            _loads(raw)
        except RecursionError:
            return raw.decode()
    return orjson.Fragment(raw)


def document(raw: bytes) -> Any:
    """The parsed document of a jsonb, as far as MessagePack can hold it."""
    size = len(raw)
    if size >= len(_LONG) and raw.translate(_SHAPE).find(_LONG) >= 0:
        return _exact(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _exact(raw)
    if size > 2 * _NESTS and raw.count(b"[") + raw.count(b"{") > _NESTS and not _fits(value):
        return raw.decode()
    return value


def document_as_written(raw: bytes) -> Any:
    """The same for json, which may write numbers with exponents."""
    return _exact(raw) if _TINY in raw.lower().translate(_SHAPE) else document(raw)


def _exact(raw: bytes) -> Any:
    try:
        value = _loads(raw)
        if not _fits(value):
            return raw.decode()
        if b"\\u" in raw:
            value = ormsgpack.unpackb(
                ormsgpack.packb(value, option=ormsgpack.OPT_REPLACE_SURROGATES)
            )
    except RecursionError:
        return raw.decode()
    return value


def _fits(value: Any) -> bool:
    nested = value
    for _ in range(_MARGIN):
        nested = [nested]
    try:
        ormsgpack.packb(nested, option=ormsgpack.OPT_REPLACE_SURROGATES)
    except TypeError:
        return False
    return True


def _loads(raw: bytes) -> Any:
    return json.loads(
        raw.decode(), parse_int=_integer, parse_float=_number, parse_constant=_no_constant
    )


def _integer(digits: str) -> int | str:
    if len(digits) > 20:
        return digits
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else digits


def _number(digits: str) -> float | str:
    value = float(digits)
    if value - value != 0:
        return digits
    return value if Decimal(repr(value)) == Decimal(digits) else digits


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
