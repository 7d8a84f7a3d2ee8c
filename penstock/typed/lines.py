"""Lines of COPY -> Arrow columns, read by Arrow's reader of CSV: no value becomes a Python object
but arrays, binary values, and texts with escapes.

COPY's text has a tab between cells and a line end after each row; in cells both are escapes.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import compute, csv

from penstock.model.errors import PenstockError, SettingsError
from penstock.model.table_schema import TableSchema
from penstock.tables.lines import NULL, UNSENT
from penstock.typed.native import read_natively
from penstock.wire.pgoutput.values.arrays import array_of
from penstock.wire.pgoutput.values.scalars import text

pc: Any = compute
Array = Any  # of pyarrow
Field = Any

TIMESTAMP, TIMESTAMPTZ = pa.timestamp("us"), pa.timestamp("us", tz="UTC")

# PostgreSQL's names of types -> Arrow's. Any other type is its text.
TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "oid": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp without time zone": TIMESTAMP,
    "timestamp with time zone": TIMESTAMPTZ,
}

_TYPE = re.compile(r"([^(]*?) ?(?:\(([^)]*)\))?([^()\[]*?)(\[\])?")
_MARK = b"\xef\xbb\xbf"
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PARSE = csv.ParseOptions(
    delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=False
)


def arrow_type(data_type: str) -> pa.DataType:
    """The type of a column by PostgreSQL's name for its base type, as `format_type` writes it."""
    match = _TYPE.fullmatch(data_type)
    if match is None:
        return pa.string()
    head, modifier, tail, array = match.groups()
    name = head + tail
    found = TYPES.get(name, pa.string())
    if name == "numeric" and modifier:
        precision, scale = (int(each) for each in f"{modifier},0".split(",")[:2])
        if 0 <= scale <= precision <= 38:
            found = pa.decimal128(precision, scale)
    return pa.list_(found) if array else found


def is_readable(kind: pa.DataType) -> bool:
    """Whether cells of lines can be of this type."""
    types = pa.types
    if types.is_list(kind):
        return not types.is_nested(kind.value_type) and is_readable(kind.value_type)
    return (
        types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
        or types.is_decimal128(kind) or types.is_string(kind) or types.is_binary(kind)
        or kind in (pa.date32(), TIMESTAMP, TIMESTAMPTZ)
    )  # fmt: skip


class CellMisfit(NamedTuple):
    """A value that its column's type cannot hold."""

    row: int
    column: str
    text: str


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What the cells of a table's lines are: columns of `schema`, of which those that are arrays of
    the type box are `boxes`."""

    schema: pa.Schema
    boxes: frozenset[str] = frozenset()

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
        boxes = frozenset(each for each in declared.names if kinds[each] == "box[]")
        return cls(declared, boxes)


def misfit_error(table: str, schema: pa.Schema, misfit: CellMisfit) -> PenstockError:
    """Without the value: it is the user's."""
    kind = schema.field(misfit.column).type
    return SettingsError(
        f"{table} has a value in the column {misfit.column} that {kind} cannot hold",
        "typed.misfit",
        hint="give a schema in which the column is a string; or set on_misfit: PERMISSIVE",
    )


def read_lines(
    lines: Any, names: Sequence[str], wanted: pa.Schema, boxes: Collection[str] = ()
) -> tuple[list[Array], list[CellMisfit]]:
    """The columns of `wanted`, each of which is one of `names`, those of the lines: bytes in which
    each has its end, or a column without nulls. Null and unsent values are null, and so are those
    that do not fit. `boxes`: columns that are arrays of the type box, whose elements are parted by
    semicolons."""
    if not len(wanted):
        return [], []
    if (native := read_natively(lines, names, wanted, boxes)) is not None:
        return native, []
    if not isinstance(lines, bytes):
        lines = "\n".join([*lines.to_pylist(), ""]).encode()
    types = {field.name: _read_as(field.type) for field in wanted}
    try:
        table = _parsed(lines, names, types)
        misfits: list[CellMisfit] = []
    except pa.ArrowInvalid:
        table, misfits = _one_by_one(lines, names, types)
    columns = []
    for field, column in zip(wanted, table.columns, strict=True):
        made, more = _finished(column, field, ";" if field.name in boxes else ",")
        columns.append(made)
        misfits += more
    return columns, misfits


def _read_as(kind: pa.DataType) -> pa.DataType:
    """What Arrow's reader makes: it knows no arrays and no hexadecimal digits."""
    return pa.string() if pa.types.is_nested(kind) or pa.types.is_binary(kind) else kind


