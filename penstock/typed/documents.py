"""Documents of row images -> Arrow columns under a schema that a user gives.

No conversion loses anything: a value that its column's type cannot hold exactly is a misfit, with
three exceptions that the types ask for: a `float32` is the nearest one, a timestamp is cut to
microseconds (as Spark does), and a string column takes any value, as its JSON text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation, localcontext
from struct import error, pack
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
from pyarrow import types

from penstock.model.errors import SettingsError
from penstock.model.images import base64_of, bytes_of

Document = Mapping[str, Any]
# A value as pyarrow takes it for a type; raises ValueError.
Leaf = Callable[[Any], Any]

_INTEGER = re.compile(r"-?[1-9][0-9]*|0")
_INFINITE = ("NaN", "Infinity", "-Infinity")
# Digits after those of microseconds.
_FINER = re.compile(r"(\.\d{6})\d+")


class FieldMisfit(NamedTuple):
    """A value that its column's type cannot hold: the number of its document, where it is in it,
    the type of the column there, and what was found, without the value."""

    row: int
    path: str
    type: str
    found: str


@dataclass(frozen=True)
class DocumentColumns:
    """Reads documents under the schema; raises SettingsError for a type that documents have not."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        for field in self.schema:
            _verify(field.type, field.name)

    def columns(
        self, documents: Sequence[Document | None]
    ) -> tuple[list["pa.Array[Any]"], dict[str, list[FieldMisfit]]]:
        """A column for each field of the schema, and by its name what did not fit, which is null
        there. No document, and a field that it does not have, is null."""
        rows = range(len(documents))
        found, misfits = [], {}
        for field in self.schema:
            name, unfit = field.name, list[FieldMisfit]()
            values = [None if each is None else each.get(name) for each in documents]
            found.append(_Column(values, rows, name, field.type, unfit).read())
            if unfit:
                misfits[name] = unfit
        return found, misfits


def text_of(value: Any) -> str:
    """A value as a string column has it: text as it is, bytes as base64, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64_of(value)
    return orjson.dumps(value, default=base64_of).decode()


@dataclass(slots=True)
class _Column:
    """The values at a path of the documents with the numbers `rows`; `unfit` has what did not fit.
    The list of values may change."""

    values: list[Any]
    rows: Sequence[int]
    path: str
    kind: Any
    unfit: list[FieldMisfit]

    def read(self) -> Any:
        """The column as Arrow has it."""
        kind = self.kind
        if types.is_struct(kind):
            self._only(dict)
            inner = []
            for field in kind:
                below = [None if each is None else each.get(field.name) for each in self.values]
                inner.append(self._below(below, self.rows, f".{field.name}", field.type))
            mask = pa.array([each is None for each in self.values], pa.bool_())
            return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
        if types.is_list(kind):
            self._only(list)
            offsets, parents = self._offsets()
            elements = [element for each in self.values if each for element in each]
            found = self._below(elements, parents, "[]", kind.value_type)
            return pa.ListArray.from_arrays(offsets, found, type=kind)
        if types.is_map(kind):
            self._only(dict)
            offsets, parents = self._offsets()
            keys = pa.array([key for each in self.values if each for key in each], kind.key_type)
            elements = [item for each in self.values if each for item in each.values()]
            found = self._below(elements, parents, "{}", kind.item_type)
            maps: Any = pa.MapArray
            return maps.from_arrays(offsets, keys, found, type=kind)
        return self._leaves()

    def _below(self, values: list[Any], rows: Sequence[int], step: str, kind: Any) -> Any:
        return _Column(values, rows, self.path + step, kind, self.unfit).read()

    def _only(self, wanted: type) -> None:
        for number, value in enumerate(self.values):
            if value is not None and not isinstance(value, wanted):
                self._misfit(number)

    def _misfit(self, number: int) -> None:
        found = _kind_of(self.values[number])
        self.unfit.append(FieldMisfit(self.rows[number], self.path, str(self.kind), found))
        self.values[number] = None

    def _offsets(self) -> tuple[Any, list[int]]:
        """Where each value's elements begin (null: no value), and the document of each element."""
        offsets: list[int | None] = []
        parents: list[int] = []
        for number, value in enumerate(self.values):
            offsets.append(None if value is None else len(parents))
            parents += [self.rows[number]] * len(value or ())
        return pa.array([*offsets, len(parents)], pa.int32()), parents

    def _leaves(self) -> Any:
        quick, leaf = _of(self.kind)
        if quick.issuperset(map(type, self.values)):
            try:
                if types.is_timestamp(self.kind):
                    return pa.array(self.values, pa.string()).cast(self.kind)
                return pa.array(self.values, self.kind)
            except (pa.ArrowInvalid, OverflowError):
                pass  # value by value
        for number, value in enumerate(self.values):
            if value is not None:
                try:
                    self.values[number] = leaf(value)
                except (ValueError, OverflowError, InvalidOperation):
                    self._misfit(number)
        return pa.array(self.values, self.kind)


