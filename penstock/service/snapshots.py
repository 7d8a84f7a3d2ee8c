"""The part of the service that answers requests for snapshots, and asks for those after gaps.

A thread with a connection of its own, while the pipeline is ours: every subscriber gets requests,
so only the instance that holds the lease subscribes. A server that is away is waited for.

`on_gap: resnapshot`: after a gap every table of the backend is taken anew, and then its partitions
are not stale any more. A snapshot mends the gaps that were on record before it began: each run's
record says which. So no clocks and no positions of before and after a gap are compared. What is
missing is read from the records of runs each time: nothing is lost with the service.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import orjson
import ormsgpack
import structlog

from penstock.config import Pipeline
from penstock.config.parts import PipelinePart
from penstock.leases.gaps import losses, to_mend
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.table_schema import TableName
from penstock.nats.protocol import Msg
from penstock.nats.services import Responder
from penstock.nats.subjects import unescape
from penstock.process.backoff import delays
from penstock.service.owned_pipeline import OwnedPipeline
from penstock.service.tables import FollowedTables
from penstock.snapshots.followed_tables import FollowedTable, sources
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.options import SnapshotOptions
from penstock.snapshots.records import RunRecord
from penstock.snapshots.requests import SnapshotRequests, answer
from penstock.snapshots.retention import refusal
from penstock.snapshots.statements import RowTransform

SUBJECTS = "snapshot.>"
_TICK = 0.3  # seconds
_REFUSED = 300.0  # seconds after which a server that refuses us is asked again
_END = 15.0  # seconds for which `close` waits
_RETENTION = 30.0  # seconds between two looks at how long streams keep messages
_UNKNOWN = 20  # verbs of requests that are logged

log = structlog.get_logger("penstock")


class Snapshots(PipelinePart):
    """Listens from `start` until `close`, or until the pipeline is not ours any more, if the sink
    has streams and a source has snapshots."""

    def __init__(self, pipeline: Pipeline, owned: OwnedPipeline) -> None:
        self._pipeline, self._owned = pipeline, owned
        self._sources = sources(pipeline)
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        self._resnapshots = Resnapshots(
            owned, [each.backend for each in self._sources if each.feed.on_gap == "resnapshot"]
        )
        self._requests: SnapshotRequests  # of the thread, as the next
        self._tables: FollowedTables
        self._is_heard = False  # whether requests came to it, ever
        self._has_resumed = False  # what an instance before this one left
        self._said = ""  # the last error that was logged
        self._unknown = set[str]()  # verbs of requests, as they were logged
        self._refusal = ""  # of all requests, as it was logged
        self._look_at = 0.0

    def start(self, statements: RowTransform | None = None) -> None:
        """Returns at once. With a `transform`: its statements. Raises SettingsError where these
        cannot take the rows of snapshots that the pipeline takes by itself."""
        if not self._sources or self._pipeline.sink.server() is None:
            return
        self._owned.statements = statements
        wanted = self._pipeline.wants_snapshots
        if statements is not None and statements.refusal and wanted:
            raise SettingsError(
                f"{wanted} takes snapshots, and transform {statements.refusal}",
                "service.transform-refused",
                hint="leave one of them out: rows of snapshots go through transform",
            )
        self._thread.start()

    def close(self) -> None:
        """Ends the snapshots that run, and waits for that, but not for a server that hangs."""
        self._owned.end()
        if self._thread.is_alive():
            self._thread.join(_END)
            if self._thread.is_alive():
                log.warning("snapshots end later than the service", waited=_END)

    def _run(self) -> None:
        sink = self._pipeline.sink.server()
        assert sink is not None
        settings, waits = self._pipeline.snapshot, delays(limit=10.0)
        owned = self._owned
        stream = InitStream(sink.nats, settings.stream, lambda: not owned.is_ours)
        self._requests = SnapshotRequests(self._pipeline, owned, sink, stream)
        self._tables = FollowedTables(owned, self._sources, sink)
        with closing(self._requests), stream, self._tables:
            self._tables.start()
            while owned.is_ours:
                try:
                    self._serve(stream)
                except Exception as error:
                    self._warn("snapshots cannot be asked for now", error)
                    stream.close()
                    owned.wait(_REFUSED if isinstance(error, SettingsError) else next(waits))

    def _serve(self, stream: InitStream) -> None:
        """Answers until `close`, an error, or the loss of the lease."""
        requests, tables = self._requests, self._tables
        if tables.unknown:
            tables.look()
        requests.prepare()
        self._resume()
        # `requests` asks over this connection, too: one that is read never goes stale.
        responder = Responder(stream.connection, SUBJECTS, self._answer)
        responder.start()
        if not self._is_heard:
            self._is_heard = True
            log.info("snapshots can be asked for", subject="snapshot.request.>")
        self._said = ""
        while self._owned.is_ours:
            responder.serve(_TICK)
            requests.tick()
            self._look(stream)
            for backend, status in requests.status().items():
                self._report(backend, status)
            self._resume()
            if self._has_resumed:
                requests.begin(tables.all)
                if not tables.unknown:
                    self._resnapshots.look(requests, tables.all)

    def _resume(self) -> None:
        """Takes up what an instance before this one left, once all tables are known."""
        if not self._has_resumed and not self._tables.unknown:
            self._requests.resume(self._tables.all)
            self._has_resumed = True

    def _look(self, stream: InitStream) -> None:
        """Says beforehand what will become of requests."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _RETENTION
        sink = self._pipeline.sink.server()
        assert sink is not None
        was = self._refusal
        with suppress(SettingsError):  # who may not look is told when it is asked
            self._refusal = refusal(stream, sink, self._pipeline.snapshot)
        if was == self._refusal:
            return
        if self._refusal:
            log.warning("snapshots will be refused", error=self._refusal)
        for each in self._sources:
            self._report(each.backend, self._requests.status().get(each.backend, {}))

    def _report(self, backend: str, status: Mapping[str, Any]) -> None:
        # For others a stream that keeps changes for minutes is as it should be.
        told = self._refusal if self._pipeline.needs_snapshots else ""
        self._owned.report_snapshots(backend, {**status, "refusal": told})

    def _answer(self, message: Msg) -> bytes | None:
        """None to a request for another pipeline. What cannot be answered is logged."""
        subject, verb, name = message.subject.decode(errors="replace"), "", tuple[str, ...]()
        try:
            verb, name = _asked_for(message.subject)
            options = _options(message.payload)
            if options.pop("pipeline", self._pipeline.name) != self._pipeline.name:
                log.info("a request names another pipeline", subject=subject)
                return None
            if verb == "request":
                return orjson.dumps(answer(self._requested(name, SnapshotOptions.read(options))))
            if verb == "cancel":
                return orjson.dumps(answer(self._requests.cancel(".".join(name))))
        except PenstockError as error:
            if error.code == "snapshots.no-table" and self._requests.is_of_another(name):
                log.info("a request is of another pipeline's table", subject=subject)
                return None
            passes = isinstance(error, Unavailable)
            if verb == "request" and not (passes and message.reply):
                with suppress(Unavailable):  # of two ways to say it one is enough
                    self._requests.refuse(name, error)
            if not message.reply:
                log.warning("a request is refused", subject=subject, error=str(error))
            again = {"again": True} if passes else {}
            return orjson.dumps({"error": error.message, "hint": error.hint, **again})
        if verb not in self._unknown and len(self._unknown) < _UNKNOWN:
            self._unknown.add(verb)
            log.warning("not a request that is known", subject=subject)
        return None

    def _requested(self, name: TableName, options: SnapshotOptions) -> Any:
        tables = self._tables
        try:
            return self._requests.request(name, tables.asked(), options)
        except SettingsError:
            tables.look()  # it may be new
            if tables.unknown:
                raise Unavailable(
                    f"the tables of {', '.join(tables.unknown)} are not known now",
                    "service",
                    hint="its source is away, or refuses the login: see the log, and ask again",
                ) from None
            return self._requests.request(name, tables.asked(), options)

    def _warn(self, event: str, error: Exception) -> None:
        found = PenstockError.of(error, "snapshots")
        if str(found) != self._said:
            log.warning(event, error=str(found))
        self._said = str(found)


