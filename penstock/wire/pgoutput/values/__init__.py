"""Column values: PostgreSQL's text form -> what a row image holds.

The session that sends them must have the settings in SESSION; the converters rely on them.
Everything is a function from bytes to a value that orjson (JSON images) or ormsgpack (MessagePack
images) takes; it raises ValueError on bytes that are not of its type. Lines of COPY have the text
itself, and only document ids and tenants of these values.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.change import Images
from penstock.model.errors import Malformed
from penstock.wire.documents import document_as_json, element_as_json
from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.values.arrays import array_of
from penstock.wire.pgoutput.values.scalars import (
    Converter,
    binary,
    binary_as_base64,
    boolean,
    date,
    floating,
    integer,
    text,
    timestamp,
    timestamptz,
)
from penstock.wire.pgoutput.values.type_catalog import ARRAYS, BUILT_IN, Family

Types = Mapping[int, TypeEntry]

# What the session that sends values must be set to: one value has one text, whatever the server,
# the database, the role or libpq's environment prefer.
SESSION: Mapping[str, str] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",  # values that are names have schemas, and our SQL finds no others
}

# How it is converted, and the number of values.h that the native kernel knows it by.
_FAMILIES: Mapping[Family, tuple[Converter, int]] = {
    "boolean": (boolean, 1),
    "integer": (integer, 2),
    "float": (floating, 3),
    "text": (text, 4),
    "bytea": (binary, 5),
    "json": (text, 6),
    "jsonb": (text, 6),
    "date": (date, 7),
    "timestamp": (timestamp, 8),
    "timestamptz": (timestamptz, 9),
}
_DOCUMENT = 6
_IN_JSON: Mapping[Family, Converter] = {
    "bytea": binary_as_base64,
    "json": document_as_json,
    "jsonb": document_as_json,
}
_BOX = 603
_ARRAYS: Types = {
    array: TypeEntry(kind="a", name="", inner=oid, delimiter=";" if oid == _BOX else ",")
    for array, oid in ARRAYS.items()
}
# Domains over domains and arrays of arrays of domains: deeper than this is a cycle.
_DEPTH = 32


@dataclass(frozen=True, slots=True)
class ValueKind:
    """What the native kernel makes of a type: a scalar's number; or an array's elements', with what
    parts them."""

    number: int
    delimiter: str = ""

    @property
    def identifies(self) -> bool:
        """Whether the kernel can make a document id of it."""
        return self.number != _DOCUMENT


def value_of(
    oid: int, types: Types, images: Images, unknown: set[str], depth: int = 0
) -> tuple[Converter, ValueKind | None]:
    """How a column of type `oid` is converted for such images, and as what the native kernel does
    the same; None if it has no such kind.

    A domain is its base type; enums, ranges, multiranges and composites are their text. A type
    that neither the catalog nor `types` has is its text as well, and its name joins `unknown`.
    """
    if depth > _DEPTH:
        raise Malformed(f"type {oid} is defined by itself")
    family = BUILT_IN.get(oid)
    if family is not None:
        convert, number = _FAMILIES[family]
        return (images != "msgpack" and _IN_JSON.get(family)) or convert, ValueKind(number)
    entry = _ARRAYS.get(oid) or types.get(oid)
    if entry is None:
        unknown.add(f"type with OID {oid}")
    elif entry.kind == "b":
        unknown.add(entry.name)
    elif entry.kind in ("d", "a"):
        element, inner = value_of(entry.inner, types, images, unknown, depth + 1)
        if entry.kind == "d":
            return element, inner
        if element is document_as_json:
            element = element_as_json
        kind, plain = None, len(entry.delimiter) == 1 and entry.delimiter.isascii()
        # In an array of a domain over an array, elements are quoted arrays.
        if inner is not None and not inner.delimiter and plain:
            kind = ValueKind(inner.number, entry.delimiter)
        return array_of(element, entry.delimiter), kind
    return text, ValueKind(_FAMILIES["text"][1])
