"""Which types the native kernel converts, and as what: the numbers are those of values.h."""

from dataclasses import dataclass

from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.values.type_catalog import ARRAYS, BUILT_IN, Family

_NUMBERS: dict[Family, int] = {
    "boolean": 1,
    "integer": 2,
    "float": 3,
    "text": 4,
    "bytea": 5,
    "json": 6,
    "jsonb": 6,
    "date": 7,
    "timestamp": 8,
    "timestamptz": 9,
}
_DOCUMENT = 6
_BOX_ARRAY = 1020
_DEPTH = 32


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A scalar's number; or an array's elements', with what parts them."""

    number: int
    delimiter: str = ""

    @property
    def identifies(self) -> bool:
        """Whether the kernel can make a document id of it."""
        return self.number != _DOCUMENT


def kind_of(oid: int, types: dict[int, TypeEntry], depth: int = 0) -> ValueKind | None:
    """What `values.converter` makes of this type, as a kind; None if the kernel has none."""
    family = BUILT_IN.get(oid)
    if family is not None:
        return ValueKind(_NUMBERS[family])
    if oid in ARRAYS:
        return ValueKind(_NUMBERS[BUILT_IN[ARRAYS[oid]]], ";" if oid == _BOX_ARRAY else ",")
    entry = types.get(oid)
    if entry is None or entry.kind not in ("d", "a"):
        return ValueKind(_NUMBERS["text"])
    if depth > _DEPTH:
        return None
    inner = kind_of(entry.inner, types, depth + 1)
    if entry.kind == "d" or inner is None:
        return inner
    # An array of a domain over an array: its elements are quoted arrays.
    plain = not inner.delimiter and len(entry.delimiter) == 1 and entry.delimiter.isascii()
    return ValueKind(inner.number, entry.delimiter) if plain else None
