"""One snapshot, from the point in the log to the meta. Whatever ends it early leaves no chunks.

A connection that is lost, or `snapshot.max_age`, ends a snapshot of the source, and not the run: a
table whose ranges rows do not leave is read on under another one, every other from its beginning.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import structlog

from penstock.config import SnapshotSettings
from penstock.feeds import TableSnapshot
from penstock.model.errors import LeaseLost, PenstockError, SettingsError, Unavailable
from penstock.process.backoff import delays
from penstock.sinks.server import SinkServer
from penstock.snapshots.chunks import ChunkForm, cut, images_for
from penstock.snapshots.compression import ChunkCompression, dictionary_of
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.job import Cancelled, Job, RunProgress
from penstock.snapshots.meta import Meta
from penstock.snapshots.pace import SnapshotPace
from penstock.snapshots.readable import readable
from penstock.snapshots.records import Records
from penstock.snapshots.retention import Kept
from penstock.snapshots.statements import RowTransform, through
from penstock.snapshots.work import SnapshotPart, SnapshotPlan, Work
from penstock.snapshots.writing import ChunkWriter, written

_PAGE = 4  # chunks that are read at a time; with a rate one: what is read in a burst is in the way
_NICE = 19  # of the threads that read: running pipelines come first
_RANGE = 16  # and that a range has, about
_TRIES = 5  # snapshots of the source, one after the other, in which no range was read to its end

Start = tuple[int, str | None]  # of the changes: see `InitStream.end`

log = structlog.get_logger("penstock")


class SnapshotRun:
    """Takes one snapshot. `progress` may be read by any thread, `cancel` called by any."""

    def __init__(
        self,
        job: Job,
        sink: SinkServer,
        settings: SnapshotSettings,
        pace: SnapshotPace | None = None,
        statements: RowTransform | None = None,
    ) -> None:
        self.job = job
        self.progress = RunProgress()
        self.is_cancelled = False
        self._sink, self._settings = sink, settings
        self._pace = pace or SnapshotPace(settings.rate)
        self._statements = statements  # None: rows are as they are at the source
        self._through = "" if statements is None else statements.identity
        self._work = Work()
        self._stopped = threading.Event()  # a worker failed, or it was cancelled
        self._failure: BaseException | None = None  # the first one; others may follow from it
        self._lock = threading.Lock()  # over `progress` and `_failure`
        self._ends_at = 0.0  # of the source's snapshot, monotonic seconds
        self._dictionary = b""  # of small chunks
        self._gap = ""  # the job's, before the source's snapshot
        self._again: Sequence[Any] = ()  # ranges to be read once more
        self._rows = 0  # that were read under the source's snapshot, of parts that are done
        self._revision = 0  # of the table's document in the bucket of schemas
        self._is_left = self._is_read = self._is_meta_sent = False

    def cancel(self) -> None:
        """Ends it as soon as possible."""
        self.is_cancelled = True
        self._stopped.set()

    def leave(self) -> None:
        """Ends it, too, but what is done stays, for the next owner of the pipeline."""
        self._is_left = True
        self._stopped.set()

    def run(self) -> None:
        """Blocks until the meta is stored. Raises Cancelled or a PenstockError; then no chunk is
        left, unless the server is away. Once the meta was sent it may be stored, though there is no
        answer: then the chunks stay. They stay, too, for the next owner, once the pipeline is not
        ours."""
        try:
            with self._stream() as stream:
                stream.ensure(replicas=self._sink.replicas, storage=self._sink.storage)
                kept = self._kept(stream)
                if self._settings.compression == "zstd":
                    self._dictionary = dictionary_of(stream, self._sink, self.job)
                if self.job.resumes:
                    self._restore(stream)
                self._run(stream, kept)
        except BaseException as error:
            self._stopped.set()
            is_left = self._is_left or not self.job.is_ours()
            if not self._is_meta_sent and (self.is_cancelled or not is_left):
                self._purge()
            if self.is_cancelled:
                raise Cancelled from error
            if is_left and not isinstance(error, LeaseLost):
                raise LeaseLost("the pipeline is another instance's now") from error
            raise

    def _kept(self, stream: InitStream) -> Kept:
        changes, settings = self._sink.stream, self._settings
        kept = Kept.of(changes, stream.config(changes), stream.config(settings.stream))
        kept.refuse(settings.max_age)
        return kept

    def _run(self, stream: InitStream, kept: Kept) -> None:
        """Under one snapshot of the source after the other. An error that passes ends the one that
        it is of, once the table was cut."""
        waits, tried = delays(limit=1.0), 0
        while True:
            done = len(self._work.done)
            try:
                if self._finish(stream, kept):
                    return
            except Unavailable as error:
                tried = 1 if len(self._work.done) > done else tried + 1
                is_over = self.is_cancelled or self._is_left or not self.job.is_ours()
                if is_over or self._is_read or not self.progress.ranges or tried >= _TRIES:
                    raise
                log.warning("a snapshot goes on under another one", error=str(error))
                time.sleep(next(waits))
            self._failure = None
            self._stopped.clear()
            if self.is_cancelled or self._is_left:  # since we looked
                self._stopped.set()

    def _finish(self, stream: InitStream, kept: Kept) -> bool:
        """Reads what is left under one snapshot of the source; whether that was all."""
        self._gap = self.progress.gap = self.job.gap()
        # Changes after the point are not committed yet: they come after this. Those from before a
        # gap are in the stream already: over rows from after the gap they would be wrong.
        start = stream.end(self._sink.stream)
        with self._snapshot() as taken:
            self._ends_at = time.monotonic() + self._settings.max_age
            self._begin_on(stream, taken)
            self._take(stream, taken, start)
            if self._work.is_complete:
                self._verify(taken)
                if taken.counted not in (None, self._rows):
                    raise _miscounted(taken, self._rows)
                self._is_read = True
                self._warn_of_nothing()
                self._check(stream, taken)
                job = self.job
                reload = job.snapshot_id if job.reloads else stream.reload(job.name)
                self._is_meta_sent = True
                self._publish_meta(stream, taken, kept, reload)
                return True
            if not taken.mark:
                raise SettingsError(
                    f"reading {taken.schema.schema}.{taken.schema.table} takes longer than"
                    " snapshot.max_age, and cannot go on later: its changes have no key",
                    hint="raise snapshot.max_age, or give the table a primary key that is not"
                    " deferrable, and a replica identity",
                )
            return False

    def _begin_on(self, stream: InitStream, taken: TableSnapshot) -> None:
        """Before a snapshot is read: what was read before stays, if the two add up."""
        plan, work = self._work.plan, self._work
        bucket = self._sink.schemas(self.job.pipeline, self.job.prefix)
        self._revision = bucket.put(taken.schema)[taken.schema.name]
        now = taken.schema.version, self._revision, self._gap, self._through
        fits = (
            plan is not None
            and plan.mark
            and (plan.version, plan.revision, plan.gap, plan.statements) == now
        )
        if plan is not None and fits:
            done = [plan.ranges[number] for number in sorted(work.done)]
            again = taken.written_since(done, plan.mark)
            self._again, fits = again or (), again is not None
        if plan is not None and not fits:
            self._forget()
        self._discard(stream)
        self.progress.snapshots += 1

    def _forget(self) -> None:
        self._work.forget()
        self.progress.done = self.progress.chunks = 0
        self.progress.rows = self.progress.bytes = 0

    def _snapshot(self) -> AbstractContextManager[TableSnapshot]:
        job = self.job
        return job.source.snapshot(
            job.schema, job.table, job.known(), patience=self._settings.patience,
            is_stopped=self._is_over, on_wait=self._waits,
        )  # fmt: skip

    def _waits(self, text: str) -> None:
        self.progress.waiting = text

    def _restore(self, stream: InitStream) -> None:
        job = self.job
        plan = Records(stream.connection, job.pipeline).plan(job.snapshot_id)
        if plan is None:
            return
        self._work.restore(plan, written(stream, job.name, job.snapshot_id))
        for chunk in self._work.chunks:
            self._wrote(chunk["rows"], chunk["bytes"])
        self.progress.done = len(self._work.done)

    def _purge(self) -> None:
        with suppress(PenstockError), self._stream() as stream:
            stream.purge(self.job.name, self.job.snapshot_id)

    def _discard(self, stream: InitStream) -> None:
        for chunk in sorted(self._work.abandoned):
            stream.discard(self.job.name, self.job.snapshot_id, chunk)
        self._work.discarded()

    def _is_over(self) -> bool:
        return self._stopped.is_set() or not self.job.is_ours()

    def _is_old(self) -> bool:
        return time.monotonic() > self._ends_at

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._stopped.set()

    def _take(self, stream: InitStream, taken: TableSnapshot, start: Start) -> None:
        settings = self._settings
        room = stream.room  # asked once: a worker's first connection may find no server
        size = min(settings.chunk_bytes, room)
        self._rows = 0
        planned = Future[None]()
        with ThreadPoolExecutor(settings.slots, "snapshot") as pool:
            # They connect first: what wants to rewrite the table waits for all of them.
            for _ in range(settings.slots):
                pool.submit(self._read, taken, planned, room)
            try:
                self._plan(stream, taken, start, size)
                planned.set_result(None)
            except BaseException as error:
                self._fail(error)
                planned.set_exception(error)
        if self._failure is not None:
            raise self._failure
        if not self._work.is_complete and not self._is_old():
            raise Unavailable("it was ended")

    def _plan(self, stream: InitStream, taken: TableSnapshot, start: Start, size: int) -> None:
        """Cuts the table, or takes up what is left, and what is to be read again."""
        job, progress = self.job, self.progress
        if (plan := self._work.plan) is None:
            ranges = taken.plan(_RANGE * self._settings.chunk_rows, _RANGE * size)
            sequence, created = start
            plan = self._work.plan = SnapshotPlan(
                ranges=ranges, version=taken.schema.version, mark=taken.mark, lsn=taken.lsn,
                position=taken.position, start=sequence, created=created, gap=self._gap,
                statements=self._through,
                revision=self._revision,
            )  # fmt: skip
            if job.pipeline and plan.mark and len(ranges) > 1:
                Records(stream.connection, job.pipeline).put_plan(job.snapshot_id, plan)
        progress.position, progress.lsn = plan.position, plan.lsn
        progress.ranges = len(plan.ranges)
        progress.begun_at, progress.done_before = time.monotonic(), progress.done
        self._work.set_parts(self._again)

    def _verify(self, taken: TableSnapshot) -> None:
        known, gap = self.job.known(), self.job.gap()
        try:
            taken.verify(known)
            if gap != self._gap:
                raise Unavailable(
                    "changes were lost during the snapshot", hint="ask for another snapshot"
                )
        except Unavailable:
            self._forget()  # changes do not go on where it was taken
            raise

    def _check(self, stream: InitStream, taken: TableSnapshot) -> None:
        """Raises what forbids a meta, which says that all is there and is whole."""
        job, settings = self.job, self._settings
        self._discard(stream)
        self._writer(stream, taken, stream.room).fill()
        found, expected = stream.count(job.name, job.snapshot_id), len(self._work.all_chunks())
        if found != expected:
            raise SettingsError(
                f"{expected} chunks were stored, and the stream {settings.stream} has {found} of"
                " them",
                hint="raise its limits (max_bytes, max_msgs, max_age), and ask again",
            )
        if self.is_cancelled:
            raise Cancelled
        if not job.is_ours():
            raise LeaseLost("the pipeline is another instance's now")

    def _read(self, taken: TableSnapshot, planned: Future[None], room: int) -> None:
        """Parts, one after the other, until none is left."""
        try:
            if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            with self._stream() as stream, taken.source.opened(self._is_over) as pages:
                writer = self._writer(stream, taken, room)
                sink, statements = self._sink, self._statements
                images = images_for(sink.encoding)
                decoder = self.job.feed.decoder(
                    images if statements is None else "json", self.job.on_error
                )
                planned.result()
                rows, size = self._settings.chunk_rows, min(self._settings.chunk_bytes, room)
                chunks = 1 if self._settings.rate else _PAGE
                read = 0

                def slices(part: SnapshotPart) -> Iterator[Any]:
                    nonlocal read
                    # Of several chunks: what is left at the end of a page is a small one.
                    for page in pages(part.range, chunks * rows, chunks * size):
                        read += page.count
                        for batch in decoder.decode(page):
                            batch = readable(  # noqa: PLW2901
                                batch, self.job.snapshot_id, stream, sink
                            )
                            if statements is not None:
                                batch = through(statements, batch, images)  # noqa: PLW2901
                            yield from cut(writer.form.rows(batch), most=rows, size=size)

                while not (self._is_over() or self._is_old()):
                    part, read = self._work.take(), 0
                    if part is None:
                        return
                    if writer.write(part, slices(part)):
                        with self._lock:
                            self._rows += read
                            self.progress.done += part.number is not None
        except BaseException as error:
            planned.exception()  # first: where cutting fails, nothing can be opened any more
            self._fail(error)

    def _writer(self, stream: InitStream, taken: TableSnapshot, room: int) -> ChunkWriter:
        schema = taken.schema
        return ChunkWriter(
            stream=stream, work=self._work, name=self.job.name, schema_version=schema.version,
            compression=self._compression(), room=room, pace=self._pace,
            is_over=self._is_over, wrote=self._wrote,
            form=ChunkForm(
                table=schema.table, schema=schema.schema, snapshot_id=self.job.snapshot_id,
                lsn=taken.lsn, position=taken.position, encoding=self._sink.encoding,
                is_keyed=schema.is_of_documents,
            ),
        )  # fmt: skip

    def _compression(self) -> ChunkCompression:
        return ChunkCompression(self._settings.compression, self._dictionary)

    def _wrote(self, rows: int, size: int) -> None:
        with self._lock:
            self.progress.chunks += -1 if size < 0 else 1
            self.progress.rows += rows
            self.progress.bytes += size

    def _warn_of_nothing(self) -> None:
        """A condition on `operation` may have forgotten rows of snapshots."""
        if self._statements is not None and self._rows and not self.progress.rows:
            log.warning(
                "no row of a snapshot comes through transform", table=".".join(self.job.name),
                rows=self._rows, hint="they have the operation READ",
            )  # fmt: skip

    def _publish_meta(
        self, stream: InitStream, taken: TableSnapshot, kept: Kept, reload: str | None
    ) -> None:
        progress = self.progress
        progress.position, progress.lsn = position, lsn = self._work.place
        assert self._work.plan is not None
        plan = replace(self._work.plan, position=position, lsn=lsn)
        meta = Meta(
            name=self.job.name, snapshot_id=self.job.snapshot_id, schema=taken.schema, plan=plan,
            revision=self._revision, reload=reload,
            is_exact=taken.is_exact, kept=kept, compression=self._compression(),
            chunks=self._work.all_chunks(), selection=self.job.selection,
        )  # fmt: skip
        meta.publish(stream, self._sink)

    def _stream(self) -> InitStream:
        return InitStream(self._sink.nats, self._settings.stream, self._is_over)


def _miscounted(taken: TableSnapshot, rows: int) -> SettingsError:
    name = f"{taken.schema.schema}.{taken.schema.table}"
    return SettingsError(
        f"{name} has {taken.counted:,} rows, and by its key {rows:,} were found",
        hint=f"the index of its key may be corrupt, as after an upgrade of the system's collations:"
        f" REINDEX TABLE {name}",
    )
