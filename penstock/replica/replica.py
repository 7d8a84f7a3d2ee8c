"""A copy of tables, made of snapshots and of the changes after them, and nothing else.

Each table is loaded from a snapshot; then the stream's changes are applied. What makes a copy wrong
in silence (expired messages, a stream that was made again, columns that changed) leads to another
snapshot of the table.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from penstock.backoff import delays
from penstock.closing import Closes
from penstock.errors import Malformed, SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.replica.bootstrap import Bootstrap, Loading
from penstock.replica.catalog import Announced, Catalog, chosen
from penstock.replica.followed import Dropped, Followed
from penstock.replica.mirrored import MirrorTable
from penstock.replica.targets import Target, encoders, open_target
from penstock.tail.message import Message
from penstock.tail.reader import TailReader

_LOOK = 2.0  # seconds between looks at the bucket of schemas and at the stream's end
_FETCH = 2000  # messages at a time

log = structlog.get_logger("penstock")


@dataclass(slots=True)
class ReplicaStatus:
    """How it goes. `behind`: messages of the stream that are not applied yet. `applied_at`: when
    the source committed the last applied change."""

    loading: list[Loading] = field(default_factory=list)
    tables: int = 0
    changes: int = 0
    behind: int = 0
    sequence: int = 0
    applied_at: datetime | None = None
    snapshots: int = 0

    @property
    def lag(self) -> float:
        """Seconds for which the copy is behind its source; 0 when nothing is left to apply."""
        if not self.behind or self.applied_at is None:
            return 0.0
        return max(0.0, (datetime.now(UTC) - self.applied_at).total_seconds())


class Replica(Closes):
    """Keeps `tables` (all that are published, if none are named) in a `target`, a URL or a
    `Target`. `server` is the URL of a NATS server, or several by commas, or the settings of a
    connection. `init` is the stream of the snapshots; `dropped` says what becomes of columns that
    the source drops. Constructing one does no I/O; not for several threads.

    Everything raises SettingsError (the operator must change something), Rejected (no snapshot is
    to be had), LeaseLost (another replica has the target). Unavailable is raised by what comes
    first; `run` then waits and goes on.
    """

    def __init__(
        self,
        server: str | NatsSettings,
        target: str | Target,
        *,
        tables: Sequence[str] | None = None,
        init: str = "INIT",
        dropped: Dropped = "drop",
    ) -> None:
        if isinstance(server, str):
            server = NatsSettings.model_validate({"url": server})
        self.status = ReplicaStatus()
        self._server, self._init = server, init
        self._target = open_target(target) if isinstance(target, str) else target
        self._names, self._dropped = tables, dropped
        self._connection = Connection(server, "penstock mirror")
        self.copies: Sequence[MirrorTable] = ()  # as they were left by `run`
        self._live: dict[str, Followed] = {}
        self._loading: dict[str, Bootstrap] = {}
        self._announced: dict[str, Announced] = {}
        self._followed: dict[tuple[str, str, str], Followed | None] = {}  # what messages call them
        self._reader: TailReader | None = None
        self._sequence = 0  # the last message that was applied, or passed over
        self._revision = -1  # of the bucket of schemas
        self._looked_at = -_LOOK
        self._is_open = False
        self._has_begun = False  # what was reached once is waited for

    @property
    def tables(self) -> Sequence[MirrorTable]:
        """The live tables, as far as they are."""
        return [followed.table for followed in self._live.values()]

    def run(
        self,
        *,
        once: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
        report: Callable[[ReplicaStatus], None] = lambda _: None,
    ) -> None:
        """Until it `is_stopped`; `once`: until all that was published before is applied. `report`
        is called after each step."""
        end = self._end() if once else 0
        waits = delays(limit=5.0)
        while not is_stopped():
            try:
                count = self.step(0.5)
                waits = delays(limit=5.0)
            except Unavailable as error:
                if not self._has_begun:
                    raise
                log.warning("the mirror waits", error=str(error))
                self.close()
                time.sleep(next(waits))
                continue
            report(self.status)
            self.copies = self.tables
            if once and not self._loading:
                end = max([end, *(table.sequence for table in self.tables)])
                is_read = not count and self._reader is not None and self._reader.pending == 0
                if self._sequence >= end or is_read:
                    return

    def step(self, wait: float = 0.5) -> int:
        """Loads and applies what has come, in a transaction or a few; waits up to `wait` seconds
        for something. How many changes were applied."""
        self._open()
        self._look()
        for name, bootstrap in list(self._loading.items()):
            table = bootstrap.step(0.05 if self._live else min(wait, 0.2))
            if table is not None:
                del self._loading[name]
                self._begin(table)
        self._has_begun = True
        count = self._tail(0.0 if self._loading else wait) if self._live else 0
        self.status.loading = [each.progress for each in self._loading.values()]
        self.status.tables = len(self._live)
        return count

    def close(self) -> None:
        """Disconnects from everything; the next step connects again."""
        for each in (self._reader, self._target, self._connection):
            if each is not None:
                each.close()
        self._reader, self._is_open = None, False
        self._live, self._loading = {}, {}

    def _end(self) -> int:
        """Of the stream, before anything is done; what snapshots add is known later."""
        self._open()
        stream = next((table.stream for table in self.tables), "")
        found = JetStream(self._connection).stream(stream) if stream else None
        return int(found["state"]["last_seq"]) if found else 0

    def _open(self) -> None:
        if self._is_open:
            return
        self._connection.open()
        self._revision, self._looked_at = -1, -_LOOK
        announced = Catalog(self._connection)
        self._revision, self._announced = announced.revision, announced.tables()
        wanted = self._wanted()
        self._refuse_namesakes(wanted)
        names = {each.key for each in wanted}
        stored = {table.name: table for table in self._target.open(names)}
        for each in wanted:
            table = stored.get(each.key)
            if table is not None and table.state == "live":
                self._begin(table, is_new=False)
            else:
                self._load(each, table)
        self._is_open = True
        self._find_hole()

    def _wanted(self) -> list[Announced]:
        if self._names is None:
            if not self._announced:
                raise SettingsError("no table is published", hint="start the pipeline first")
            return list(self._announced.values())
        return chosen(self._names, self._announced)

    def _refuse_namesakes(self, wanted: Sequence[Announced]) -> None:
        seen: dict[str, str] = {}
        for each in wanted:
            name = each.mirrored().target.casefold()
            if name in seen:
                raise SettingsError(
                    f"{seen[name]} and {each.key} would both be the table {name}",
                    hint="mirror them into two files or databases",
                )
            seen[name] = each.key

    def _load(self, announced: Announced, table: MirrorTable | None = None) -> None:
        """A table whose rows are to come. `table`: as it is in the target."""
        if table is None:
            table = announced.mirrored()
        self._loading[announced.key] = Bootstrap(
            self._connection, self._init, announced, self._target, table,
            is_patient=bool(self._live),
        )  # fmt: skip

    def _begin(self, table: MirrorTable, *, is_new: bool = True) -> None:
        """A table whose rows are there: its changes are applied from now on."""
        streams = {each.stream for each in self.tables}
        if streams and streams != {table.stream}:
            raise SettingsError(
                f"{table.name} is published in the stream {table.stream}, and others in"
                f" {', '.join(streams)}",
                hint="mirror them into two files or databases",
            )
        catalog, key = Catalog(self._connection), table.name
        self._live[table.name] = Followed(
            table,
            lambda table: encoders(self._target, table.columns),
            lambda version: catalog.version(key, version),
            dropped=self._dropped,
        )
        self._followed.clear()
        self.status.snapshots += is_new
        # Messages that others have already are read again for this one, if need be.
        if self._reader is None or table.sequence < self._sequence:
            self._rewind()

    def _rewind(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._sequence = min(table.sequence for table in self.tables)
        stream = self.tables[0].stream
        self._reader = TailReader(self._server, stream, start=self._sequence + 1)

    def _tail(self, wait: float) -> int:
        reader = self._reader
        assert reader is not None
        try:
            messages = reader.fetch(_FETCH, wait)
        except Malformed as error:
            raise Malformed(
                f"message {reader.sequence} of the stream {reader.stream}: {error.message}",
                hint="delete it (nats stream rmm); its tables are loaded again then",
            ) from error
        if not messages:
            return 0
        before = sum(each.changes for each in self._live.values())
        touched: dict[str, Followed] = {}
        for message in messages:
            sequence = message.sequence
            if sequence > self._sequence + 1:
                self._lost(self._sequence + 1, sequence)
            self._sequence = sequence
            followed = self._of(message)
            if followed is not None:
                followed.add(message)
                touched[followed.table.name] = followed
        self._store(list(touched.values()))
        count = sum(each.changes for each in self._live.values()) - before
        self.status.changes += count
        self.status.applied_at = messages[-1].committed_at or self.status.applied_at
        self._reload()
        return count

    def _store(self, touched: Sequence[Followed]) -> None:
        broken = [each for each in self._live.values() if each.problem and each not in touched]
        self._target.apply([each.work() for each in (*touched, *broken)], self._sequence)
        for each in self._live.values():
            each.reached(self._sequence)
        self.status.sequence = self._sequence
        if self._reader is not None and self._reader.pending is not None:
            self.status.behind = self._reader.pending

    def _of(self, message: Message) -> Followed | None:
        body = message.body
        called = body["backend"], body.get("schema") or "", message.collection
        if called not in self._followed:
            backend, schema, table = called
            self._followed[called] = next(
                (
                    each
                    for each in self._live.values()
                    if each.table.table == table
                    and each.table.backend in ("", backend)
                    and schema in ("", each.table.schema)
                ),
                None,
            )
        return self._followed[called]

    def _find_hole(self) -> None:
        """Messages that expired before they were applied, or a stream that was made again."""
        if not self._live:
            return
        stream = self.tables[0].stream
        found = JetStream(self._connection).stream(stream)
        if found is None:
            raise SettingsError(
                f"there is no stream {stream!r}", hint="the pipeline makes it when it starts"
            )
        first, last = int(found["state"]["first_seq"]), int(found["state"]["last_seq"])
        self.status.behind = max(0, last - self._sequence)
        if first > self._sequence + 1:
            self._lost(self._sequence + 1, first)
        for each in self._live.values():
            if found["created"] != each.table.created or last < each.table.sequence:
                each.problem = f"the stream {stream} was made again"
        if any(each.problem for each in self._live.values()):
            self._store(())
            self._reload()

    def _lost(self, start: int, end: int) -> None:
        for each in self._live.values():
            if each.table.sequence < end - 1:
                each.problem = each.problem or f"messages {start} to {end - 1} are gone"

    def _reload(self) -> None:
        """Snapshots of tables whose rows cannot be made right otherwise. Readers see the old rows
        meanwhile."""
        for name, followed in list(self._live.items()):
            if followed.problem and (announced := self._announced.get(name)):
                log.warning("a table is loaded again", table=name, reason=followed.problem)
                del self._live[name]
                self._followed.clear()
                self._load(announced, followed.table)

    def _look(self) -> None:
        """New tables, dropped ones, and how far the stream is; from time to time."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        for each in self._loading.values():
            each.look()
        catalog = Catalog(self._connection)
        if (revision := catalog.revision) != self._revision:
            self._revision, self._announced = revision, catalog.tables()
            if self._names is None:
                known = self._live.keys() | self._loading.keys()
                for key, announced in self._announced.items():
                    if key not in known:
                        self._load(announced)
        with suppress(SettingsError):
            self._find_hole()
