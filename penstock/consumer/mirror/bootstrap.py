"""One table's way from a request for a snapshot to its rows in the target.

Chunks are loaded as they come; the meta comes after all of them. A run that ends without one (its
service stopped, its chunks expired) is asked for again.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from penstock.consumer.mirror.differences import difference_since
from penstock.consumer.mirror.documents import chunk_rows
from penstock.consumer.mirror.plan import RowCoder
from penstock.consumer.mirror.published_tables import Catalog, PublishedTable
from penstock.consumer.mirror.snapshot_messages import (
    SnapshotMessages,
    differs,
    is_of_another,
    is_partial,
    loaded,
)
from penstock.consumer.mirror.steps import LoadedChunk
from penstock.consumer.mirror.target import MirrorTarget
from penstock.consumer.mirror.target_table import TargetTable
from penstock.consumer.tail.bodies import is_json
from penstock.model.errors import PenstockError, Rejected, SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered
from penstock.nats.services import asked
from penstock.nats.subjects import escape

_ANSWER = 30.0  # seconds for an answer to a request
_SILENCE = 20.0  # seconds without a message until a snapshot is asked for again
_AGAIN = 2.0  # ... where the service said that this may help
_ATTEMPTS = 5  # snapshots that may fail, one after the other
_READINGS = 3  # of one snapshot, whose chunks may be others meanwhile


@dataclass(slots=True)
class Loading:
    """How far a table is loaded. `done` of `ranges`: how far the snapshot is at the source.
    `problem`: why it is not loaded for now."""

    name: str
    rows: int = 0
    chunks: int = 0
    done: int = 0
    ranges: int = 0
    problem: str = ""


class NoSnapshot(Unavailable):
    """One table cannot be loaded now, while the server and the target answer."""


class Bootstrap:
    """Loads one table: `step` until it returns the table. Over an open connection that others may
    use, by the same thread. A service that is away is waited for if it `is_patient`, or once it has
    answered. Everything raises Unavailable, SettingsError, Rejected, Malformed."""

    def __init__(
        self,
        connection: Connection,
        init: str,
        announced: PublishedTable,
        target: MirrorTarget,
        table: TargetTable,
        *,
        is_patient: bool = False,
    ) -> None:
        self.announced, self.table = announced, table
        self.progress = Loading(name=".".join(announced.name))
        self._connection, self._target = connection, target
        self._messages = SnapshotMessages(connection, init, announced.name)
        self._chunks: dict[int, LoadedChunk] = {}  # that the target has, by their numbers
        self._coder: RowCoder | None = None  # since the target is ready for the rows
        self._failures = 0  # snapshots, one after the other
        self._readings = 1  # of this snapshot
        self._is_patient = is_patient
        # When a snapshot was asked for, or the last message of it came.
        self._asked_at = time.monotonic() if table.snapshot_id else -_SILENCE

    def step(self, wait: float) -> TargetTable | None:
        """Loads what has come, or waits up to `wait` seconds. The table, once it is live."""
        snapshot_id = self.table.snapshot_id
        messages = self._messages.next(snapshot_id, wait) if snapshot_id else None
        if not messages and time.monotonic() - self._asked_at >= _SILENCE:
            self._request()
        elif messages is None:
            time.sleep(wait)
        for message in messages or ():
            match message.subject.split(".")[1]:
                case "snap":
                    self._take_chunk(message)
                case "meta":
                    if (table := self._take_meta(message)) is not None:
                        return table
                case "error":
                    error = self._messages.body(message)
                    if error.get("snapshot_id") == self.table.snapshot_id:
                        self._fail(str(error["error"]), error.get("hint") or "")
            if not self._messages.is_read:  # begins anew
                return None
        return None

    def look(self) -> None:
        """How far the snapshot is at its source, for `progress`."""
        key = f"{self.announced.pipeline}.{self.table.snapshot_id}"
        with suppress(PenstockError, ValueError):  # such as an account that may not look
            found = Bucket(self._connection, "snapshots").get(key)
            record = orjson.loads((found and found.value) or b"{}")
            self.progress.done = int(record.get("done", 0))
            self.progress.ranges = int(record.get("ranges", 0))

    def _take_chunk(self, message: Delivered) -> None:
        self._asked_at = time.monotonic()
        body = self._messages.body(message)
        version = message.headers.get("Penstock-Table-Schema", "")
        chunk = loaded(body, message.payload)
        cursor = body["position"].rpartition(":")[0]
        self.table = replace(  # chunks of later points come later
            self.table, cursor=self.table.cursor or cursor,
            last_point=max(self.table.last_point, cursor),
        )  # fmt: skip
        self._prepare(version)
        known = self._chunks.get(chunk.chunk)
        if version != self.table.version or known not in (None, chunk):
            # The service gives a number that it did not need to other rows.
            self._read_again(f"chunk {chunk.chunk} was published again, with other rows")
        elif known is None:
            assert self._coder is not None
            is_late = self.table.has_several_points and cursor == self.table.last_point
            if self.table.has_documents and is_json(message.headers, message.payload):
                body = self._messages.body(message, exactly=True)
            given = chunk_rows(self.table, body) if self.table.document else body["data"]
            self._target.load(self.table, chunk, [*map(self._coder, given)], is_late=is_late)
            self._chunks[chunk.chunk] = chunk
            self.progress.chunks += 1
            self.progress.rows += chunk.rows

    def _take_meta(self, message: Delivered) -> TargetTable | None:
        meta = self._messages.body(message)
        if meta["snapshot_id"] != self.table.snapshot_id:
            # The service began again, under another id, what it had not finished.
            if meta["snapshot_id"] > self.table.snapshot_id and not is_partial(meta):
                self.follow(meta["snapshot_id"])
            return None
        if problem := self._difference_since(meta):
            self._fail(f"after the snapshot {meta['snapshot_id']}: {problem}")
            return None
        self._prepare(meta["schema_version"])
        if problem := differs(meta, list(self._chunks.values())):
            if self._readings == 1:
                self._read_again(problem)
            else:
                self._fail(f"the snapshot {meta['snapshot_id']}: {problem}")
            return None
        stream = JetStream(self._connection).stream(meta["stream"]) or {}
        if is_of_another(meta, stream):
            self._fail(f"the stream {meta['stream']} was made again after it")
            return None
        found = replace(
            self.table, state="live", stream=meta["stream"], created=stream.get("created", ""),
            cursor=self.table.cursor or str(meta["position"]).rpartition(":")[0],
            sequence=int(meta["start_sequence"]) - 1, places={},
            relation_id=meta.get("relation_id"), losses=meta.get("losses") or "",
            revision=int(meta.get("schema_revision") or 0),
        )  # fmt: skip
        is_one_point = meta.get("exact") and self.table.cursor == self.table.last_point
        self._target.finish(found, meta["row_count"] if is_one_point else None)
        return found

    def _prepare(self, version: str) -> None:
        if self._coder is not None:
            return
        if (found := Catalog(self._connection).version(self.announced.key, version)) is None:
            raise NoSnapshot(
                f"the bucket schemas does not have the version {version} of {self.progress.name}",
                "consumer",
                hint="the pipeline stores it within a minute or two; its log says what keeps it",
            )
        if self.table.version not in ("", version):
            self._drop_rows()  # they may have other columns
        # SET SCHEMA changes what a table is called here, and not its key.
        called = PublishedTable(self.announced.key, found).mirrored()
        self.table = replace(
            self.table.with_schema(found), kept=(),
            schema=called.schema, table=called.table, target=called.target,
        )  # fmt: skip
        for each in self._target.begin(self.table):
            self._chunks[each.chunk] = each
            self.progress.chunks += 1
            self.progress.rows += each.rows
        encoders = self._target.encoders(self.table)
        self._coder = RowCoder(self.table, self.table.names, encoders)

    def _request(self) -> None:
        """Asks for a snapshot: one that runs, or a new one."""
        document: dict[str, Any] = {"pipeline": self.announced.pipeline}
        payload = orjson.dumps(document) if self.announced.pipeline else b""
        subject = f"snapshot.request.{'.'.join(map(escape, self.announced.name))}"
        self._asked_at = time.monotonic()
        try:
            answer = orjson.loads(asked(self._connection, subject, payload, _ANSWER).payload)
        except Unavailable as error:
            stored = self._stored()
            if stored is None and (self.table.snapshot_id or self._is_patient):
                return  # asked again: the service may be on its way
            if stored is None:
                raise NoSnapshot(
                    f"nobody takes a snapshot of {self.progress.name}: {error.message}",
                    error.code,
                    hint=f"is the pipeline {self.announced.pipeline} running? start it first",
                ) from None
            self.follow(stored)
            return
        if answer.get("again"):  # the service cannot say yet, or not now
            self._asked_at += _AGAIN - _SILENCE
            return
        if "error" in answer:
            raise SettingsError(answer["error"], "consumer", hint=answer.get("hint", ""))
        self.follow(answer["snapshot_id"])

    def _stored(self) -> str | None:
        """The id of the last snapshot of the table, if all changes after it are still there."""
        meta = self._messages.last_complete()
        return None if meta is None or self._difference_since(meta) else str(meta["snapshot_id"])

    def _difference_since(self, meta: Mapping[str, Any]) -> str:
        """Why the table may have other rows than a snapshot and the changes after it; "" if not."""
        revision = int(meta.get("schema_revision") or 0)
        history = Catalog(self._connection).history(self.announced.key)
        return difference_since(revision, history) if revision else ""

    def follow(self, snapshot_id: str) -> None:
        """This one is loaded: it runs, or is complete."""
        self._asked_at = time.monotonic()
        if snapshot_id == self.table.snapshot_id:
            return
        self.table = replace(self.table, snapshot_id=snapshot_id, state="loading")
        self._readings = 1
        self._forget()

    def give_up(self) -> None:
        """The snapshot is of no use: another is loaded next time, also after a restart."""
        with suppress(SettingsError):  # the target refuses the table itself
            self._drop_rows()
        self.table = replace(self.table, snapshot_id="")

    def _forget(self) -> None:
        self.table = replace(self.table, cursor="", last_point="")
        self.progress.rows = self.progress.chunks = 0
        self._chunks, self._coder = {}, None
        self._messages.restart()

    def _drop_rows(self) -> None:
        self._target.begin(replace(self.table, snapshot_id="", state="loading"))

    def _read_again(self, why: str) -> None:
        self._readings += 1
        if self._readings > _READINGS:
            self._fail(f"the snapshot {self.table.snapshot_id}: {why}")
            return
        self._drop_rows()
        self._forget()

    def _fail(self, why: str, hint: str = "") -> None:
        self._failures += 1
        if self._failures >= _ATTEMPTS or "cancelled" in why:
            raise Rejected(
                f"no snapshot of {self.progress.name}: {why}", "consumer.snapshot-failed", hint=hint
            )
        self.table = replace(self.table, snapshot_id="")
        self._request()
