"""One snapshot, from the point in the log to the meta. Whatever ends it early leaves no chunks."""

import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.config import SnapshotSettings
from penstock.errors import LeaseLost, PenstockError, Rejected, Unavailable
from penstock.feeds import Feed, TableSnapshot, TakesSnapshots
from penstock.position import Bookmarks
from penstock.sinks.encoding.dialect import dialect
from penstock.sinks.jetstream.schemas import SchemaBucket
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.snapshots.chunks import ChunkForm, cut, images_for
from penstock.snapshots.init_stream import PREFIX, InitStream, meta_identity, token
from penstock.table_schema import TableName

_PAGE = 4  # chunks that are read at a time
_RANGE = 16  # and that a range has, about
_VERSION = b"1"  # of the bodies' format


class Cancelled(Exception):
    """An operator ended the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be taken. `name` is the table's in messages, and begins with `prefix`, where a
    pipeline has several backends; `known` gives the saved bookmarks. Once the pipeline is not ours
    any more, the next owner takes the snapshot again: this run ends without a meta."""

    snapshot_id: str
    feed: Feed
    schema: str
    table: str
    name: TableName
    prefix: TableName = ()
    pipeline: str = ""
    known: Callable[[], Bookmarks]
    is_ours: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class RunProgress:
    """How far a run is. `ranges` is 0 until the table was cut."""

    position: str = ""
    lsn: str = ""
    ranges: int = 0
    done: int = 0
    chunks: int = 0
    rows: int = 0
    bytes: int = 0


