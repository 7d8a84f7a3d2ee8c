"""The part of the service that answers requests for snapshots.

A thread with a connection of its own, while the pipeline is ours: every subscriber gets requests,
so only the instance that holds the lease subscribes. A server that is away is waited for.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import orjson
import structlog

from penstock.config import Pipeline
from penstock.feeds import OrdersNoPartitions
from penstock.leases.gaps import GapRow, losses, unpublished
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.position import Bookmarks
from penstock.model.table_schema import TableName
from penstock.nats.protocol import Msg
from penstock.nats.services import Responder
from penstock.nats.subjects import unescape
from penstock.process.backoff import delays
from penstock.process.closing import Closes
from penstock.reading.positions import Positions
from penstock.service.resnapshots import Resnapshots
from penstock.service.tables import FollowedTables
from penstock.sinks import SetsAside
from penstock.snapshots.desk import Desk, answer
from penstock.snapshots.followed_tables import Known, sources
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.options import SnapshotOptions
from penstock.snapshots.statements import RowTransform

SUBJECTS = "snapshot.>"
_TICK = 0.3  # seconds
_REFUSED = 300.0  # seconds after which a server that refuses us is asked again
_END = 15.0  # seconds for which `close` waits

log = structlog.get_logger("penstock")


class Snapshots(Closes):
    """Listens from `start` until `close`, or until the pipeline is not ours any more, if the sink
    has streams and a source has snapshots. `report` gets a backend's status."""

    def __init__(
        self,
        pipeline: Pipeline,
        instance: str,
        *,
        is_ours: Callable[[], bool] = lambda: True,
        report: Callable[[str, Mapping[str, Any]], None] = lambda *_: None,
    ) -> None:
        self._pipeline, self._instance, self._is_ours = pipeline, instance, is_ours
        self._report = report
        self._sources = sources(pipeline)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        self._resnapshots = Resnapshots(
            [each.backend for each in self._sources if each.feed.on_gap == "resnapshot"],
            lambda backend: self._positions(backend).gaps,
            self._unpublished,
        )
        self._has_resumed = False
        self._said = ""
        self._statements: RowTransform | None = None

    def start(self, statements: RowTransform | None = None) -> None:
        """Returns at once. With a `transform`: its statements. Raises SettingsError where these
        cannot take the rows of snapshots that the pipeline takes by itself."""
        if not self._sources or self._pipeline.sink.server() is None:
            return
        self._statements = statements
        wanted = self._pipeline.wants_snapshots
        if statements is not None and statements.refusal and wanted:
            raise SettingsError(
                f"{wanted} takes snapshots, and transform {statements.refusal}",
                hint="leave one of them out: rows of snapshots go through transform",
            )
        self._thread.start()

    def close(self) -> None:
        """Ends the snapshots that run, and waits for that, but not for a server that hangs."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_END)
            if self._thread.is_alive():
                log.warning("snapshots end later than the service", waited=_END)

    def _run(self) -> None:
        sink = self._pipeline.sink.server()
        assert sink is not None
        settings, waits = self._pipeline.snapshot, delays(limit=10.0)
        stream = InitStream(sink.nats, settings.stream, lambda: not self._goes_on())
        desk = Desk(
            self._pipeline, sink, stream, bookmarks=self._bookmarks, gap=self._gap,
            is_ours=self._goes_on, statements=self._statements,
        )  # fmt: skip
        tables = FollowedTables(
            self._pipeline.name, self._sources, sink, is_ours=self._goes_on,
            suspended=self._suspended,
        )  # fmt: skip
        with closing(desk), stream, tables:
            tables.start()
            while self._goes_on():
                try:
                    self._serve(desk, tables, stream)
                except Exception as error:
                    self._warn("snapshots cannot be asked for now", error)
                    stream.close()
                    refused = isinstance(error, SettingsError)
                    self._over.wait(_REFUSED if refused else next(waits))

    def _serve(self, desk: Desk, tables: FollowedTables, stream: InitStream) -> None:
        """Until `close`, an error, or the loss of the lease."""
        if tables.unknown:
            tables.look()
        desk.prepare()
        self._resume(desk, tables)
        # The desk asks over this connection, too: one that is read never goes stale.
        responder = Responder(stream.connection, SUBJECTS, partial(self._answer, desk, tables))
        responder.start()
        self._said = ""
        while self._goes_on():
            responder.serve(_TICK)
            desk.tick()
            for backend, status in desk.status().items():
                self._report(backend, status)
            self._resume(desk, tables)
            if self._has_resumed:
                desk.begin(tables.all)
                if not tables.unknown:
                    self._mend(desk, tables.all)

    def _suspended(self) -> Mapping[tuple[str, str], str]:
        sink = self._pipeline.sink.sink()
        found = sink.tables() if isinstance(sink, SetsAside) else ()
        return {
            (each["backend"], each["table"]): each["reason"] or each["state"]
            for each in found
            if each["state"] == "suspended"
        }

    def _goes_on(self) -> bool:
        return self._is_ours() and not self._over.is_set()

    def _resume(self, desk: Desk, tables: FollowedTables) -> None:
        """What an instance before this one left, once all tables are known."""
        if not self._has_resumed and not tables.unknown:
            desk.resume(tables.all)
            self._has_resumed = True

    def _answer(self, desk: Desk, tables: FollowedTables, message: Msg) -> bytes | None:
        """To `snapshot.request.TABLE` and `snapshot.cancel.ID`; None: for another pipeline."""
        verb, name = "", tuple[str, ...]()
        try:
            verb, name = _asked_for(message.subject)
            options = _options(message.payload)
            if options.pop("pipeline", self._pipeline.name) != self._pipeline.name:
                return None
            if verb == "request":
                wanted = SnapshotOptions.read(options)
                return orjson.dumps(answer(self._requested(desk, tables, name, wanted)))
            if verb == "cancel":
                return orjson.dumps(answer(desk.cancel(".".join(name))))
        except PenstockError as error:
            if verb == "request" and isinstance(error, SettingsError):
                with suppress(Unavailable):  # of two ways to say it one is enough
                    desk.refuse(name, error)
            again = {"again": True} if isinstance(error, Unavailable) else {}
            return orjson.dumps({"error": error.message, "hint": error.hint, **again})
        return None

    @staticmethod
    def _requested(
        desk: Desk, tables: FollowedTables, name: tuple[str, ...], options: SnapshotOptions
    ) -> Any:
        try:
            return desk.request(name, tables.all, options)
        except SettingsError:
            tables.look()  # it may be new
            if tables.unknown:
                raise Unavailable(
                    f"the tables of {', '.join(tables.unknown)} are not known now",
                    hint="its source is away, or refuses us: the log says which; ask again",
                ) from None
            return desk.request(name, tables.all, options)

    def _mend(self, desk: Desk, tables: list[Known]) -> None:
        self._resnapshots.look(tables, desk.records.all, lambda name: desk.take_again(name, tables))

    def _warn(self, event: str, error: Exception) -> None:
        found = PenstockError.of(error, "snapshots")
        if str(found) != self._said:
            log.warning(event, error=str(found))
        self._said = str(found)

    def _bookmarks(self, backend: str) -> Bookmarks:
        return self._positions(backend).load()

    def _gap(self, backend: str) -> str:
        """See `Job.gap`. Raises Unavailable while changes from before a gap are not published, and
        nothing could tell them from those after the snapshot."""
        rows = self._positions(backend).gaps.rows()
        for partition in self._unpublished(backend, rows):
            raise Unavailable(
                f"changes of {partition} from before a gap are not published yet",
                hint="ask again when the pipeline has published them",
            )
        return losses(rows)

    def _unpublished(self, backend: str, rows: Mapping[str, GapRow]) -> Sequence[str]:
        """Partitions of which changes from before a gap would come after a snapshot, and undo
        rows of it: without a common order no position tells."""
        (feed,) = (each.feed for each in self._sources if each.backend == backend)
        ordered = not isinstance(feed, OrdersNoPartitions)
        return () if ordered else unpublished(rows, self._bookmarks(backend))

    def _positions(self, backend: str) -> Positions:
        pipeline = self._pipeline
        return Positions.of(
            pipeline.positions, pipeline.name, backend, pipeline.checkpoint, owner=self._instance
        )


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
            hint="send snapshot.request.TABLE or snapshot.cancel.ID; %XX is a byte of UTF-8",
        )
    return verb.decode(errors="replace"), name


def _options(payload: bytes) -> dict[str, Any]:
    """Of a request: nothing, or a map in JSON. Raises SettingsError."""
    try:
        found = orjson.loads(payload) if payload.strip() else {}
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise SettingsError(
            "the options of a request are no map in JSON",
            hint='send nothing, or {"pipeline": NAME} where several pipelines share an account',
        )
    return found
