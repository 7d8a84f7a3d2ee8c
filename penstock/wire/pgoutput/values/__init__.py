"""Column values: PostgreSQL's text form -> what a row image holds.

The session that sends them must have the settings in SESSION; the converters rely on them.
Everything is a function from bytes to a value that orjson (JSON images) or ormsgpack (MessagePack
images) takes; it raises ValueError on bytes that are not of its type. Lines of COPY have the text
itself, and only document ids and tenants of these values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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

Types = Mapping[int, TypeEntry]
# Each as its type; as `typed`, but arrays as PostgreSQL's text; all as PostgreSQL's text.
Written = Literal["typed", "bridge", "text"]

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

# The types that every PostgreSQL has, by family: OID, and OID of the array type (0 = none). Others
# come with the page's context.
_TYPES: dict[str, tuple[tuple[int, int], ...]] = {
    "boolean": ((16, 1000),),
    # int8, int2, int4, oid
    "integer": ((20, 1016), (21, 1005), (23, 1007), (26, 1028)),
    "float": ((700, 1021), (701, 1022)),
    "bytea": ((17, 1001),),
    "json": ((114, 199),),
    "jsonb": ((3802, 3807),),
    "date": ((1082, 1182),),
    "timestamp": ((1114, 1115),),
    "timestamptz": ((1184, 1185),),
    "text": (
        # "char", name, text, bpchar, varchar, numeric, uuid, money, bit, varbit
        (18, 1002), (19, 1003), (25, 1009), (1042, 1014), (1043, 1015), (1700, 1231),
        (2950, 2951), (790, 791), (1560, 1561), (1562, 1563),
        # time, timetz, interval
        (1083, 1183), (1266, 1270), (1186, 1187),
        # inet, cidr, macaddr, macaddr8, xml, tsvector, tsquery, jsonpath
        (869, 1041), (650, 651), (829, 1040), (774, 775), (142, 143), (3614, 3643),
        (3615, 3645), (4072, 4073),
        # point, lseg, path, box, polygon, line, circle
        (600, 1017), (601, 1018), (602, 1019), (603, 1020), (604, 1027), (628, 629), (718, 719),
        # ranges: int4, num, ts, tstz, date, int8; then their multiranges
        (3904, 3905), (3906, 3907), (3908, 3909), (3910, 3911), (3912, 3913), (3926, 3927),
        (4451, 6150), (4532, 6151), (4533, 6152), (4534, 6153), (4535, 6155), (4536, 6157),
        # tid, xid, cid, xid8, pg_lsn, txid_snapshot, pg_snapshot, refcursor, int2vector, oidvector
        (27, 1010), (28, 1011), (29, 1012), (5069, 271), (3220, 3221), (2970, 2949), (5038, 5039),
        (1790, 2201), (22, 1006), (30, 1013),
        # regproc, regprocedure, regoper, regoperator, regclass, regtype, regconfig, regdictionary,
        # regnamespace, regrole, regcollation, aclitem
        (24, 1008), (2202, 2207), (2203, 2208), (2204, 2209), (2205, 2210), (2206, 2211),
        (3734, 3735), (3769, 3770), (4089, 4090), (4096, 4097), (4191, 4192), (1033, 1034),
    ),
}  # fmt: skip

BUILT_IN: dict[int, str] = {oid: family for family, types in _TYPES.items() for oid, _ in types}

# array OID -> element OID
ARRAYS: dict[int, int] = {array: oid for types in _TYPES.values() for oid, array in types if array}

# How it is converted, and the number of values.h that the native kernel knows it by.
_FAMILIES: Mapping[str, tuple[Converter, int]] = {
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
_IN_JSON: Mapping[str, Converter] = {
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
    """What the native kernel makes of a type, or of an array's elements and `delimiter`."""

    number: int
    delimiter: str = ""

    @property
    def identifies(self) -> bool:
        """Whether the kernel can make a document id of it."""
        return self.number != _DOCUMENT


_TEXT = ValueKind(_FAMILIES["text"][1])


def value_of(
    oid: int,
    types: Types,
    images: Images,
    unknown: set[str],
    *,
    values: Written = "typed",
    depth: int = 0,
) -> tuple[Converter, ValueKind | None]:
    """How a column of type `oid` is converted for such images, and as what the native kernel does
    the same; None if it has no such kind.

    A domain is its base type; enums, ranges, multiranges and composites are their text. A type
    that neither the catalog nor `types` has is its text as well, and its name joins `unknown`.
    """
    if values == "text":
        return text, _TEXT
    if depth > _DEPTH:
        raise Malformed(f"type {oid} is defined by itself", "wire")
    if (family := BUILT_IN.get(oid)) is not None:
        convert, number = _FAMILIES[family]
        return (images != "msgpack" and _IN_JSON.get(family)) or convert, ValueKind(number)
    entry = _ARRAYS.get(oid) or types.get(oid)
    if entry is None:
        unknown.add(f"type with OID {oid}")
    elif entry.kind == "b":
        unknown.add(entry.name)
    elif entry.kind == "d" or (entry.kind == "a" and values == "typed"):
        element, inner = value_of(
            entry.inner, types, images, unknown, values=values, depth=depth + 1
        )
        if entry.kind == "d":
            return element, inner
        if element is document_as_json:
            element = element_as_json
        kind, plain = None, len(entry.delimiter) == 1 and entry.delimiter.isascii()
        # In an array of a domain over an array, elements are quoted arrays.
        if inner is not None and not inner.delimiter and plain:
            kind = ValueKind(inner.number, entry.delimiter)
        return array_of(element, entry.delimiter), kind
    return text, _TEXT
