"""Rows of a snapshot that cannot be read become dead letters, as such changes of the log do."""

from dataclasses import replace
from hashlib import blake2b

import pyarrow as pa
import structlog

from penstock.model.change import images_of, unreadable
from penstock.sinks.poison.dead_letter import error_letter
from penstock.sinks.server import SinkServer
from penstock.snapshots.init_stream import InitStream

log = structlog.get_logger("penstock")


def readable(
    batch: pa.RecordBatch, snapshot_id: str, stream: InitStream, sink: SinkServer
) -> pa.RecordBatch:
    """The rows that a decoder could read, once dead letters of the others are stored. A row is
    known by its bytes: all rows have one place, and a part may be read again."""
    rows = unreadable(batch)
    if not rows:
        return batch
    for row in rows:
        (values,) = batch.slice(row, 1).to_pylist()
        letter = error_letter(values, images_of(batch.schema))
        name = blake2b(letter.raw, digest_size=8).hexdigest()
        whose = f"{letter.partition}/{snapshot_id}/{name}"
        letter = replace(letter, partition=whose, event_id=f"{letter.backend}:{whose}")
        sink.set_aside(stream.connection, [letter])
        log.warning(
            "a row is set aside", snapshot=snapshot_id, table=letter.table, why=letter.error
        )
    kept = sorted(set(range(len(batch))) - set(rows))
    return batch.take(pa.array(kept, pa.int64()))
