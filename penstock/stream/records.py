"""Changes to records: the mappings that the iterator hands out.

A feed that keeps more Python types than a change's images do makes its records itself
(`Feed.record_reader`); for all others this is how.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import ormsgpack
import pyarrow as pa

from penstock.feeds import Feed, NativeRecord, RecordReader
from penstock.model.change import OnError, Operation
from penstock.model.page import Page
from penstock.model.position import Place

# Any other operation is its own name in lower case.
EVENT_TYPES: Mapping[str, str] = {
    each.value: each.value.lower() for each in Operation
} | {
    Operation.INSERT.value: "insert",
    Operation.UPDATE.value: "modify",
    Operation.REPLACE.value: "modify",
    Operation.DELETE.value: "remove",
}  # fmt: skip

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IMAGES = ("key", "before", "after", "delta")
_TEXTS = (
    "cursor", "ordinal", "event_id", "operation", "partition", "database", "namespace",
    "collection", "transaction", "unchanged", "mark",
)  # fmt: skip


def record_reader(feed: Feed, on_error: OnError = "stop") -> RecordReader:
    """What makes records of the feed's pages."""
    if (own := feed.record_reader(on_error)) is not None:
        return own
    decoder = feed.decoder("msgpack", on_error)

    def read(page: Page) -> Iterator[NativeRecord]:
        for batch in decoder.decode(page):
            yield from _records(batch)

    return read


def row_reader(feed: Feed, on_error: OnError) -> RecordReader:
    """What makes records of the feed's pages that are `rows_of` batches of changes: `batch`, and
    the number of the `row` in it. No image is unpacked."""
    decoder = feed.decoder("json", on_error)

    def read(page: Page) -> Iterator[NativeRecord]:
        for batch in decoder.decode(page):
            yield from rows_in(batch)

    return read


def rows_in(batch: pa.RecordBatch) -> Iterator[NativeRecord]:
    """The rows of a batch of changes, as those of a `row_reader`."""
    places = (batch.column(name).to_pylist() for name in ("cursor", "ordinal"))
    marks, times = batch.column("mark").to_pylist(), _times(batch)
    for row, (*place, mark, time) in enumerate(zip(*places, marks, times, strict=True)):
        yield NativeRecord(Place(*place), time, {"batch": batch, "row": row}, mark)


def batch_of(records: Sequence[NativeRecord]) -> pa.RecordBatch:
    """The rows of a `row_reader`, in their order, as one batch."""
    first: dict[int, int] = {}  # identity of a batch -> its first row among all
    batches: list[pa.RecordBatch] = []
    rows, count = [], 0
    for each in records:
        batch = each.record["batch"]
        if id(batch) not in first:
            first[id(batch)] = count
            batches.append(batch)
            count += batch.num_rows
        rows.append(first[id(batch)] + each.record["row"])
    taken = pa.Table.from_batches(batches).take(pa.array(rows, pa.int64()))
    return taken.combine_chunks().to_batches()[0]


def _records(batch: pa.RecordBatch) -> Iterator[NativeRecord]:
    images = [map(_image, batch.column(name).to_pylist()) for name in _IMAGES]
    texts = [batch.column(name).to_pylist() for name in _TEXTS]
    for row in zip(*images, *texts, _times(batch), strict=True):
        yield _record(row)


def _image(packed: bytes | None) -> Any:
    return None if packed is None else ormsgpack.unpackb(packed, option=ormsgpack.OPT_NON_STR_KEYS)


def _times(batch: pa.RecordBatch) -> list[int]:
    """When the source committed each change; where it does not say so, when it was read."""
    committed, captured = (
        batch.column(name).cast(pa.int64()).to_pylist() for name in ("committed_at", "captured_at")
    )
    return [
        read or 0 if known is None else known
        for known, read in zip(committed, captured, strict=True)
    ]


def _record(row: tuple[Any, ...]) -> NativeRecord:
    key, before, after, delta, cursor, ordinal, event_id, operation, *rest = row
    partition, database, namespace, collection, transaction, unchanged, mark, created_at = rest
    record = {
        "key": key,
        "new": after,
        # A source that sends only the key of the row before has not sent the row before.
        "old": None if before == key else before,
        "meta": {
            "created_at": _EPOCH + timedelta(microseconds=created_at),
            "event": {"id": event_id, "type": EVENT_TYPES[operation], "version": None},
            "sequence_number": f"{cursor}:{ordinal}",
            "operation": operation,
            "partition": partition,
            "database": database,
            "namespace": namespace,
            "table": collection,
            "transaction": transaction,
            "unchanged": unchanged or [],
            "delta": delta,
        },
    }
    return NativeRecord(Place(cursor, ordinal), created_at, record, mark)
