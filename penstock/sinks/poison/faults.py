"""Which rows of a batch are poison, and the batch without them. No I/O of its own."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import Operation, images_of
from penstock.sinks.poison.suspension import BY_HAND, Suspension, Table

TOO_LARGE = "too-large"
UNENCODABLE = "not-encodable"
NO_KEY = "no-key"
BROKEN_RELATION = "broken-relation"
# A table that shows one of these cannot be followed: there is no use in waiting for more.
IMMEDIATE = frozenset({NO_KEY, BROKEN_RELATION})

_ROWS = (Operation.INSERT, Operation.UPDATE, Operation.REPLACE, Operation.DELETE)
_IDENTIFIED: Any = pa.array([Operation.UPDATE, Operation.DELETE])
_NO_KEY_TEXT = (
    "{} comes without a key and without its old row, so nobody can tell which row it is "
    "(give the table a primary key, or have the source send whole old rows: see `no-key` in "
    "docs/explanation/poison.md)"
)


class Fault(NamedTuple):
    """Why a row cannot be published."""

    row: int
    reason: str
    error: str


def keyless(batch: pa.RecordBatch) -> list[Fault]:
    """Updates and deletes of a relation that say neither by a key nor an old row which row."""
    key, before = _column(batch, "key"), _column(batch, "before")
    if not key.null_count:
        return []
    empty: Any = b"\x80" if images_of(batch.schema) == "msgpack" else "{}"
    nameless = pc.and_(
        pc.and_(pc.is_null(key), pc.is_in(_column(batch, "operation"), value_set=_IDENTIFIED)),
        pc.and_(
            pc.is_valid(_column(batch, "relation_id")),
            pc.or_(pc.is_null(before), pc.fill_null(_same(before, empty), False)),
        ),
    )
    operation = batch.column("operation")
    return [
        Fault(row, NO_KEY, _NO_KEY_TEXT.format(operation[row].as_py())) for row in _true(nameless)
    ]


def _column(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name)


def _same(column: Any, value: Any) -> Any:
    # With its type: to guess it, pyarrow looks for pandas, each time (0.1 ms where there is none).
    return pc.equal(column, pa.scalar(value, column.type))


def _true(column: Any) -> list[int]:
    """The rows that are true; mostly there is none, which is cheap to tell."""
    if not column.true_count:
        return []
    return [int(row) for row in np.flatnonzero(column)]


def of_operations(batch: pa.RecordBatch, operations: tuple[str, ...]) -> set[int]:
    """The rows with one of these operations, of which none has a key."""
    if not operations or not _column(batch, "key").null_count:
        return set()
    wanted: Any = pa.array(operations)
    return set(_true(pc.is_in(_column(batch, "operation"), value_set=wanted)))


def rows_of(batch: pa.RecordBatch, record: Suspension) -> list[int]:
    """The rows of a table: by its name, or by its number if it was renamed."""
    names = {"backend": record.backend, "namespace": record.schema, "collection": record.collection}
    backend, schema, collection = (
        _same(pc.fill_null(_column(batch, name), ""), value) for name, value in names.items()
    )
    mine = pc.and_(backend, pc.and_(schema, collection))
    if record.relation_id is not None:
        same = _same(_column(batch, "relation_id"), record.relation_id)
        mine = pc.or_(mine, pc.fill_null(same, False))
    return _true(mine)


def table_of(row: Mapping[str, Any]) -> Table:
    """Of a row of a batch, as a map."""
    return Table(row["backend"], row["namespace"] or "", row["collection"] or "")


def columns_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a new row's columns; () where there is none that can be read."""
    if row["operation"] not in _ROWS or row["after"] is None:
        return ()
    load: Any = ormsgpack.unpackb if isinstance(row["after"], bytes) else orjson.loads
    try:
        return tuple(sorted({*load(row["after"]), *(row["unchanged"] or ())}))
    except (ValueError, TypeError):
        return ()


def is_mended(record: Suspension, row: Mapping[str, Any], limit: int) -> bool:
    """Whether the change in `row` shows that what a table was suspended for is gone; `limit` is
    what the server takes, in bytes."""
    if row["operation"] not in _ROWS or record.reason == BY_HAND:
        return False
    if len({row["relation_id"], record.relation_id} - {None}) > 1:
        return True  # dropped, and made again
    if record.reason == NO_KEY:
        return row["key"] is not None or row["before"] not in (None, "{}", b"\x80")
    if record.reason == BROKEN_RELATION or (record.reason == TOO_LARGE and limit > record.limit):
        return True
    return bool(record.columns) and columns_of(row) not in ((), record.columns)


def marked(
    batch: pa.RecordBatch, kept: Iterable[int], marks: Mapping[int, Suspension]
) -> pa.RecordBatch:
    """The rows in `kept`, and those in `marks` as markers, in order.

    A marker has the operation SUSPEND, the place of the first change that is missing, an event id
    of its own, and says in `after` why.
    """
    rows = sorted({*kept, *marks})
    if not marks:
        return batch if len(rows) == len(batch) else batch.take(pa.array(rows, pa.int64()))
    parts, at = [], 0
    for number, row in enumerate(rows):
        if row in marks:
            parts.append(batch.take(pa.array(rows[at:number], pa.int64())))
            parts.append(_marker(batch, row, marks[row]))
            at = number + 1
    parts.append(batch.take(pa.array(rows[at:], pa.int64())))
    joined = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return joined[0] if joined else batch.slice(0, 0)


def _marker(batch: pa.RecordBatch, row: int, record: Suspension) -> pa.RecordBatch:
    (values,) = batch.slice(row, 1).to_pylist()
    why = {"reason": record.reason, "error": record.error}
    packed = images_of(batch.schema) == "msgpack"
    values |= {
        "event_id": f"{values['event_id']}:suspend",
        "operation": Operation.SUSPEND.value,
        "namespace": record.schema or None,
        "collection": record.collection or None,
        "document_id": None,
        "key": None,
        "before": None,
        "after": ormsgpack.packb(why) if packed else orjson.dumps(why).decode(),
        "unchanged": [],
        "delta": None,
    }
    return pa.RecordBatch.from_pylist([values], schema=batch.schema)
