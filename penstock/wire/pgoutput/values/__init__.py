"""Column values: PostgreSQL's text form -> what a row image holds.

The session that sends them must have the settings in SESSION; the converters rely on them.
Everything is a function from bytes to a value that orjson (JSON images) or ormsgpack (MessagePack
images) takes; it raises ValueError on bytes that are not of its type.
"""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.model.change import Images
from penstock.model.errors import Malformed
from penstock.wire.documents import document_as_json, element_as_json
from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.values.arrays import array_of
from penstock.wire.pgoutput.values.binary import binary, binary_as_base64
from penstock.wire.pgoutput.values.numbers import boolean, floating, integer
from penstock.wire.pgoutput.values.text import text
from penstock.wire.pgoutput.values.times import date, timestamp, timestamptz
from penstock.wire.pgoutput.values.type_catalog import ARRAYS, BUILT_IN, Family

Converter = Callable[[bytes], Any]
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

_FAMILIES: Mapping[Family, Converter] = {
    "boolean": boolean,
    "integer": integer,
    "float": floating,
    "text": text,
    "bytea": binary,
    "json": text,
    "jsonb": text,
    "date": date,
    "timestamp": timestamp,
    "timestamptz": timestamptz,
}
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


def converter(
    oid: int, types: Types, images: Images, unknown: set[str], depth: int = 0
) -> Converter:
    """How a column of type `oid` is converted for such images.

    A domain is its base type; enums, ranges, multiranges and composites are their text. A type
    that neither the catalog nor `types` has is its text as well, and its name joins `unknown`.
    """
    if depth > _DEPTH:
        raise Malformed(f"type {oid} is defined by itself")
    family = BUILT_IN.get(oid)
    if family is not None:
        return (images == "json" and _IN_JSON.get(family)) or _FAMILIES[family]
    entry = _ARRAYS.get(oid) or types.get(oid)
    if entry is None:
        unknown.add(f"type with OID {oid}")
        return text
    match entry.kind:
        case "d":
            return converter(entry.inner, types, images, unknown, depth + 1)
        case "a":
            element = converter(entry.inner, types, images, unknown, depth + 1)
            if element is document_as_json:
                element = element_as_json
            return array_of(element, entry.delimiter)
        case "b":
            unknown.add(entry.name)
    return text
