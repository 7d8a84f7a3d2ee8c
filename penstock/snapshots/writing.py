"""Rows of one part -> chunks in the stream, and dead letters of rows that cannot be read.

Each thread of a run has a writer of its own; `snapshot.rate` bounds all of them together.
"""

import secrets
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import structlog

from penstock.model.change import images_of, unreadable
from penstock.model.errors import Rejected
from penstock.model.table_schema import TableName
from penstock.sinks.poison.dead_letter import error_letter
from penstock.sinks.server import SinkServer
from penstock.snapshots.chunks import ChunkCompression, ChunkForm
from penstock.snapshots.init_stream import PREFIX, InitStream, token
from penstock.snapshots.job import RunControl
from penstock.snapshots.range_progress import (
    HEADER,
    NOTHING,
    ChunkInfo,
    PartReading,
    RangeProgress,
    SnapshotPart,
    header_of,
    read_header,
)

VERSION = b"1"  # of the bodies' format

log = structlog.get_logger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWriter:
    """Stores chunks, until the run is over. `room`: bytes of a body. `schema_version`: a
    table's."""

    stream: InitStream
    ranges: RangeProgress
    form: ChunkForm
    name: TableName
    schema_version: str
    compression: ChunkCompression
    room: int
    control: RunControl

    def write(self, part: SnapshotPart, slices: Iterable[pa.RecordBatch]) -> bool:
        """Stores the rows of a part, each slice as a chunk; whether it came to their end."""
        reading = PartReading()
        try:
            for rows, is_last in _marked(slices):
                if self.control.is_over():
                    break
                reading.chunks.append(self._chunk(part, reading, rows, is_last=is_last))
            else:
                self.ranges.finish(part, reading, (self.form.position, self.form.lsn))
                return True
        except BaseException:
            self._abandon(reading)
            raise
        self._abandon(reading)
        return False

    def fill(self) -> None:
        """Chunks without rows for numbers that no chunk has: what was read again may need less."""
        while self.ranges.holes:
            chunk = self._chunk(NOTHING, PartReading(), self.form.nothing, is_last=True)
            self.ranges.add(chunk)

    def _abandon(self, reading: PartReading) -> None:
        self.ranges.abandon(reading)
        for chunk in reading.chunks:
            self.control.wrote(-chunk["rows"], -chunk["bytes"])

    def _chunk(
        self, part: SnapshotPart, reading: PartReading, rows: pa.RecordBatch, *, is_last: bool
    ) -> ChunkInfo:
        (number, was_used), form = self.ranges.number(reading), self.form
        body, compressed = self.compression.of(form.body(rows, number))
        if len(body) > self.room:
            raise Rejected(
                f"a row of {form.schema}.{form.table} takes {len(body)} bytes; the server takes"
                f" {self.room}",
                "snapshots",
                hint="raise max_payload of nats-server, or leave the large column out of the"
                " publication",
            )
        self.control.pace(rows.num_rows, len(body))
        headers = {
            "Penstock-Schema": VERSION,
            "Penstock-Table-Schema": self.schema_version.encode(),
            "Content-Type": form.content_type,
            HEADER: header_of(
                part, reading, rows=rows.num_rows, place=(form.lsn, form.position), is_last=is_last
            ),
            **compressed,
        }
        table, snapshot_id = token(self.name), form.snapshot_id
        identity = f"init-{table}-{snapshot_id}-{number}"
        if was_used:  # the server would drop it for the chunk that had it before
            identity += f"-{secrets.token_hex(4)}"
        subject = f"{PREFIX}.snap.{table}.{snapshot_id}.{number}"
        sequence = self.stream.publish(subject, body, headers, identity)
        self.control.wrote(rows.num_rows, len(body))
        return {
            "chunk": number, "sequence": sequence, "rows": rows.num_rows, "bytes": len(body),
            "crc32": zlib.crc32(body), "lsn": form.lsn, "position": form.position,
        }  # fmt: skip


def without_unreadable(
    batch: pa.RecordBatch, snapshot_id: str, stream: InitStream, sink: SinkServer
) -> pa.RecordBatch:
    """The rows of a batch that were decoded, after dead letters of the others. These are known by
    their bytes: all rows have one place, and a part may be read again."""
    if not (rows := unreadable(batch)):
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


def written(
    stream: InitStream, name: TableName, snapshot_id: str
) -> list[tuple[ChunkInfo, dict[str, Any]]]:
    """The chunks that a run has stored already, each with its header."""
    found = []
    for one in stream.chunks(name, snapshot_id):
        about = read_header(one.headers.get(HEADER, ""))
        chunk = {
            "chunk": int(one.subject.rpartition(".")[2]), "sequence": one.sequence,
            "rows": about["rows"], "bytes": len(one.payload), "crc32": zlib.crc32(one.payload),
            "lsn": about["lsn"], "position": about["position"],
        }  # fmt: skip
        found.append((chunk, about))
    return found


def _marked(slices: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Each with whether it is the last."""
    for one, following in pairwise(chain(slices, [None])):
        yield one, following is None
