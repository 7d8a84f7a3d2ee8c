"""The plan of a batch query, and what its tasks read.

Spark 4.3 plans once for a DataFrame, at its first use: all its uses are of one point.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.batch.holder import HeldTable, TableRequest, hold
from penstock.batch.span import plan_span, read_span
from penstock.feeds import FeedPlugin, ListsTables, ReadsLines, Span
from penstock.microbatch.late import Attempt
from penstock.microbatch.options import read_source, typed_rows
from penstock.microbatch.task import read_split
from penstock.microbatch.ticket import RowsSplit
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.table_schema import TableSchema
from penstock.process.plugins import plugin
from penstock.typed.columns import META, row_sequence, schema_of
from penstock.typed.lines import CellMisfit, TableColumns, misfit_error, read_lines

_SIZE = 2**20  # bytes of lines that become one batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A range of a table, which its task reads. Pickles."""

    table: HeldTable
    range: Any
    number: int

    @property
    def rows(self) -> RowsSplit:
        return RowsSplit(source=self.table.source, range=self.range, name=f"batch:{self.number}")


# What a task reads.
BatchPart = TablePart | Span


def table_of(options: Mapping[str, str]) -> TableSchema | None:
    """The table with lines that the options name; None without one. Does I/O; raises SettingsError,
    Unavailable."""
    source, feed = read_source(options)
    found: FeedPlugin = plugin("feeds", source.backend)
    if not source.table or not found.has_lines:
        return None
    name = source.table
    known = feed.schemas_there() if isinstance(feed, ListsTables) else feed.schemas()
    tables = [each for each in known if f"{each.schema}.{each.table}" == name]
    if not tables:
        raise SettingsError(
            f"there is no table {name}", "spark.table-missing",
            hint="write schema.table; a view has no place in the log",
        )  # fmt: skip
    return tables[0]


def verify(options: Mapping[str, str], schema: pa.Schema) -> None:
    """Raises SettingsError for columns that are not the table's. Does I/O."""
    if (table := table_of(options)) is not None:
        schema_of(table, schema)


def plan(options: Mapping[str, str], schema: pa.Schema) -> Sequence[BatchPart]:
    """The ranges of a table at one point, which is held for their tasks; or the changes between two
    positions, for one task. `schema`: of the DataFrame; what it leaves out is not read. Does I/O;
    raises SettingsError, Unavailable, PositionLost."""
    source, feed = read_source(options)
    if source.changes:
        verify(options, schema)
        return plan_span(source, feed)
    if not source.table:
        raise SettingsError(
            "spark.read wants a table", "spark.table-missing",
            hint='name one: .option("table", "public.orders"); changes come by spark.readStream,'
            ' or .option("changes", "earliest..now")',
        )  # fmt: skip
    columns = tuple(name for name in schema.names if name not in META)
    held = hold(TableRequest(options=dict(options), columns=columns))
    return [
        TablePart(table=held, range=each, number=number) for number, each in enumerate(held.ranges)
    ]


def read(
    options: Mapping[str, str], part: BatchPart, schema: pa.Schema, attempt: Attempt
) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of a range, or the changes of a span, as batches of this schema."""
    source = read_source(options)[0]
    if isinstance(part, Span):
        yield from read_span(source, part, typed_rows(source, schema))
        return
    table = part.table
    lines: object = table.source
    if table.schema.is_of_documents or not isinstance(lines, ReadsLines):
        yield from read_split(options, part.rows, attempt, typed_rows(source, schema))
        return
    name = f"{table.schema.schema}.{table.schema.table}"
    own = pa.schema([field for field in schema if field.name not in META])
    boxes = TableColumns.of(table.schema, own).boxes
    try:
        with lines.lines(own.names, b"", lambda: False) as read_range:
            for data, count in _joined(read_range(part.range)):
                columns, misfits = read_lines(data, own.names, own, boxes)
                if misfits and source.on_misfit == "FAILFAST":
                    raise misfit_error(name, own, misfits[0])
                known = {
                    field.name: _known(field, count, table.position, misfits)
                    for field in schema if field.name in META
                } | dict(zip(own.names, columns, strict=True))  # fmt: skip
                yield pa.RecordBatch.from_arrays(
                    [known[each] for each in schema.names], schema=schema
                )
    except Unavailable as error:
        if error.code != "postgres.snapshot-ended":
            raise
        raise SettingsError(
            f"the rows of {name} at {table.position} are not held any more",
            "spark.snapshot-ended",
            hint="make the DataFrame anew by spark.read, or raise the option hold",
        ) from error


def _known(field: Any, count: int, position: str, misfits: Sequence[CellMisfit]) -> Any:
    """A column that tells of the rows; null where nothing is known of them."""
    if field.name == "_rest" and misfits:
        texts: list[list[tuple[str, str]]] = [[] for _ in range(count)]
        for each in misfits:
            texts[each.row].append((each.column, each.text))
        return pa.array([row or None for row in texts], field.type)
    value = {"_operation": "READ", "_sequence": row_sequence(position)}.get(field.name)
    return pa.repeat(pa.scalar(value, field.type), count)


def _joined(pieces: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Larger pieces: a batch costs something, however few rows it has."""
    found: list[bytes] = []
    size = rows = 0
    for data, count in pieces:
        found.append(data)
        size, rows = size + len(data), rows + count
        if size >= _SIZE:
            yield b"".join(found), rows
            found, size, rows = [], 0, 0
    if rows:
        yield b"".join(found), rows