def _asked_for(subject: bytes) -> tuple[str, TableName]:
    """The verb and the name in a request's subject. Raises SettingsError."""
    _, verb, *rest = subject.split(b".")
    try:
        name = tuple(unescape(part.decode()) for part in rest)
    except ValueError:
        name = ()
    if verb in (b"request", b"cancel") and not name:
        raise SettingsError(
            f"{subject.decode(errors='replace')} names nothing",
            "service",
            hint="send snapshot.request.TABLE or snapshot.cancel.ID; %XX is a byte of UTF-8",
        )
    return verb.decode(errors="replace"), name


def _options(payload: bytes) -> dict[str, Any]:
    """The options of a request, which sends nothing, or a map in JSON or MessagePack. Raises
    SettingsError."""
    payload = payload.lstrip() or b"{}"
    try:
        found = ormsgpack.unpackb(payload) if payload >= b"\x80" else orjson.loads(payload)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SettingsError(
            "the options of a request are no map in JSON or MessagePack",
            "service",
            hint='send nothing, or {"pipeline": NAME} where several pipelines share an account',
        )
    return found


_LOOK = 5.0  # seconds between two looks
_AGAIN = 60.0  # seconds after which a table whose run failed is asked for again


def outdated(
    tables: Sequence[FollowedTable], records: Sequence[RunRecord], lost: str, now: float
) -> tuple[list[FollowedTable], bool]:
    """The tables that are to be asked for now, because they have no snapshot from after what was
    `lost` (see `losses`), nor one that runs or failed just now; and whether all have one (of no
    table that is not known). Pure."""
    records = [one for one in records if not one.is_partial]
    done = {one.name for one in records if one.state == "done" and one.gap == lost}
    busy = {
        one.name
        for one in records
        if not one.has_ended or (one.state == "failed" and now - one.changed_at < _AGAIN)
    }
    missing = [each for each in tables if each.name not in done]
    return [each for each in missing if each.name not in busy], bool(tables) and not missing


class Resnapshots:
    """Looks at the gaps of these backends, in one thread. Raises Unavailable, SettingsError."""

    def __init__(self, owned: OwnedPipeline, backends: Sequence[str]) -> None:
        self._owned, self._backends = owned, backends
        self._look_at = 0.0
        # By backend: every table that was followed since a gap was first seen. One that is not
        # followed any more is not mended.
        self._affected: defaultdict[str, dict[TableName, FollowedTable]] = defaultdict(dict)

    def look(self, requests: SnapshotRequests, tables: list[FollowedTable]) -> None:
        """Asks for what is missing, and clears what is mended."""
        if not self._backends or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK
        for backend in self._backends:
            gaps = self._owned.gaps(backend)
            rows = gaps.rows()
            stale = to_mend(rows)
            if not stale or self._owned.unpublished(backend, rows):
                continue
            affected = self._affected[backend]
            affected |= {one.name: one for one in tables if one.source.backend == backend}
            missing, is_mended = outdated(
                [*affected.values()], requests.records.all(), losses(rows), time.time()
            )
            for each in missing:
                requests.take_again(each.name, tables)
            if is_mended:
                for partition, row in stale.items():
                    gaps.clear(partition, seen=row)
                    log.warning("lost changes are mended", backend=backend, partition=partition)
                del self._affected[backend]
