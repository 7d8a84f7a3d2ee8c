"""Requests for snapshots: which table is meant, which requests share a run, and how runs end.

Used by one thread; runs have threads of their own, and `tick` stores how they are.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

import structlog

from penstock.config import Pipeline
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.table_schema import TableName
from penstock.nats.buckets import Bucket, key_of, read_map
from penstock.sinks.messages.dialect import dialect
from penstock.sinks.server import SinkServer
from penstock.snapshots.followed_tables import FollowedTable, InitialSnapshots, resolve
from penstock.snapshots.init_stream import PREFIX, InitStream, token
from penstock.snapshots.job import Cancelled, Job, PipelineState, RunProgress, SnapshotPace
from penstock.snapshots.options import USUAL, SnapshotOptions
from penstock.snapshots.records import KEPT, Records, RunRecord, SnapshotTotals, new_id
from penstock.snapshots.store import SnapshotRun

log = structlog.get_logger("penstock")


_SHOWN = "position", "lsn", "gap", "ranges", "done", "chunks", "rows", "bytes"
ALIVE = 10.0  # seconds after which the record of a run is stored again


class SnapshotRequests:
    """`stream` and `records` are of its thread. Runs end once the pipeline is not ours any more."""

    def __init__(
        self, pipeline: Pipeline, state: PipelineState, sink: SinkServer, stream: InitStream
    ) -> None:
        self._pipeline, self._state = pipeline, state
        self._sink, self._stream = sink, stream
        self._pool = ThreadPoolExecutor(pipeline.snapshot.max_concurrent, "snapshots")
        self._pace = SnapshotPace(pipeline.snapshot)  # of all runs together
        self._initial = InitialSnapshots(state)
        self._refused: dict[TableName, str] = {}  # why, as it was logged last
        # By backend: the runs that ended.
        self._totals: defaultdict[str, SnapshotTotals] = defaultdict(SnapshotTotals)
        # By id: those that have not ended, each with its record as it is stored.
        self._runs: dict[str, tuple[RunRecord, SnapshotRun, Future[None]]] = {}

    @property
    def records(self) -> Records:
        return Records(self._stream.connection, self._pipeline.name)

    def prepare(self) -> None:
        """Makes the stream: a consumer subscribes before it asks. Raises Unavailable."""
        with _logged("the stream of snapshots is not as it should be"):
            self._stream.ensure(replicas=self._sink.replicas, storage=self._sink.storage)

    def request(
        self, name: TableName, tables: list[FollowedTable], options: SnapshotOptions = USUAL
    ) -> RunRecord:
        """The run of a table: the one that goes on with the same options, or a new one. Raises
        SettingsError for a table that is not followed or does not take the options; Unavailable."""
        table = resolve(name, tables)
        self._refuse_around_transform(table)
        options = options.of(table, self._pipeline.snapshot)
        if table.schema.suspended:
            raise SettingsError(
                f"{'.'.join(table.name)} is suspended: {table.schema.suspended}; changes after a"
                " snapshot would be missing",
                "snapshots.table-suspended",
                hint="remove the cause, and: penstock tables resume FILE TABLE",
            )
        for record, run, future in self._runs.values():
            is_same = (record.name, record.options) == (table.name, options.given)
            if is_same and not run.control.is_cancelled and not future.done():
                return self._present(record.snapshot_id)
        return self._start(table, options)

    def _refuse_around_transform(self, table: FollowedTable) -> None:
        if not self._pipeline.transform:
            return
        statements = self._state.statements
        if reason := "needs Spark" if statements is None else statements.refusal:
            raise SettingsError(
                f"{'.'.join(table.name)} has no snapshots: transform {reason}",
                "snapshots",
                hint="rows of snapshots go through transform, too: let its statements choose rows"
                " and compute columns only",
            )

    def is_of_another(self, name: TableName) -> bool:
        """Whether another pipeline of the account publishes a table of this name."""
        with suppress(PenstockError):  # there is no bucket yet
            found = Bucket(self._stream.connection, "schemas").get(key_of(name))
            owner = read_map(found.value).get("pipeline") if found else None
            return owner not in (None, self._pipeline.name)
        return False

    def cancel(self, snapshot_id: str) -> RunRecord:
        """Ends a run. Raises SettingsError for one that does not run."""
        if snapshot_id not in self._runs:
            running = ", ".join(self._runs) or "none"
            raise SettingsError(
                f"{snapshot_id} does not run", "snapshots", hint=f"these do: {running}"
            )
        _, run, future = self._runs[snapshot_id]
        run.cancel()
        future.cancel()
        return self._present(snapshot_id)

    def resume(self, tables: list[FollowedTable]) -> None:
        """Takes up what an instance before this one left: what has a meta is complete; a run with a
        plan goes on; of others the chunks go, because they are of a point that is gone with that
        instance, and a new run takes the place of each. Forgets old records."""
        for record in self.records.all():
            if record.snapshot_id in self._runs:
                continue
            if record.has_ended:
                if time.time() - record.changed_at > KEPT:
                    self.records.forget(record)
                continue
            if meta := self._stream.meta(record.name, record.snapshot_id):
                self._put(_complete(record, meta))
                continue
            if self._go_on(record, tables):
                continue
            with _logged("the chunks of a snapshot cannot be deleted", snapshot=record.snapshot_id):
                self._stream.purge(record.name, record.snapshot_id)
                self.records.forget_plan(record.snapshot_id)
            try:
                again = self.request(record.name, tables, SnapshotOptions.read(record.options))
            except SettingsError as error:
                self._put(replace(record, state="failed", error=error.message, hint=error.hint))
                continue
            self._put(replace(record, state="replaced", by=again.snapshot_id))
            log.info(
                "a snapshot is taken again", table=".".join(record.name),
                before=record.snapshot_id, snapshot=again.snapshot_id,
            )  # fmt: skip

    def begin(self, tables: list[FollowedTable]) -> None:
        """Asks for the initial snapshots that are missing. Raises Unavailable."""
        for table in self._initial.missing(tables, self.records):
            if self.take_again(table.name, tables):
                self._initial.asked(table.name)
            else:
                self._initial.refused(table.name)

    def take_again(self, name: TableName, tables: list[FollowedTable]) -> bool:
        """Asks for a snapshot; a refusal is logged once. Raises Unavailable."""
        try:
            self.request(name, tables)
        except SettingsError as error:
            if self._refused.get(name) != error.message:
                log.warning("no snapshot is taken", table=".".join(name), error=str(error))
            self._refused[name] = error.message
            return False
        self._refused.pop(name, None)
        return True

    def tick(self) -> None:
        """Stores how the runs are, and what came of those that ended. Raises Unavailable."""
        for snapshot_id, (record, _, future) in list(self._runs.items()):
            has_ended = future.done()
            if has_ended and not self._state.is_ours:
                return  # perhaps for that: the next owner takes it up
            present = self._present(snapshot_id)
            if has_ended:
                present = self._ended(present, future)
                self._initial.ended(present, self.records)
                self._totals[present.backend].ended(present)
            # Again after a while, so that a slow run differs from a dead service.
            if present != record or time.time() - record.changed_at > ALIVE:
                present = self._put(present)
                self._runs[snapshot_id] = (present, *self._runs[snapshot_id][1:])
            if has_ended:
                self.records.forget_plan(snapshot_id)
                del self._runs[snapshot_id]

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """What the status page has, by backend."""
        running: dict[str, list[tuple[RunRecord, RunProgress]]] = {}
        for snapshot_id, (record, run, _) in self._runs.items():
            present = self._present(snapshot_id)
            running.setdefault(record.backend, []).append((present, run.progress))
        now = time.monotonic()
        return {
            backend: self._totals[backend].status(running.get(backend, ()), now)
            for backend in self._totals.keys() | running.keys()
        }

    def close(self) -> None:
        """Waits for the runs, which end once the pipeline is not ours. Their records stay."""
        for _, _, future in self._runs.values():
            future.cancel()
        self._pool.shutdown()

    def _go_on(self, record: RunRecord, tables: list[FollowedTable]) -> bool:
        """Goes on with a run of an instance before this one, if it left a plan."""
        found = [one for one in tables if one.name == record.name]
        if not found or self.records.plan(record.snapshot_id) is None:
            return False
        try:
            self._refuse_around_transform(found[0])
            options = SnapshotOptions.read(record.options).of(found[0], self._pipeline.snapshot)
        except SettingsError:
            return False  # and why, the request in its place says
        self._submit(found[0], record, options, resumes=True)
        log.info(
            "a snapshot goes on", table=".".join(record.name), snapshot=record.snapshot_id
        )  # fmt: skip
        return True

    def refuse(self, name: TableName, error: PenstockError, snapshot_id: str = "") -> None:
        """Publishes why there is no snapshot, or logs why not. Raises Unavailable."""
        say = dialect("json" if self._sink.encoding == "json" else "msgpack")
        body = {
            "table": ".".join(name),
            "snapshot_id": snapshot_id or None,
            "error": error.message,
            "hint": error.hint,
        }
        headers = {"Penstock-Schema": b"1", "Content-Type": say.content_type}
        identity = f"init-error-{token(name)}-{snapshot_id or new_id()}"
        subject = f"{PREFIX}.error.{token(name)}"
        with _logged("an error cannot be published", subject=subject):
            self._stream.ensure(replicas=self._sink.replicas, storage=self._sink.storage)
            self._stream.publish(subject, say.value(body), headers, identity)

    def _start(self, table: FollowedTable, options: SnapshotOptions) -> RunRecord:
        source, schema = table.source, table.schema
        record = RunRecord(
            snapshot_id=new_id(), pipeline=self._pipeline.name, backend=source.backend,
            schema=schema.schema, table=schema.table, name=table.name, state="queued",
            options=options.given, changed_at=time.time(),
        )  # fmt: skip
        records = self.records
        records.make(replicas=self._sink.replicas)
        records.put(record)
        self._submit(table, record, options)
        log.info("a snapshot begins", table=".".join(table.name), snapshot=record.snapshot_id)
        return record

    def _submit(
        self,
        table: FollowedTable,
        record: RunRecord,
        options: SnapshotOptions,
        *,
        resumes: bool = False,
    ) -> None:
        source, schema = table.source, table.schema
        job = Job(
            snapshot_id=record.snapshot_id, pipeline=self._state, backend=source.backend,
            feed=source.feed, schema=schema.schema, table=schema.table, name=table.name,
            prefix=source.prefix, resumes=resumes, selection=options.selection,
            reloads=bool(options.reload), on_error=source.on_error,
        )  # fmt: skip
        settings = options.settings(self._pipeline.snapshot)
        run = SnapshotRun(job, self._sink, settings, self._pace)
        self._runs[record.snapshot_id] = record, run, self._pool.submit(run.run)

    def _present(self, snapshot_id: str) -> RunRecord:
        record, run, future = self._runs[snapshot_id]
        progress = asdict(run.progress)
        found = replace(record, **{key: progress[key] for key in _SHOWN})
        return replace(found, state="running") if future.running() else found

    def _ended(self, record: RunRecord, future: "Future[None]") -> RunRecord:
        error = Cancelled() if future.cancelled() else future.exception()
        if error is None:
            log.info(
                "a snapshot is complete", table=".".join(record.name), snapshot=record.snapshot_id,
                rows=record.rows, chunks=record.chunks,
            )  # fmt: skip
            return replace(record, state="done")
        if meta := self._stream.meta(record.name, record.snapshot_id):  # its answer was lost
            return _complete(record, meta)
        cancelled = isinstance(error, Cancelled)
        if cancelled or not isinstance(error, Exception):
            found: PenstockError = Unavailable("it was cancelled", "snapshots", hint="ask again")
        else:
            found = PenstockError.of(error, "the snapshot")
        with _logged("the chunks of a snapshot cannot be deleted", snapshot=record.snapshot_id):
            self._stream.purge(record.name, record.snapshot_id)  # the server may have been away
        self.refuse(record.name, found, record.snapshot_id)
        log.warning(
            "a snapshot ended early", table=".".join(record.name), snapshot=record.snapshot_id,
            error=str(found),
        )  # fmt: skip
        state: Any = "cancelled" if cancelled else "failed"
        return replace(record, state=state, error=found.message, hint=found.hint)

    def _put(self, record: RunRecord) -> RunRecord:
        stored = replace(record, changed_at=time.time())
        self.records.put(stored)
        return stored


def _complete(record: RunRecord, meta: Mapping[str, Any]) -> RunRecord:
    return replace(
        record, state="done", position=meta["position"], lsn=meta["lsn"], done=record.ranges,
        chunks=meta["batch_count"], rows=meta["row_count"], gap=meta.get("losses") or "",
    )  # fmt: skip


@contextmanager
def _logged(event: str, **about: str) -> Iterator[None]:
    """Logs what an operator has to change: the rest does not wait for that."""
    try:
        yield
    except Unavailable:
        raise
    except PenstockError as error:
        log.warning(event, error=str(error), **about)


def answer(record: RunRecord) -> Mapping[str, Any]:
    found = {"snapshot_id": record.snapshot_id, "state": record.state}
    return found | ({"position": record.position} if record.position else {})
