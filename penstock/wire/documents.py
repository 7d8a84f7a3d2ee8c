"""json and jsonb in row images.

A MessagePack image has the document's text: MessagePack holds neither the digits of its numbers nor
the JSON null apart from SQL's. A JSON image takes objects, arrays, numbers and booleans nested, as
they are, so nothing is lost: digits, key order, even repeated keys. All else is a string with the
document's JSON text, so that a string in such a column always is JSON text: strings, null, and what
is JSON for PostgreSQL and not for every parser (half surrogates, numbers beyond a double, more than
200 levels).

An image that came through a transform is JSON that becomes MessagePack, whatever its columns are:

* a number that neither a 64-bit integer nor a double holds exactly is a string of its digits,
* half a surrogate pair becomes `?`,
* a document nested deeper than 240 levels has no image.
"""

import json
from contextlib import suppress
from decimal import Decimal
from typing import Any, NoReturn

import orjson
import ormsgpack

from penstock.model.images import base64_of

# Every digit, sign and dot of a number becomes 0, so that long numbers are runs of zeros.
_SHAPE = bytes(48 if chr(code) in "0123456789." else code for code in range(256))
# Doubles hold every number of 15 digits,
_LONG = b"0" * 16
# and lose small ones without a word (jsonb writes no exponents, json keeps what it was given).
_TINY = b"e-000"
# ormsgpack nests 255 levels; a row image and array dimensions take some of them.
_NESTS = 200
_MARGIN = 14
# orjson reads 1,024 levels, and writes 254.
_AROUND = 1024 - _NESTS


def error_image(
    images: str, *, reason: str, error: str, raw: bytes, context: bytes
) -> dict[str, Any]:
    """An ERROR change's `after`, not packed: payload (`raw`) and context of a page of it alone."""
    as_text = images != "msgpack"
    return {
        "reason": reason,
        "error": error,
        "raw": base64_of(raw) if as_text else raw,
        "context": base64_of(context) if as_text else context,
    }


def document_as_json(raw: bytes) -> orjson.Fragment | str:
    """A document nested in a JSON image, checked; its text as a string where it cannot be."""
    deep = _AROUND if raw.count(b"[") + raw.count(b"{") > _NESTS else 0
    try:
        value = orjson.loads(b"[" * deep + raw + b"]" * deep)
    except orjson.JSONDecodeError:
        with suppress(RecursionError):
            _loads(raw)
        return raw.decode()
    return raw.decode() if value is None or isinstance(value, str) else orjson.Fragment(raw)


def element_as_json(raw: bytes) -> orjson.Fragment | str:
    """The same as an element of an array, whose lists are its dimensions: arrays are text."""
    found = document_as_json(raw)
    return raw.decode() if raw.lstrip()[:1] == b"[" else found


def _document(raw: bytes) -> Any:
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


def image_as_written(raw: bytes) -> Any:
    """A parsed image, as far as MessagePack can hold it."""
    return _exact(raw) if _TINY in raw.lower().translate(_SHAPE) else _document(raw)


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
