"""Lines of COPY -> Arrow columns with the types of PostgreSQL's columns.

Arrow's reader of CSV splits and converts all lines at once. Python sees only values with escapes,
arrays and binary ones, and all of a column in which something does not fit, to say which one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableSchema
from penstock.wire.pgoutput.values.arrays import array_of
from penstock.wire.pgoutput.values.scalars import text

pc: Any = pyarrow.compute  # their functions take more than their types say
csv: Any = pyarrow.csv
Column: TypeAlias = "pa.Array[Any]"

_UTC = pa.timestamp("us", "UTC")
# PostgreSQL's types, as format_type writes them, and ours; all others are text, as the server
# writes them with penstock's settings of a session.
TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "oid": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "date": pa.date32(),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": _UTC,
    "bytea": pa.binary(),
}
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_DIGITS = 38  # of a decimal
_MODIFIER = re.compile(r"\(\d+\)")

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_BOM = b"\xef\xbb\xbf"  # the reader leaves one out


def arrow_type(name: str) -> pa.DataType:
    """Of a type of PostgreSQL without domains, as `format_type` writes it."""
    if name.endswith("[]"):
        return pa.list_(arrow_type(name[:-2]))
    if found := _NUMERIC.fullmatch(name):
        precision, scale = int(found[1]), int(found[2])
        return (
            pa.decimal128(precision, scale) if 0 <= scale <= precision <= _DIGITS else pa.string()
        )
    return TYPES.get(_MODIFIER.sub("", name), pa.string())


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What the cells of a table's lines are. `names`: of the columns in their order; `kinds`: their
    types in PostgreSQL, without domains; `schema`: ours, of the same columns. Pickles."""

    table: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, table: TableSchema, declared: pa.Schema | None = None) -> "TableColumns":
        """Of a table; of those columns that are `declared`, in that order and with those types,
        where a user has a schema. Raises SettingsError for a column that the table has not."""
        kinds = {str(each["name"]): str(each["base_type"]) for each in table.columns}
        name = f"{table.schema}.{table.table}"
        if declared is None:
            declared = pa.schema([(each, arrow_type(kind)) for each, kind in kinds.items()])
        if missing := [each for each in declared.names if each not in kinds]:
            raise SettingsError(
                f"{name} has no column {missing[0]}", "typed.column-missing",
                hint=f"there are: {', '.join(sorted(kinds))}",
            )  # fmt: skip
        names = tuple(declared.names)
        return cls(name, names, tuple(kinds[each] for each in names), declared)

    def columns(self, lines: bytes) -> list[Column]:
        """The columns of whole lines. Raises SettingsError for a value that a type cannot hold."""
        if not self.names:
            return []
        types = [_read_as(each) for each in self.schema.types]
        try:
            found = _cells(lines, types)
            return [self._column(*each) for each in enumerate(found)]
        except pa.ArrowInvalid:
            found = _cells(lines, [pa.string()] * len(types))
            return [self._column(*each) for each in enumerate(found)]

    def _column(self, number: int, cells: Column) -> Column:
        kind, wanted = self.kinds[number], self.schema.types[number]
        if cells.type == wanted and not pa.types.is_string(wanted):
            return cells
        try:
            return _converted(_unescaped(cells), kind, wanted)
        except (ValueError, pa.ArrowException):
            raise SettingsError(
                f"{self.table} has a value in the column {self.names[number]} ({kind}) that"
                f" {wanted} cannot hold",
                "typed.misfit",
                hint="give a schema in which the column is a string",
            ) from None


def _read_as(wanted: pa.DataType) -> pa.DataType:
    is_made = pa.types.is_binary(wanted) or pa.types.is_nested(wanted)
    return pa.string() if is_made else wanted


def _cells(lines: bytes, types: Sequence[pa.DataType]) -> list[Column]:
    names = [str(number) for number in range(len(types))]
    table = csv.read_csv(
        pa.BufferReader(_BOM + lines if lines.startswith(_BOM) else lines),
        csv.ReadOptions(column_names=names, use_threads=False, block_size=len(lines) + 8),
        csv.ParseOptions(
            delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False
        ),
        csv.ConvertOptions(
            column_types=dict(zip(names, types, strict=True)), null_values=["\\N"],
            strings_can_be_null=True, true_values=["t"], false_values=["f"],
            timestamp_parsers=[csv.ISO8601],
        ),
    )  # fmt: skip
    return [each.combine_chunks() for each in table.columns]


def _unescaped(cells: Column) -> Column:
    """COPY's escapes (copyto.c, CopyAttributeOutText); other characters stand for themselves."""
    escaped = pc.match_substring(cells, "\\").fill_null(False)
    if not pc.any(escaped).as_py():
        return cells
    found = [_ESCAPE.sub(_plain, each) for each in cells.filter(escaped).to_pylist() if each]
    plain: Column = pc.replace_with_mask(cells, escaped, pa.array(found, pa.string()))
    return plain


def _plain(match: "re.Match[str]") -> str:
    return _ESCAPES.get(match[1], match[1])


def _converted(texts: Column, kind: str, wanted: pa.DataType) -> Column:
    """Texts of values of a type of PostgreSQL. Raises ValueError, ArrowException."""
    if pa.types.is_string(wanted):
        return texts
    if pa.types.is_boolean(wanted):
        if unknown := {*texts.unique().to_pylist()} - {"t", "f", None}:
            raise ValueError(f"{len(unknown)} values")
        found: Column = pc.equal(texts, "t")
        return found
    if pa.types.is_binary(wanted):
        return pa.array([_binary(each) for each in texts.to_pylist()], wanted)
    if pa.types.is_list(wanted):
        return _lists(texts, kind, wanted)
    return texts.cast(wanted)


def _binary(cell: str | None) -> bytes | None:
    if cell is None:
        return None
    if not cell.startswith("\\x"):
        raise ValueError("not a value of bytea")
    return bytes.fromhex(cell[2:])


def _lists(texts: Column, kind: str, wanted: Any) -> Column:
    """Arrays of one dimension, whose first element has the number 1."""
    parse = array_of(text, ";" if kind == "box[]" else ",")
    found = [None if each is None else parse(each.encode()) for each in texts.to_pylist()]
    if not kind.endswith("[]") or any(isinstance(each, str) for each in found):
        raise ValueError("no array, or one that counts from elsewhere")
    offsets, flat = [0], list[Any]()
    for each in found:
        flat += each or ()
        offsets.append(len(flat))
    values = _converted(pa.array(flat, pa.string()), kind[:-2], wanted.value_type)
    nulls = pa.array([each is None for each in found])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=wanted, mask=nulls)
