"""One snapshot, from its request to the meta: its rows become chunks; then the meta says that all
are stored, and how to go on after them. Whatever ends it early leaves no chunks.

Ranges that rows do not leave by key are kept under one snapshot of the source after the other; what
was written between the two is read again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import structlog

from penstock.config import SnapshotSettings
from penstock.model.errors import LeaseLost, PenstockError, SettingsError
from penstock.nats.compression import DictionaryBucket
from penstock.sinks.messages.dialect import dialect
from penstock.sinks.server import SinkServer
from penstock.snapshots.chunks import ChunkCompression, ChunkForm, cut, images_for
from penstock.snapshots.init_stream import PREFIX, InitStream, meta_identity, token
from penstock.snapshots.job import Cancelled, Job, RunControl, RunEvent, RunState, SnapshotPace
from penstock.snapshots.range_progress import RangeProgress, SnapshotPart, SnapshotPlan
from penstock.snapshots.reading import SnapshotPoint, SnapshotStore, TableReader
from penstock.snapshots.records import Records
from penstock.snapshots.retention import Kept
from penstock.snapshots.statements import through
from penstock.snapshots.writing import VERSION, ChunkWriter, without_unreadable, written

_PAGE = 4  # chunks that are read at a time; with a rate one: what is read in a burst is in the way
_RANGE = 16  # and that a range has, about

log = structlog.get_logger("penstock")


class MessageStore(SnapshotStore):
    def __init__(
        self, job: Job, sink: SinkServer, settings: SnapshotSettings, control: RunControl
    ) -> None:
        self._job, self._sink, self._settings, self._control = job, sink, settings, control
        self._stream = self._connected()
        self._ranges = RangeProgress()
        # From here on: what `prepare` found.
        self._kept: Kept | None = None
        self._dictionary = b""  # of small chunks
        # Bytes of a body, and of one that holds several rows; asked once: a thread's first
        # connection may find no server.
        self._room = self._size = 0
        # Of the changes after the snapshot of the source, as `InitStream.end` has it.
        self._start: tuple[int, str | None] = (1, None)

    def close(self) -> None:
        self._stream.close()

    def prepare(self) -> None:
        """Changes after the point are not committed yet, and come after the end."""
        if self._kept is None:
            self._kept = self._open()
        self._start = self._stream.end(self._sink.stream)

    def _open(self) -> Kept:
        stream, sink, settings, job = self._stream, self._sink, self._settings, self._job
        stream.ensure(replicas=sink.replicas, storage=sink.storage)
        kept = Kept.of(sink.stream, stream.config(sink.stream), stream.config(settings.stream))
        kept.refuse(settings.max_age)
        if settings.compression == "zstd" and sink.dictionaries:
            newest = DictionaryBucket(stream.connection).newest(sink.stream)
            self._dictionary = newest.get((job.backend, job.schema, job.table), b"")
        records = Records(stream.connection, job.pipeline.name)
        if job.resumes and (plan := records.plan(job.snapshot_id)) is not None:
            self._ranges.restore(plan, written(stream, job.name, job.snapshot_id))
            for chunk in self._ranges.chunks:
                self._control.wrote(chunk["rows"], chunk["bytes"])
            self._control.progress.done = len(self._ranges.done)
        self._room = stream.room
        self._size = min(settings.chunk_bytes, self._room)
        return kept

    def begin(self, point: SnapshotPoint) -> Sequence[SnapshotPart]:
        schema, job, progress = point.schema, self._job, self._control.progress
        revision = self._sink.schemas(job.pipeline.name, job.prefix).put(schema)[schema.name]
        if (again := self._again(point, revision)) is None:
            self.discard()
        self._delete_abandoned()
        if (plan := self._ranges.plan) is None:
            plan = self._ranges.plan = self._planned(point, revision)
        progress.position, progress.lsn = plan.position, plan.lsn
        return self._ranges.set_parts(again or ())

    def _again(self, point: SnapshotPoint, revision: int) -> Sequence[Any] | None:
        """Ranges of rows that were read under snapshots before this one, and are older; None if
        what was read does not add up with this one."""
        plan = self._ranges.plan
        now = point.schema.version, revision, point.losses, self._through
        if plan is None or not plan.mark:
            return None
        if (plan.version, plan.revision, plan.gap, plan.statements) != now:
            return None
        done = [plan.ranges[number] for number in sorted(self._ranges.done)]
        return point.taken.written_since(done, plan.mark)

    def _planned(self, point: SnapshotPoint, revision: int) -> SnapshotPlan:
        job, taken, (sequence, created) = self._job, point.taken, self._start
        ranges = taken.plan(_RANGE * self._settings.chunk_rows, _RANGE * self._size)
        plan = SnapshotPlan(
            ranges=ranges, version=taken.schema.version, mark=taken.mark, lsn=taken.lsn,
            position=taken.position, start=sequence, created=created, gap=point.losses,
            statements=self._through, revision=revision,
        )  # fmt: skip
        if job.pipeline.name and plan.mark and len(ranges) > 1:
            Records(self._stream.connection, job.pipeline.name).put_plan(job.snapshot_id, plan)
        return plan

    @property
    def _through(self) -> str:
        """The identity of the statements that rows come through."""
        statements = self._job.pipeline.statements
        return "" if statements is None else statements.identity

    @contextmanager
    def writer(self, point: SnapshotPoint) -> Iterator[Callable[[SnapshotPart], int | None]]:
        job, statements, read = self._job, self._job.pipeline.statements, 0
        images, most, size = images_for(self._sink.encoding), self._settings.chunk_rows, self._size
        # Of several chunks: what is left at the end of a page is a small one.
        chunks = 1 if self._settings.rate else _PAGE
        decoder = job.feed.decoder(images if statements is None else "json", job.on_error)
        with self._connected() as stream, point.taken.source.opened(self._control.is_over) as pages:
            writer = self._writer(stream, point)

            def slices(part: SnapshotPart) -> Iterator[pa.RecordBatch]:
                nonlocal read
                for page in pages(part.range, chunks * most, chunks * size):
                    read += page.count
                    for batch in decoder.decode(page):
                        rows = without_unreadable(batch, job.snapshot_id, stream, self._sink)
                        if statements is not None:
                            rows = through(statements, rows, images)
                        yield from cut(writer.form.rows(rows), most, size)

            def write(part: SnapshotPart) -> int | None:
                nonlocal read
                read = 0
                return read if writer.write(part, slices(part)) else None

            yield write

    def discard(self) -> None:
        self._ranges.forget()
        progress = self._control.progress
        progress.done = progress.chunks = progress.rows = progress.bytes = 0

    def finish(self, point: SnapshotPoint) -> None:
        """Sends the meta, which says that all is there and is whole. Raises what forbids that."""
        job, ranges = self._job, self._ranges
        self._delete_abandoned()
        self._writer(self._stream, point).fill()
        found = self._stream.count(job.name, job.snapshot_id)
        if found != (expected := len(ranges.all_chunks())):
            raise SettingsError(
                f"{expected} chunks were stored, and the stream {self._settings.stream} has"
                f" {found} of them",
                "snapshots",
                hint="raise its limits (max_bytes, max_msgs, max_age), and ask again",
            )
        if not job.pipeline.is_ours:
            raise LeaseLost("another instance runs the pipeline now", "snapshots")
        reload = job.snapshot_id if job.reloads else self._stream.reload(job.name)
        if self._control.on(RunEvent.SEND) is not RunState.SENT:
            raise Cancelled
        self._publish_meta(point, reload)

    def _publish_meta(self, point: SnapshotPoint, reload: str | None) -> None:
        """`docs/reference/messages.md` has every field."""
        job, schema, sink, chunks = self._job, point.schema, self._sink, self._ranges.all_chunks()
        say = dialect("json" if sink.encoding == "json" else "msgpack")
        progress, plan, kept = self._control.progress, self._ranges.plan, self._kept
        now = datetime.now(UTC)
        progress.position, progress.lsn = self._ranges.place
        assert plan is not None and kept is not None
        document = {
            "snapshot_id": job.snapshot_id,
            "table": schema.table,
            "schema": schema.schema,
            "lsn": progress.lsn,
            "position": progress.position,
            "timestamp": (
                int(now.timestamp())
                if sink.layout == "bridge"
                else now.isoformat(timespec="microseconds")[:-6] + "Z"
            ),
            "batch_count": len(chunks),
            "row_count": sum(one["rows"] for one in chunks),
            "schema_version": schema.version,
            "schema_revision": plan.revision,
            "relation_id": schema.relation_id,
            "columns": list(job.selection.columns) or [one["name"] for one in schema.columns],
            "where": job.selection.where or None,
            "partial": not job.selection.is_whole,
            "compression": self._settings.compression,
            "dictionary": self._compression.identity,
            "exact": point.taken.is_exact,
            "losses": plan.gap or None,
            "reload": reload,
            "stream": sink.stream,
            "stream_created": plan.created,
            "start_sequence": plan.start,
            "changes_kept_seconds": kept.changes,
            "chunks_kept_seconds": kept.chunks,
            "chunks": chunks,
        }
        body = say.value(document)
        if len(body) > self._room:
            # What is left says how many there are, and the subject says which.
            body = say.value(document | {"chunks": None})
        headers = {
            "Penstock-Schema": VERSION,
            "Penstock-Table-Schema": schema.version.encode(),
            "Content-Type": say.content_type,
        }
        identity = meta_identity(job.name, job.snapshot_id)
        self._stream.publish(f"{PREFIX}.meta.{token(job.name)}", body, headers, identity)

    def abandon(self) -> None:
        """Deletes the chunks, unless the server is away."""
        self.close()  # its connection may be lost
        with suppress(PenstockError):
            self._stream.purge(self._job.name, self._job.snapshot_id)

    def _delete_abandoned(self) -> None:
        for chunk in sorted(self._ranges.abandoned):
            self._stream.discard(self._job.name, self._job.snapshot_id, chunk)
        self._ranges.discarded()

    def _writer(self, stream: InitStream, point: SnapshotPoint) -> ChunkWriter:
        job, taken, schema = self._job, point.taken, point.schema
        return ChunkWriter(
            stream=stream, ranges=self._ranges, name=job.name, schema_version=schema.version,
            compression=self._compression, room=self._room, control=self._control,
            form=ChunkForm(
                table=schema.table, schema=schema.schema, snapshot_id=job.snapshot_id,
                lsn=taken.lsn, position=taken.position, encoding=self._sink.encoding,
                is_keyed=schema.is_of_documents,
            ),
        )  # fmt: skip

    @property
    def _compression(self) -> ChunkCompression:
        return ChunkCompression(self._settings.compression, self._dictionary)

    def _connected(self) -> InitStream:
        return InitStream(self._sink.nats, self._settings.stream, self._control.is_over)


class SnapshotRun:
    """Takes one snapshot. `progress` may be read by any thread, `cancel` called by any."""

    def __init__(
        self,
        job: Job,
        sink: SinkServer,
        settings: SnapshotSettings,
        pace: SnapshotPace | None = None,
    ) -> None:
        self.job = job
        self.control = RunControl(job.pipeline, pace or SnapshotPace(settings))
        self.progress = self.control.progress
        self._store = MessageStore(job, sink, settings, self.control)
        self._reader = TableReader(job, self._store, settings, self.control)

    def cancel(self) -> None:
        self.control.on(RunEvent.CANCEL)

    def run(self) -> None:
        """Blocks until the meta is stored. Raises Cancelled or a PenstockError; then no chunk is
        left, unless the server is away. Chunks stay once the meta was sent (it may be stored,
        though there is no answer), and for the next owner, once the pipeline is not ours."""
        with closing(self._store):
            try:
                point = self._reader.read()
                self.control.on(RunEvent.FINISH)
                self._warn_of_nothing()
                self._store.finish(point)
            except BaseException as error:
                state, is_ours = self.control.fail(error), self.job.pipeline.is_ours
                if state is RunState.CANCELLED or (state is RunState.FAILED and is_ours):
                    self._store.abandon()
                if self.control.is_cancelled:
                    raise Cancelled from error
                if not is_ours and not isinstance(error, LeaseLost):
                    raise LeaseLost(
                        "another instance runs the pipeline now", "snapshots"
                    ) from error
                raise

    def _warn_of_nothing(self) -> None:
        """A condition on `operation` may have forgotten rows of snapshots."""
        rows, has_statements = self.progress.read, self.job.pipeline.statements is not None
        if has_statements and rows and not self.progress.rows:
            log.warning(
                "no row of a snapshot comes through transform", table=".".join(self.job.name),
                rows=rows, hint="they have the operation READ",
            )  # fmt: skip
