"""BSON values as JSON and MessagePack have them: one table for both encodings.

Text, booleans, null, numbers, arrays and documents stay what they are. What both encodings have no
word for is text (ObjectId, Date, UUID, Decimal128, integers past 2**53, numbers that are none) or
has the form of MongoDB's Extended JSON (Timestamp, Regex, MinKey and the like). In a `key` every
type is kept, in the form of Extended JSON.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.son import SON
from bson.timestamp import Timestamp

from penstock.model.images import base64_of

# How documents are decoded: dates as milliseconds, because Python's end in the year 9999.
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)

_SAFE = 2**53 - 1
_EPOCH = datetime(1970, 1, 1)
_LEAST, _MOST = -62135596800000, 253402300799999  # the years 1 to 9999
_CYCLE = 146_097 * 86_400_000  # milliseconds of 400 years
_FLAGS = ((re.I, "i"), (re.L, "l"), (re.M, "m"), (re.S, "s"), (re.U, "u"), (re.X, "x"))

Convert = Callable[[Any], Any]


def plain(value: Any) -> Any:
    """A decoded value as images have it. Raises TypeError for a type that BSON has not."""
    convert = _PLAIN.get(type(value), _unknown)
    return value if convert is None else convert(value)


def typed(value: Any) -> Any:
    """The same with its type, as keys have it."""
    convert = _TYPED.get(type(value), _unknown)
    return value if convert is None else convert(value)


def document_text(found: Any) -> str:
    """An `_id` as text; a document as JSON, in the order in which it was sent."""
    if isinstance(found, float) and found.is_integer() and abs(found) <= _SAFE:
        found = int(found)  # the server compares them equal
    if isinstance(found, bytes) and type(found) is bytes:
        return b64encode(found).decode()
    shown = plain(found)
    return shown if isinstance(shown, str) else orjson.dumps(shown, default=base64_of).decode()


def flat(document: dict[str, Any]) -> dict[str, Any]:
    """Nested documents as dotted columns; arrays, and what would give two of one name, stay."""
    found: dict[str, Any] = {}
    count = _flatten("", document, found)
    return found if count == len(found) else document


def date_text(milliseconds: int) -> str:
    """`2026-01-02T03:04:05.678Z`; years outside 0001 to 9999 with a sign and six digits."""
    if _LEAST <= milliseconds <= _MOST:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
        return moment.isoformat(timespec="milliseconds") + "Z"
    cycles, rest = divmod(milliseconds, _CYCLE)  # from 1970: 400 years repeat
    moment = _EPOCH + timedelta(milliseconds=rest)
    year = moment.year + 400 * cycles
    sign = "-" if year < 0 else "+"
    return f"{sign}{abs(year):06d}{moment.isoformat(timespec='milliseconds')[4:]}Z"


def _flatten(prefix: str, document: dict[str, Any], into: dict[str, Any]) -> int:
    count = 0
    for name, value in document.items():
        if type(value) is dict and value and not next(iter(value)).startswith("$"):
            count += _flatten(f"{prefix}{name}.", value, into)
        else:
            into[prefix + name] = value
            count += 1
    return count


def _document(value: Mapping[str, Any]) -> dict[str, Any]:
    # Without a call for each field that stays what it is: this is most of the cost of an image.
    return {
        name: each if (convert := _PLAIN.get(type(each), _unknown)) is None else convert(each)
        for name, each in value.items()
    }


def _typed_document(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: typed(each) for name, each in value.items()}


def _array(value: list[Any]) -> list[Any]:
    return [plain(each) for each in value]


def _float(value: float) -> float | str:
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124


def _long(value: int) -> int | str:
    number = int(value)
    return number if -_SAFE <= number <= _SAFE else str(number)


def _binary(value: Binary) -> dict[str, Any]:
    return {"$binary": {"base64": b64encode(value).decode(), "subType": f"{value.subtype:02x}"}}


def _regex(value: Regex[Any]) -> dict[str, Any]:
    pattern = value.pattern
    text = pattern if isinstance(pattern, str) else pattern.decode()
    options = "".join(letter for flag, letter in _FLAGS if value.flags & flag)
    return {"$regularExpression": {"pattern": text, "options": options}}


def _code(value: Code) -> dict[str, Any]:
    code = {"$code": str(value)}
    return code if value.scope is None else code | {"$scope": _document(value.scope)}


def _unknown(value: Any) -> Any:
    raise TypeError(f"a value of the type {type(value).__name__}")


_PLAIN: dict[type, Convert | None] = {
    str: None, int: None, bool: None, type(None): None, bytes: None,
    float: _float, Int64: _long, dict: _document, SON: _document, list: _array,
    ObjectId: str, Decimal128: str, UUID: str, Binary: _binary, Regex: _regex, Code: _code,
    DatetimeMS: lambda value: date_text(int(value)),
    Timestamp: lambda value: {"$timestamp": {"t": value.time, "i": value.inc}},
    MinKey: lambda _: {"$minKey": 1}, MaxKey: lambda _: {"$maxKey": 1},
    DBRef: lambda value: _document(value.as_doc()),
}  # fmt: skip
_TYPED: dict[type, Convert | None] = {
    **_PLAIN,
    bytes: lambda value: _binary(Binary(value)),
    float: lambda v: v if v - v == 0 else {"$numberDouble": _float(v)},
    Int64: lambda v: int(v) if -_SAFE <= v <= _SAFE else {"$numberLong": str(int(v))},
    dict: _typed_document, SON: _typed_document,
    list: lambda value: [typed(each) for each in value],
    ObjectId: lambda value: {"$oid": str(value)},
    Decimal128: lambda value: {"$numberDecimal": str(value)},
    UUID: lambda value: {"$uuid": str(value)},
    DatetimeMS: lambda value: {"$date": date_text(int(value))},
    DBRef: lambda value: _typed_document(value.as_doc()),
}  # fmt: skip