def _verify(kind: Any, path: str) -> None:
    """Raises SettingsError for a type that no document has."""
    if types.is_struct(kind) and all(each.nullable for each in kind):  # a variant has others
        for each in kind:
            _verify(each.type, f"{path}.{each.name}")
    elif types.is_list(kind):
        _verify(kind.value_type, f"{path}[]")
    elif types.is_map(kind) and types.is_string(kind.key_type):
        _verify(kind.item_type, f"{path}{{}}")
    elif _of(kind) is _UNKNOWN:
        raise SettingsError(
            f"the column {path} of the schema has the type {kind}, which documents do not have",
            "typed",
            hint="declare it as a string, and convert it in the query",
        )


_NONE = type(None)
_UNKNOWN: tuple[frozenset[type], Leaf] = frozenset(), text_of


def _of(kind: Any) -> tuple[frozenset[type], Leaf]:
    """The types of values that pyarrow itself reads as we do, and what reads any value."""
    if types.is_decimal128(kind):
        return frozenset({_NONE}), lambda value: _decimal(value, kind.precision, kind.scale)
    if types.is_timestamp(kind) and kind.unit == "us":
        return frozenset({_NONE, str}), _moment if kind.tz else _wall_clock
    return _LEAVES.get(kind, _UNKNOWN)


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise ValueError


def _integer(bits: int) -> Leaf:
    most = 2 ** (bits - 1)

    def integer(value: Any) -> int:
        """Whole numbers, and text that is one as numbers are written: images have long ones so."""
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value) if len(value) <= 20 else most
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is int and -most <= value < most:
            return value
        raise ValueError

    return integer


def _double(value: Any) -> float:
    if isinstance(value, str) and value in _INFINITE:
        return float(value)
    if isinstance(value, float):
        return value
    number = _number(value)
    found = float(number)
    if Decimal(repr(found)) != number:
        raise ValueError
    return found


def _single(value: Any) -> float:
    found = float(value) if isinstance(value, str) and value in _INFINITE else float(_number(value))
    try:
        pack("<f", found)
    except error:
        raise ValueError from None
    return found


def _number(value: Any) -> Decimal:
    if isinstance(value, float):
        value = repr(value)
    if type(value) not in (int, str) or (isinstance(value, str) and value.strip() != value):
        raise ValueError
    found = Decimal(value)
    if not found.is_finite() or "_" in str(value):
        raise ValueError
    return found


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    number = _number(value)
    with localcontext(prec=precision) as context:
        found = number.quantize(Decimal(1).scaleb(-scale), context=context)
    if found != number:
        raise ValueError
    return found


def _moment(value: Any) -> datetime:
    found = _time(value)
    if found.tzinfo is None:
        raise ValueError
    return found.astimezone(UTC)


def _wall_clock(value: Any) -> datetime:
    found = _time(value)
    if found.utcoffset():  # UTC, too, is the clock's own time in a MongoDB date
        raise ValueError
    return found.replace(tzinfo=None)


def _time(value: Any) -> datetime:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004 - what does not fit is of one kind
    return datetime.fromisoformat(_FINER.sub(r"\1", value))


def _day(value: Any) -> date:
    found = _time(value)
    if found.time() != time() or found.utcoffset():
        raise ValueError
    return found.date()


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict) and set(value) == {"$binary"}:
        return bytes_of(value["$binary"]["base64"])
    raise ValueError


def _kind_of(value: Any) -> str:
    """The type of a value, as documents call it."""
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", dict: "a document",
             list: "an array", bytes: "binary data"}  # fmt: skip
    return names.get(type(value), type(value).__name__)


_LEAVES: dict[Any, tuple[frozenset[type], Leaf]] = {
    pa.string(): (frozenset({_NONE, str}), text_of),
    pa.bool_(): (frozenset({_NONE, bool}), _boolean),
    pa.int8(): (frozenset({_NONE, int}), _integer(8)),
    pa.int16(): (frozenset({_NONE, int}), _integer(16)),
    pa.int32(): (frozenset({_NONE, int}), _integer(32)),
    pa.int64(): (frozenset({_NONE, int}), _integer(64)),
    pa.float32(): (frozenset({_NONE}), _single),
    pa.float64(): (frozenset({_NONE, float}), _double),
    pa.date32(): (frozenset({_NONE}), _day),
    pa.binary(): (frozenset({_NONE, bytes}), _binary),
}
