"""Rows of a snapshot in a task: read from the source, as changes with the operation READ."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from penstock.microbatch.ticket import RowsSplit
from penstock.model.change import Operation
from penstock.model.page import Page

# Rows and bytes of a page, which is decoded at once.
_PAGE_ROWS, _PAGE_SIZE = 10_000, 4 << 20


Batches = Sequence[pa.RecordBatch]
# The changes of a page, and those of them that are meant.
DecodedPage = tuple[Batches, Iterable[pa.RecordBatch]]


def read_rows(split: RowsSplit, decode: Callable[[Page], Batches]) -> Iterator[DecodedPage]:
    """In a task: the rows of a range, as changes with the operation READ. All rows of a snapshot
    have one place, so that their event ids are numbered here."""
    count = 0
    with split.source.opened(lambda: False) as read:
        for page in read(split.range, _PAGE_ROWS, _PAGE_SIZE):
            batches = []
            for batch in decode(page):
                batches.append(_as_read(batch, split.name, count))
                count += batch.num_rows
            yield batches, batches


def _as_read(batch: pa.RecordBatch, name: str, first: int) -> pa.RecordBatch:
    schema, rows = batch.schema, batch.num_rows
    ids = [f"{name}:{number}" for number in range(first, first + rows)]
    backend, operations = batch.column("backend").to_pylist(), batch.column("operation")
    read = [Operation.READ if each != "ERROR" else each for each in operations.to_pylist()]
    new = {
        "event_id": pa.array([f"{each}:{id_}" for each, id_ in zip(backend, ids, strict=True)]),
        "operation": pa.array(read, pa.string()),
    }
    columns = [new.get(field.name, batch.column(field.name)) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
