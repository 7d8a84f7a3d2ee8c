"""One snapshot, from the point in the log to the meta. Whatever ends it early leaves no chunks.

A connection that is lost, or `snapshot.max_age`, ends a snapshot of the source, and not the run: a
table whose ranges rows do not leave is read on under another one, every other from its beginning.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog

from penstock.config import SnapshotSettings
from penstock.feeds import SnapshotWait, TableSnapshot
from penstock.model.errors import LeaseLost, PenstockError, SettingsError, Unavailable
from penstock.nats.compression import DictionaryBucket
from penstock.process.backoff import delays
from penstock.sinks.server import SinkServer
from penstock.snapshots.chunks import ChunkCompression, ChunkForm, cut, images_for
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.job import Cancelled, Job, RunControl, RunEvent, RunProgress, RunState
from penstock.snapshots.pace import SnapshotPace, be_nice
from penstock.snapshots.range_progress import RangeProgress, SnapshotPart, SnapshotPlan
from penstock.snapshots.records import Records
from penstock.snapshots.retention import Kept
from penstock.snapshots.statements import through
from penstock.snapshots.writing import (
    ChunkWriter,
    publish_meta,
    without_unreadable,
    written,
)

_PAGE = 4  # chunks that are read at a time; with a rate one: what is read in a burst is in the way
_RANGE = 16  # and that a range has, about
_TRIES = 5  # snapshots of the source, one after the other, in which no range was read to its end

log = structlog.get_logger("penstock")


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What is known of one snapshot of the source. `start`: of the changes after it, as
    `InitStream.end` has it. `losses`: the backend's, before it. `revision`: of the table's document
    in the bucket of schemas. `again`: ranges that are read once more under it."""

    taken: TableSnapshot
    start: tuple[int, str | None]
    losses: str
    ends_at: float  # monotonic seconds
    revision: int = 0
    again: Sequence[Any] = ()

    @property
    def is_old(self) -> bool:
        """Whether it lasts longer than `snapshot.max_age`."""
        return time.monotonic() > self.ends_at


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
        self._sink, self._settings = sink, settings
        self._pace = pace or SnapshotPace(settings)
        self._ranges = RangeProgress()
        self._control = RunControl(job.pipeline)
        self._dictionary = b""  # of small chunks

    @property
    def progress(self) -> RunProgress:
        """How far it is."""
        return self._control.progress

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._control.is_cancelled

    def cancel(self) -> None:
        """Ends it as soon as possible."""
        self._control.on(RunEvent.CANCEL)

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
                    self._dictionary = self._dictionary_of(stream)
                if self.job.resumes:
                    self._restore(stream)
                self._run(stream, kept)
        except BaseException as error:
            state, is_ours = self._control.fail(error), self.job.pipeline.is_ours
            if state is RunState.CANCELLED or (state is RunState.FAILED and is_ours):
                self._purge()
            if self.is_cancelled:
                raise Cancelled from error
            if not is_ours and not isinstance(error, LeaseLost):
                raise LeaseLost("the pipeline is another instance's now") from error
            raise

    def _kept(self, stream: InitStream) -> Kept:
        changes, settings = self._sink.stream, self._settings
        kept = Kept.of(changes, stream.config(changes), stream.config(settings.stream))
        kept.refuse(settings.max_age)
        return kept

    def _dictionary_of(self, stream: InitStream) -> bytes:
        """The newest dictionary of the table; empty where it has none, or they are off."""
        if not self._sink.dictionaries:
            return b""
        newest = DictionaryBucket(stream.connection).newest(self._sink.stream)
        return newest.get((self.job.backend, self.job.schema, self.job.table), b"")

    def _run(self, stream: InitStream, kept: Kept) -> None:
        """Reads under one snapshot of the source after the other. An error that passes ends the one
        that it is of, once the table was cut."""
        waits, tried = delays(limit=1.0), 0
        while True:
            done = len(self._ranges.done)
            try:
                if self._finish(stream, kept):
                    return
            except Unavailable as error:
                tried = 1 if len(self._ranges.done) > done else tried + 1
                may_go_on = self._control.may_go_on and self.progress.ranges
                if not may_go_on or tried >= _TRIES:
                    raise
                log.warning("a snapshot goes on under another one", error=str(error))
                time.sleep(next(waits))
            self._control.go_on()

    def _finish(self, stream: InitStream, kept: Kept) -> bool:
        """Reads what is left under one snapshot of the source; whether that was all."""
        job = self.job
        losses = self.progress.gap = job.pipeline.losses(job.backend)
        # Changes after the point are not committed yet: they come after this. Those from before a
        # gap are in the stream already: over rows from after the gap they would be wrong.
        start = stream.end(self._sink.stream)
        with self._snapshot() as taken:
            ends_at = time.monotonic() + self._settings.max_age
            reading = _Reading(taken=taken, start=start, losses=losses, ends_at=ends_at)
            self._begin_on(stream, reading)
            self._take(stream, reading)
            if self._ranges.is_complete:
                self._verify(reading)
                if taken.counted not in (None, self.progress.read):
                    raise _miscounted(taken, self.progress.read)
                self._control.on(RunEvent.FINISH)
                self._warn_of_nothing()
                self._check(stream, taken)
                reload = job.snapshot_id if job.reloads else stream.reload(job.name)
                if self._control.on(RunEvent.SEND) is not RunState.SENT:
                    raise Cancelled
                self._publish_meta(stream, reading, kept, reload)
                return True
            if not taken.mark:
                raise SettingsError(
                    f"reading {taken.schema.schema}.{taken.schema.table} takes longer than"
                    " snapshot.max_age, and cannot go on later: its changes have no key",
                    hint="raise snapshot.max_age, or give the table a primary key that is not"
                    " deferrable, and a replica identity",
                )
            return False

    def _begin_on(self, stream: InitStream, reading: _Reading) -> None:
        """Keeps what was read under snapshots before this one, if they add up; else forgets it."""
        plan, ranges, taken = self._ranges.plan, self._ranges, reading.taken
        bucket = self._sink.schemas(self.job.pipeline.name, self.job.prefix)
        reading.revision = bucket.put(taken.schema)[taken.schema.name]
        now = taken.schema.version, reading.revision, reading.losses, self._through
        fits = (
            plan is not None
            and plan.mark
            and (plan.version, plan.revision, plan.gap, plan.statements) == now
        )
        if plan is not None and fits:
            done = [plan.ranges[number] for number in sorted(ranges.done)]
            again = taken.written_since(done, plan.mark)
            reading.again, fits = again or (), again is not None
        if plan is not None and not fits:
            self._forget()
        self._discard(stream)
        self.progress.snapshots += 1

    @property
    def _through(self) -> str:
        """The identity of the statements that rows come through."""
        statements = self.job.pipeline.statements
        return "" if statements is None else statements.identity

    def _forget(self) -> None:
        self._ranges.forget()
        self.progress.done = self.progress.chunks = 0
        self.progress.rows = self.progress.bytes = 0

    def _snapshot(self) -> AbstractContextManager[TableSnapshot]:
        job, patience = self.job, self._settings.patience
        wait = SnapshotWait(
            patience=patience, is_stopped=self._control.is_over, on_wait=self._waits
        )
        known = job.pipeline.bookmarks(job.backend)
        return job.source.snapshot(job.schema, job.table, known, wait, job.selection)

    def _waits(self, text: str) -> None:
        self.progress.waiting = text

    def _restore(self, stream: InitStream) -> None:
        job = self.job
        plan = Records(stream.connection, job.pipeline.name).plan(job.snapshot_id)
        if plan is None:
            return
        self._ranges.restore(plan, written(stream, job.name, job.snapshot_id))
        for chunk in self._ranges.chunks:
            self._control.wrote(chunk["rows"], chunk["bytes"])
        self.progress.done = len(self._ranges.done)

    def _purge(self) -> None:
        with suppress(PenstockError), self._stream() as stream:
            stream.purge(self.job.name, self.job.snapshot_id)

    def _discard(self, stream: InitStream) -> None:
        for chunk in sorted(self._ranges.abandoned):
            stream.discard(self.job.name, self.job.snapshot_id, chunk)
        self._ranges.discarded()

    def _take(self, stream: InitStream, reading: _Reading) -> None:
        settings = self._settings
        room = stream.room  # asked once: a worker's first connection may find no server
        size = min(settings.chunk_bytes, room)
        self.progress.read = 0
        planned = Future[None]()
        with ThreadPoolExecutor(settings.slots, "snapshot") as pool:
            # They connect first: what wants to rewrite the table waits for all of them.
            for _ in range(settings.slots):
                pool.submit(self._read, reading, planned, room)
            try:
                self._plan(stream, reading, size)
                planned.set_result(None)
            except BaseException as error:
                self._control.fail(error)
                planned.set_exception(error)
        if self._control.failure is not None:
            raise self._control.failure
        if not self._ranges.is_complete and not reading.is_old:
            raise Unavailable("the snapshot was stopped before all ranges were read")

    def _plan(self, stream: InitStream, reading: _Reading, size: int) -> None:
        """Cuts the table, or takes up what is left, and what is to be read again."""
        job, progress, taken = self.job, self.progress, reading.taken
        if (plan := self._ranges.plan) is None:
            ranges = taken.plan(_RANGE * self._settings.chunk_rows, _RANGE * size)
            sequence, created = reading.start
            plan = self._ranges.plan = SnapshotPlan(
                ranges=ranges, version=taken.schema.version, mark=taken.mark, lsn=taken.lsn,
                position=taken.position, start=sequence, created=created, gap=reading.losses,
                statements=self._through, revision=reading.revision,
            )  # fmt: skip
            if job.pipeline.name and plan.mark and len(ranges) > 1:
                Records(stream.connection, job.pipeline.name).put_plan(job.snapshot_id, plan)
        progress.position, progress.lsn = plan.position, plan.lsn
        progress.ranges = len(plan.ranges)
        progress.begun_at, progress.done_before = time.monotonic(), progress.done
        self._ranges.set_parts(reading.again)

    def _verify(self, reading: _Reading) -> None:
        pipeline, backend = self.job.pipeline, self.job.backend
        known, losses = pipeline.bookmarks(backend), pipeline.losses(backend)
        try:
            reading.taken.verify(known)
            if losses != reading.losses:
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
        found, expected = stream.count(job.name, job.snapshot_id), len(self._ranges.all_chunks())
        if found != expected:
            raise SettingsError(
                f"{expected} chunks were stored, and the stream {settings.stream} has {found} of"
                " them",
                hint="raise its limits (max_bytes, max_msgs, max_age), and ask again",
            )
        if self.is_cancelled:
            raise Cancelled
        if not job.pipeline.is_ours:
            raise LeaseLost("the pipeline is another instance's now")

    def _read(self, reading: _Reading, planned: Future[None], room: int) -> None:
        """Reads parts, one after the other, until none is left."""
        taken, control = reading.taken, self._control
        try:
            be_nice()
            with self._stream() as stream, taken.source.opened(control.is_over) as pages:
                writer = self._writer(stream, taken, room)
                sink, statements = self._sink, self.job.pipeline.statements
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
                            batch = without_unreadable(  # noqa: PLW2901
                                batch, self.job.snapshot_id, stream, sink
                            )
                            if statements is not None:
                                batch = through(statements, batch, images)  # noqa: PLW2901
                            yield from cut(writer.form.rows(batch), most=rows, size=size)

                while not (control.is_over() or reading.is_old):
                    part, read = self._ranges.take(), 0
                    if part is None:
                        return
                    if writer.write(part, slices(part)):
                        control.read(read, is_range=part.number is not None)
        except BaseException as error:
            planned.exception()  # first: where cutting fails, nothing can be opened any more
            control.fail(error)

    def _writer(self, stream: InitStream, taken: TableSnapshot, room: int) -> ChunkWriter:
        schema = taken.schema
        return ChunkWriter(
            stream=stream, ranges=self._ranges, name=self.job.name, schema_version=schema.version,
            compression=self._compression(), room=room, pace=self._pace,
            control=self._control,
            form=ChunkForm(
                table=schema.table, schema=schema.schema, snapshot_id=self.job.snapshot_id,
                lsn=taken.lsn, position=taken.position, encoding=self._sink.encoding,
                is_keyed=schema.is_of_documents,
            ),
        )  # fmt: skip

    def _compression(self) -> ChunkCompression:
        return ChunkCompression(self._settings.compression, self._dictionary)

    def _warn_of_nothing(self) -> None:
        """A condition on `operation` may have forgotten rows of snapshots."""
        rows, has_statements = self.progress.read, self.job.pipeline.statements is not None
        if has_statements and rows and not self.progress.rows:
            log.warning(
                "no row of a snapshot comes through transform", table=".".join(self.job.name),
                rows=rows, hint="they have the operation READ",
            )  # fmt: skip

    def _publish_meta(
        self, stream: InitStream, reading: _Reading, kept: Kept, reload: str | None
    ) -> None:
        progress = self.progress
        progress.position, progress.lsn = position, lsn = self._ranges.place
        assert self._ranges.plan is not None
        plan = replace(self._ranges.plan, position=position, lsn=lsn)
        publish_meta(
            stream, self._sink, self.job, plan, reading.taken, kept=kept, reload=reload,
            compression=self._compression(), chunks=self._ranges.all_chunks(),
        )  # fmt: skip

    def _stream(self) -> InitStream:
        return InitStream(self._sink.nats, self._settings.stream, self._control.is_over)


def _miscounted(taken: TableSnapshot, rows: int) -> SettingsError:
    name = f"{taken.schema.schema}.{taken.schema.table}"
    return SettingsError(
        f"{name} has {taken.counted:,} rows, and by its key {rows:,} were found",
        hint=f"the index of its key may be corrupt, as after an upgrade of the system's collations:"
        f" REINDEX TABLE {name}",
    )
