"""The live tables of a replica, and the stream whose changes they follow."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from penstock.consumer.mirror.bootstrap import Loading
from penstock.consumer.mirror.differences import difference_since
from penstock.consumer.mirror.documents import is_renamed_to
from penstock.consumer.mirror.followed import POSITION, VERSION, Dropped, Followed, PlainChange
from penstock.consumer.mirror.published_tables import Catalog, PublishedTable, is_past
from penstock.consumer.mirror.snapshot_messages import last_meta
from penstock.consumer.mirror.steps import TableRefused
from penstock.consumer.mirror.target import MirrorTarget
from penstock.consumer.mirror.target_table import TargetTable
from penstock.consumer.tail.reader import TailReader
from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered
from penstock.nats.settings import NatsSettings
from penstock.process.closing import Closes

_FETCH = 2000  # messages at a time
_SUBJECTS = 1000  # that are known for plain changes
_NOTHING: Any = {}

log = structlog.get_logger("penstock")


@dataclass(slots=True)
class ReplicaStatus:
    """How it goes. `behind`: messages of the stream that are not applied yet. `applied_at`: when
    the source committed the last applied change. `snapshots`: how many were loaded."""

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


class LiveTables(Closes):
    """Tables whose rows are there. `sequence`: the last message that was applied, or passed over.
    All are of one stream, which one reader reads; a table that begins earlier makes it begin again,
    and the others pass over what they have."""

    def __init__(
        self,
        server: NatsSettings,
        connection: Connection,
        target: MirrorTarget,
        *,
        dropped: Dropped,
    ) -> None:
        self.sequence = 0
        self._server, self._connection, self._target = server, connection, target
        self._dropped = dropped
        self._live: dict[str, Followed] = {}  # by the table's name
        self._called: dict[tuple[Any, ...], Followed | None] = {}  # by messages
        self._plain: dict[str, Followed] = {}  # by subjects whose last change was plain
        self._reader: TailReader | None = None
        self._init_end = -1  # of the stream of snapshots, when it was looked at last

    @property
    def tables(self) -> Sequence[TargetTable]:
        return [followed.table for followed in self._live.values()]

    @property
    def is_read(self) -> bool:
        """Whether the reader has returned all that there was when the server last sent some."""
        return self._reader is not None and self._reader.pending == 0

    def close(self) -> None:
        """Forgets the tables: the target has them."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._live.clear()
        self._forget_names()
        self._init_end = -1

    def begin(self, table: TargetTable) -> None:
        """A table whose rows are there: its changes are applied from now on."""
        streams = {each.stream for each in self.tables}
        if streams and streams != {table.stream}:
            raise SettingsError(
                f"{table.name} is published in the stream {table.stream}, and others in"
                f" {', '.join(streams)}",
                "consumer",
                hint="mirror them into two files or databases",
            )
        self._live[table.name] = Followed(
            table, self._target, Catalog(self._connection), dropped=self._dropped
        )
        self._forget_names()
        self._init_end = -1
        # Messages that others have already are read again for this one, if need be.
        if self._reader is None or table.sequence < self.sequence:
            self._rewind()

    def _forget_names(self) -> None:
        self._called.clear()
        self._plain.clear()

    def _rewind(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self.sequence = min(table.sequence for table in self.tables)
        self._reader = TailReader(self._server, self.tables[0].stream, start=self.sequence + 1)

    def tail(self, wait: float, status: ReplicaStatus) -> int:
        """Applies what has come, in one transaction, or waits `wait` seconds. How many changes."""
        reader = self._reader
        assert reader is not None
        start, body = self.sequence, _NOTHING
        before = sum(each.changes for each in self._live.values())
        touched: dict[str, Followed] = {}
        try:
            for message, bodies in reader.read(_FETCH, wait, self._plain):
                if message.sequence > self.sequence + 1:
                    self._lost(self.sequence + 1, message.sequence)
                self.sequence = message.sequence
                if bodies:
                    body = bodies[-1]  # all are of one table and operation
                    self._add(message, bodies, touched)
        except Malformed as error:
            assert reader.malformed is not None
            if reader.sequence > self.sequence + 1:
                self._lost(self.sequence + 1, reader.sequence)
            self.sequence = reader.sequence
            self._refuse(reader.malformed, error)
        if self.sequence == start:
            return 0
        self._store(list(touched.values()))
        status.sequence, status.behind = self.sequence, reader.pending or 0
        count = sum(each.changes for each in self._live.values()) - before
        status.changes += count
        with suppress(ValueError, TypeError):  # null, or of another writer
            is_plain = isinstance(body, PlainChange)
            committed_at = body.committed_at if is_plain else body.get("committed_at")
            status.applied_at = datetime.fromisoformat(committed_at or "")
        return count

    def _add(self, message: Delivered, bodies: Sequence[Any], touched: dict[str, Followed]) -> None:
        """Adds the changes of a message to its table, and the table to those that are touched."""
        body, followed = bodies[-1], None
        try:
            if isinstance(body, PlainChange):
                followed = self._plain[message.subject]
                followed.put(message, body)
                touched[followed.table.name] = followed
                return
            self._plain.pop(message.subject, None)
            if (followed := self._of(body)) is not None:
                assert self._reader is not None
                exact = followed.may_have_documents(message)
                for each in self._reader.exactly(message) if exact else bodies:
                    is_plain = followed.add(message, each)
                if is_plain and len(bodies) == 1:
                    if len(self._plain) == _SUBJECTS:  # one for each key?
                        self._plain.clear()
                    self._plain[message.subject] = followed
                touched[followed.table.name] = followed
            if body["operation"] == "RENAME":
                live = self._live.values()
                for followed in [one for one in live if is_renamed_to(one.table, body)]:
                    followed.add(message, body)
                    touched[followed.table.name] = followed
        except Unavailable:
            raise
        except Exception as error:
            self._refuse(message, error, followed)

    def _refuse(
        self, message: Delivered, error: Exception, followed: Followed | None = None
    ) -> None:
        """A message cannot be applied: its table has to be loaded anew. One that cannot be read
        may name its table by the version of its schema alone."""
        version, tables = message.headers.get(VERSION), list(self._live.values())
        if followed is not None:
            tables = [followed]
        elif version is not None:
            tables = [each for each in tables if each.has(version)]
        elif POSITION not in message.headers:
            tables = []  # no pipeline published it
        text = type(error).__name__
        ours = error if isinstance(error, PenstockError) else Malformed(text, "consumer")
        if not isinstance(error, TableRefused):
            text = f"message {message.sequence}: {ours.message}"
            ours = type(ours)(text, ours.code, hint=ours.hint)
        for each in tables:
            each.refuse(ours)
        if not tables:
            log.warning("a message of no table here is passed over", error=str(ours))

    def _store(self, touched: Sequence[Followed]) -> None:
        """Stores what was added, but for tables whose changes the target refuses."""
        broken = [each for each in self._live.values() if each.problem and each not in touched]
        work = {each.table.name: each.work() for each in (*touched, *broken)}
        stream = self.tables[0].stream
        while True:
            try:
                steps = [some for each in work.values() for some in each]
                self._target.apply(steps, {stream: self.sequence})
                break
            except TableRefused as error:
                each = self._live.get(error.table)
                if each is None or each.refusal is not None:
                    raise
                each.refuse(error)
                work[error.table] = each.work()
        for each in self._live.values():
            each.reached(self.sequence)

    def _of(self, body: Mapping[str, Any]) -> Followed | None:
        try:
            called = body["backend"], body["schema"], body["collection"], body["relation_id"]
        except KeyError:  # not all layouts have them
            called = body["backend"], *map(body.get, ("schema", "collection", "relation_id"))
        try:
            return self._called[called]
        except KeyError:
            live, (backend, schema, table, _) = self._live.values(), called
            named = [one for one in live if one.table.is_called(backend, schema or "", table or "")]
            origin = f"{body['backend']}/{body.get('database')}"
            same = [each for each in live if each.table.is_renamed(origin, called[3])]
            found = self._called[called] = next(iter(named or same), None)
            return found

    def find_hole(self, status: ReplicaStatus) -> None:
        """Messages that expired before they were applied, or a stream that was made again."""
        if not self._live:
            return
        stream = self.tables[0].stream
        if (found := JetStream(self._connection).stream(stream)) is None:
            raise SettingsError(
                f"there is no stream {stream!r}",
                "consumer",
                hint="the pipeline makes it when it starts",
            )
        first, last = int(found["state"]["first_seq"]), int(found["state"]["last_seq"])
        status.behind = max(0, last - self.sequence)
        if first > self.sequence + 1:
            self._lost(self.sequence + 1, first)
        for each in self._live.values():
            if found["created"] != each.table.created or last < each.table.sequence:
                each.problem = f"the stream {stream} was made again"
        self._store_broken()

    def find_newer_snapshots(self, init: str, announced: Mapping[str, PublishedTable]) -> None:
        """Snapshots since the source lost changes, or so that mirrors load a table again."""
        api = JetStream(self._connection)
        end = int(((api.stream(init) or {}).get("state") or {}).get("last_seq", 0))
        if end == self._init_end:
            return
        for each in self._live.values():
            meta, known = None, announced.get(each.table.name)
            with suppress(Malformed):
                meta = known and last_meta(api, init, known.name)
            if not meta or meta["snapshot_id"] <= each.table.snapshot_id:
                continue
            if (meta.get("losses") or "") != each.table.losses:
                each.problem = "the source lost changes, and a snapshot was taken since"
                each.newer = meta["snapshot_id"]
            elif (meta.get("reload") or "") > each.table.snapshot_id:
                each.problem = "a snapshot was asked for, from which mirrors load it again"
                each.newer = meta["snapshot_id"]
        self._init_end = end
        self._store_broken()

    def find_changed(self, announced: Mapping[str, PublishedTable]) -> None:
        """Tables whose rows may be others without a change in the stream: by their documents."""
        catalog = Catalog(self._connection)
        for each in self._live.values():
            known, revision = announced.get(each.table.name), each.table.revision
            if known is None or is_past(known.document) or known.revision == revision:
                continue
            if revision:  # not of a mirror that did not know it
                history = catalog.history(each.table.name)
                each.problem = each.problem or difference_since(revision, history)
            each.saw(known.revision)
        self._store_broken()

    def _store_broken(self) -> None:
        if any(each.problem for each in self._live.values()):
            self._store(())

    def _lost(self, start: int, end: int) -> None:
        for each in self._live.values():
            if each.table.sequence < end - 1:
                each.problem = each.problem or f"messages {start} to {end - 1} are gone"

    def tables_to_reload(self, names: Collection[str]) -> list[Followed]:
        """Those whose rows only a snapshot can make right; they are not live any more."""
        found = [each for name, each in self._live.items() if each.problem and name in names]
        for each in found:
            del self._live[each.table.name]
            self._forget_names()
        return found