def _parsed(lines: bytes, names: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.Table:
    # The reader leaves a byte order mark at the beginning out.
    data = _MARK + lines if lines.startswith(_MARK) else lines
    source: Any = pa.py_buffer(data)
    return csv.read_csv(
        source,
        read_options=csv.ReadOptions(
            use_threads=False, block_size=len(data) + 1, column_names=list(names)
        ),
        parse_options=_PARSE,
        convert_options=csv.ConvertOptions(
            column_types=dict(types), include_columns=list(types), null_values=[NULL, UNSENT],
            strings_can_be_null=True, true_values=["t", "true"], false_values=["f", "false"],
        ),
    )  # fmt: skip


def _one_by_one(
    lines: bytes, names: Sequence[str], types: Mapping[str, pa.DataType]
) -> tuple[pa.Table, list[CellMisfit]]:
    """As `_parsed`, where a value does not fit."""
    texts = _parsed(lines, names, dict.fromkeys(types, pa.string()))
    columns, misfits = [], []
    for name, kind in types.items():
        made, bad = _converted(_joined(texts.column(name)), kind)
        columns.append(made)
        misfits += [CellMisfit(row, name, value) for row, value in bad]
    return pa.Table.from_arrays(columns, names=list(types)), misfits


def _converted(texts: Array, kind: pa.DataType) -> tuple[Array, list[tuple[int, str]]]:
    """Values from texts without escapes; and which of them do not fit, by halves."""
    if pa.types.is_string(kind) or not len(texts):
        return texts.cast(kind), []
    # A text that is no value may have line ends.
    cells = (NULL if each is None else " ".join(each.split()) for each in texts.to_pylist())
    try:
        lines = "".join(f"{cell}\n" for cell in cells).encode()
        return _joined(_parsed(lines, ["value"], {"value": kind}).column(0)), []
    except pa.ArrowInvalid:
        if len(texts) == 1:
            nothing: Any = pa.array([None], kind)
            return nothing, [(0, texts[0].as_py())]
    half = len(texts) // 2
    first, bad = _converted(texts.slice(0, half), kind)
    rest, more = _converted(texts.slice(half), kind)
    return pa.concat_arrays([first, rest]), bad + [(half + row, value) for row, value in more]


def _joined(column: Any) -> Array:
    made = column.combine_chunks()
    return made if isinstance(made, pa.Array) else pa.concat_arrays(made.chunks)


def _finished(column: Any, field: Field, delimiter: str) -> tuple[Array, list[CellMisfit]]:
    """The column, after what Arrow's reader leaves: escapes, binary values, arrays."""
    made = _joined(column)
    if not pa.types.is_string(made.type):
        return made, []
    if pc.any(pc.match_substring(made, "\\")).as_py():
        made = _mapped(made, lambda each: _ESCAPE.sub(_unescaped, each), pa.string())
    if pa.types.is_string(field.type):
        return made, []
    convert = _bytes if pa.types.is_binary(field.type) else array_of(text, delimiter)
    return _by_value(made, field, convert)


def _mapped(column: Any, change: Callable[[str], Any], kind: pa.DataType) -> Array:
    return pa.array([None if v is None else change(v) for v in column.to_pylist()], kind)


def _unescaped(match: "re.Match[str]") -> str:
    return _ESCAPES.get(match[1], match[1])


def _bytes(cell: bytes) -> bytes:
    if cell[:2] != b"\\x":
        raise ValueError("not hexadecimal")
    return bytes.fromhex(cell[2:].decode())


def _by_value(
    column: Array, field: Field, convert: Callable[[bytes], Any]
) -> tuple[Array, list[CellMisfit]]:
    """Binary values, or arrays, whose elements are read as columns are."""
    values: list[Any] = []
    misfits: list[CellMisfit] = []
    is_array = pa.types.is_list(field.type)
    for row, cell in enumerate(column.to_pylist()):
        value = None
        if cell is not None:
            try:
                value = convert(cell.encode())
                if is_array and (isinstance(value, str) or any(map(_is_list, value))):
                    raise ValueError("of several dimensions, or with bounds")
            except ValueError:
                value = None
                misfits.append(CellMisfit(row, field.name, cell))
        values.append(value)
    if not is_array:
        return pa.array(values, field.type), misfits
    lists: Any = pa.array(values, pa.list_(pa.string()))
    elements, more = _elements(lists.flatten(), field.type.value_type)
    if more:  # of which array an element is
        rows = pc.list_parent_indices(lists)
        whole = column.to_pylist()
        bad = sorted({rows[element].as_py() for element, _ in more})
        misfits += [CellMisfit(row, field.name, whole[row]) for row in bad]
        for row in bad:
            values[row] = None
        lists = pa.array(values, pa.list_(pa.string()))
        elements, _ = _elements(lists.flatten(), field.type.value_type)
    made = pa.ListArray.from_arrays(lists.offsets, elements, mask=lists.is_null())
    return made.cast(field.type), misfits


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _elements(texts: Array, kind: pa.DataType) -> tuple[Array, list[tuple[int, str]]]:
    if not pa.types.is_binary(kind):
        return _converted(texts, kind)
    made, bad = _by_value(texts, pa.field("element", kind), _bytes)
    return made, [(each.row, each.text) for each in bad]
