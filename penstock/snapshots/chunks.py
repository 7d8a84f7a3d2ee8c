"""Rows of a snapshot -> chunks, the bodies of messages, plain or as zstd frames. Pure.

Rows are the images that the decoder made, so they are typed exactly as changes are. A chunk of few
rows has little that repeats: it takes the dictionary of the table's changes, if there is one (20 %
smaller with 10 rows of ten columns, 3 kB; 4 % with 50, 13 kB; and larger from 1000 rows on).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import Images
from penstock.nats.compression import ENCODING, Frames, large_frame
from penstock.sinks.messages.dialect import dialect
from penstock.sinks.rows.columns import offsets_of

ARROW = b"application/vnd.apache.arrow.stream"
_AROUND = 1024  # bytes of a body besides its rows, at most
_MARGIN = 8  # bytes of a row besides its image, in any encoding

Encoding = str  # of the sink: msgpack, json or arrow


def images_for(encoding: Encoding) -> Images:
    return "json" if encoding == "json" else "msgpack"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkForm:
    """What all chunks of a snapshot have in common. `is_keyed`: rows are whole documents, in which
    a key has not all of its type, so that chunks have keys, too."""

    table: str
    schema: str
    snapshot_id: str
    lsn: str
    position: str
    encoding: Encoding
    is_keyed: bool = False

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {"data": batch.column("after")}
        if self.is_keyed:
            columns["keys"] = batch.column("key")
        return pa.RecordBatch.from_pydict(columns)

    @property
    def nothing(self) -> pa.RecordBatch:
        empty = pa.array([], pa.binary())
        names = ["data", "keys"] if self.is_keyed else ["data"]
        return pa.RecordBatch.from_arrays([empty] * len(names), names=names)

    @property
    def content_type(self) -> bytes:
        return ARROW if self.encoding == "arrow" else dialect(self.encoding).content_type

    def body(self, rows: pa.RecordBatch, chunk: int) -> bytes:
        """The body of a chunk; `rows` has columns of images."""
        shared: dict[str, Any] = {
            "table": self.table,
            "schema": self.schema,
            "operation": "snapshot",
            "snapshot_id": self.snapshot_id,
            "chunk": chunk,
            "lsn": self.lsn,
            "position": self.position,
        }
        if self.encoding == "arrow":
            return _arrow(rows, shared)
        say = dialect(self.encoding)
        parts = [say.start(len(shared) + rows.num_columns)]
        for number, (name, value) in enumerate(shared.items()):
            parts += [say.name(name, first=not number), say.value(value)]
        for name, images in zip(rows.schema.names, rows.columns, strict=True):
            parts += [say.name(name), say.list_start(len(images)), _joined(images, say.separator)]
            parts.append(say.list_end)
        return b"".join([*parts, say.end])


def cut(rows: pa.RecordBatch, most: int, size: int) -> Iterator[pa.RecordBatch]:
    """Slices of at most `most` rows, in bodies of at most `size` bytes; a larger row is alone."""
    count = rows.num_rows
    totals = _MARGIN * rows.num_columns * np.arange(count + 1)
    for ends in map(offsets_of, rows.columns):
        totals = totals + (ends - ends[0]).astype(np.int64)
    start, room = 0, size - _AROUND
    while start < count:
        fits = int(np.searchsorted(totals, totals[start] + room, side="right")) - 1
        stop = max(min(fits, start + most, count), start + 1)
        yield rows.slice(start, stop - start)
        start = stop


def _joined(rows: Any, separator: bytes) -> Any:
    if not len(rows):
        return b""
    if separator:
        every = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
        joined: Any = pc.binary_join(every, separator.decode())
        return joined[0].as_buffer()
    ends = offsets_of(rows)
    return memoryview(rows.buffers()[2])[ends[0] : ends[-1]]


def _arrow(rows: pa.RecordBatch, shared: dict[str, Any]) -> bytes:
    """An IPC stream with these columns; what its rows share is in the schema's metadata."""
    about = {name: str(value) for name, value in shared.items()} | {"images": "msgpack"}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema.with_metadata(about)) as stream:
        stream.write_batch(rows.replace_schema_metadata(about))
    return sink.getvalue().to_pybytes()


SMALL = 8192  # bytes of a body up to which a dictionary gains more than it costs


@dataclass(frozen=True)
class ChunkCompression:
    """`method`: `none` or `zstd`. A dictionary is for the latter. Not for several threads."""

    method: str
    dictionary: bytes = b""

    def of(self, body: bytes) -> tuple[bytes, dict[str, bytes]]:
        """The body as it is stored, and the headers that say so."""
        if self.method == "none":
            return body, {}
        if self.dictionary and len(body) <= SMALL:
            return self._small.compressor.compress(body), self._small.headers
        return large_frame(body), {ENCODING: self.method.encode()}

    @property
    def identity(self) -> str | None:
        return self._small.identity if self.dictionary else None

    @cached_property
    def _small(self) -> Frames:
        return Frames(self.dictionary)