class SnapshotRun:
    """Takes one snapshot. `progress` may be read by any thread, `cancel` called by any."""

    def __init__(self, job: Job, sink: JetStreamSettings, settings: SnapshotSettings) -> None:
        self.job = job
        self.progress = RunProgress()
        self._sink, self._settings = sink, settings
        self._stopped = threading.Event()  # a worker failed, or it was cancelled
        self.is_cancelled = False
        self._failure: BaseException | None = None  # the first one; others may follow from it
        self._lock = threading.Lock()  # over `progress`, `_chunks`, `_failure` and numbers
        self._chunks: list[dict[str, Any]] = []
        self._number = 0
        self._room = 0  # bytes that a body may have

    def cancel(self) -> None:
        """Ends it as soon as possible."""
        self.is_cancelled = True
        self._stopped.set()

    def run(self) -> None:
        """Blocks until the meta is stored. Raises Cancelled or a PenstockError; then no chunk is
        left, unless the server is away. Once the meta was sent it may be stored, though there is no
        answer: then the chunks stay."""
        may_be_complete = False
        try:
            with self._stream() as stream:
                stream.ensure(replicas=self._sink.replicas, storage=self._sink.storage)
                # Changes after the point are not committed yet: they come after this.
                start = _last_sequence(stream, self._sink.stream) + 1
                with self._snapshot() as taken:
                    self._take(stream, taken)
                    self._check(stream, taken)
                    may_be_complete = True
                    self._publish_meta(stream, taken, start)
        except BaseException as error:
            self._stopped.set()
            if not may_be_complete:
                self._purge()
            if self.is_cancelled:
                raise Cancelled from error
            raise

    def _snapshot(self) -> AbstractContextManager[TableSnapshot]:
        job = self.job
        assert isinstance(job.feed, TakesSnapshots)
        return job.feed.snapshot(
            job.schema, job.table, job.known(), patience=self._settings.patience,
            is_stopped=self._is_over,
        )  # fmt: skip

    def _purge(self) -> None:
        with suppress(PenstockError), self._stream() as stream:
            stream.purge(self.job.name, self.job.snapshot_id)

    def _is_over(self) -> bool:
        return self._stopped.is_set() or not self.job.is_ours()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._stopped.set()

    def _take(self, stream: InitStream, taken: TableSnapshot) -> None:
        settings, progress = self._settings, self.progress
        progress.position, progress.lsn = taken.position, taken.lsn
        SchemaBucket(self._sink, self.job.pipeline, self.job.prefix).put(taken.schema)
        self._room = stream.room  # asked once: a worker's first connection may find no server
        size = min(settings.chunk_bytes, self._room)
        planned = Future[Iterator[Any]]()
        with ThreadPoolExecutor(settings.slots, "snapshot") as pool:
            # They connect first: what wants to rewrite the table waits for all of them.
            for _ in range(settings.slots):
                pool.submit(self._work, taken, planned, size)
            try:
                ranges = taken.plan(_RANGE * settings.chunk_rows, _RANGE * size)
                progress.ranges = len(ranges)
                planned.set_result(iter(ranges))
            except BaseException as error:
                self._fail(error)
                planned.set_exception(error)
        if self._failure is not None:
            raise self._failure

    def _check(self, stream: InitStream, taken: TableSnapshot) -> None:
        """Raises what forbids a meta, which says that all is there and is whole."""
        job, settings = self.job, self._settings
        found = stream.count(job.name, job.snapshot_id)
        if found != len(self._chunks):
            raise Unavailable(
                f"{len(self._chunks)} chunks were stored, and the stream {settings.stream} has"
                f" {found} of them",
                hint="raise its limits (max_bytes, max_msgs, max_age), and ask again",
            )
        taken.verify(job.known())
        if self.is_cancelled:
            raise Cancelled
        if not job.is_ours():
            raise LeaseLost("the pipeline is another instance's now")

    def _work(self, taken: TableSnapshot, planned: Future[Iterator[Any]], size: int) -> None:
        """Ranges, one after the other, until none is left."""
        try:
            with self._stream() as stream, taken.source.opened(self._is_over) as pages:
                decoder = self.job.feed.decoder(images_for(self._sink.encoding))
                left = planned.result()
                while not self._is_over():
                    with self._lock:
                        part = next(left, None)
                    if part is None:
                        return
                    # Of several chunks: what is left at the end of a page is a small one.
                    for page in pages(part, _PAGE * self._settings.chunk_rows, _PAGE * size):
                        for batch in decoder.decode(page):
                            self._publish(stream, taken, batch.column("after"), size)
                        if self._is_over():
                            return
                    with self._lock:
                        self.progress.done += 1
        except BaseException as error:
            self._fail(error)

    def _publish(self, stream: InitStream, taken: TableSnapshot, rows: Any, size: int) -> None:
        form = self._form(taken)
        for some in cut(rows, most=self._settings.chunk_rows, size=size):
            with self._lock:
                chunk, self._number = self._number, self._number + 1
            body = form.body(some, chunk)
            if len(body) > self._room:
                raise Rejected(
                    f"a row of {taken.schema.schema}.{taken.schema.table} takes {len(body)} bytes;"
                    f" the server takes {self._room}",
                    hint="raise max_payload of nats-server, or leave the large column out of the"
                    " publication",
                )
            headers = self._headers(taken, form.content_type)
            sequence = stream.publish(
                f"{PREFIX}.snap.{token(self.job.name)}.{self.job.snapshot_id}.{chunk}",
                body,
                headers,
                f"init-{token(self.job.name)}-{self.job.snapshot_id}-{chunk}",
            )
            found = {
                "chunk": chunk, "sequence": sequence, "rows": len(some), "bytes": len(body),
                "crc32": zlib.crc32(body), "lsn": taken.lsn,
            }  # fmt: skip
            with self._lock:
                self._chunks.append(found)
                self.progress.chunks += 1
                self.progress.rows += len(some)
                self.progress.bytes += len(body)

    def _publish_meta(self, stream: InitStream, taken: TableSnapshot, start: int) -> None:
        chunks = sorted(self._chunks, key=lambda one: int(one["chunk"]))
        meta: dict[str, Any] = {
            "snapshot_id": self.job.snapshot_id,
            "table": taken.schema.table,
            "schema": taken.schema.schema,
            "lsn": taken.lsn,
            "position": taken.position,
            "timestamp": datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z",
            "batch_count": len(chunks),
            "row_count": self.progress.rows,
            "schema_version": taken.schema.version,
            "relation_id": taken.schema.relation_id,
            "columns": [column["name"] for column in taken.schema.columns],
            "compression": "none",
            "dictionary": None,
            "stream": self._sink.stream,
            "start_sequence": start,
            "chunks": chunks,
        }
        say = dialect("json" if self._sink.encoding == "json" else "msgpack")
        body = say.value(meta)
        if len(body) > self._room:
            # What is left says how many there are, and the subject says which.
            body = say.value(meta | {"chunks": None})
        name = token(self.job.name)
        stream.publish(
            f"{PREFIX}.meta.{name}", body, self._headers(taken, say.content_type),
            meta_identity(self.job.name, self.job.snapshot_id),
        )  # fmt: skip

    def _form(self, taken: TableSnapshot) -> ChunkForm:
        return ChunkForm(
            table=taken.schema.table,
            schema=taken.schema.schema,
            snapshot_id=self.job.snapshot_id,
            lsn=taken.lsn,
            encoding=self._sink.encoding,
        )

    def _headers(self, taken: TableSnapshot, content_type: bytes) -> dict[str, bytes]:
        return {
            "Penstock-Schema": _VERSION,
            "Penstock-Table-Schema": taken.schema.version.encode(),
            "Content-Type": content_type,
        }

    def _stream(self) -> InitStream:
        return InitStream(self._sink, self._settings.stream, self._is_over)


def _last_sequence(stream: InitStream, name: str) -> int:
    """Of the stream of changes; 0 where there is none yet."""
    info = stream.api.stream(name)
    return int(info["state"]["last_seq"]) if info else 0
