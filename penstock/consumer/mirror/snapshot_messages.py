"""What the stream of snapshots has of one table: the chunks of a run, metas and errors, as
docs/reference/messages.md has them.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import ormsgpack

from penstock.consumer.mirror.steps import LoadedChunk
from penstock.consumer.tail.bodies import ARROW, arrow_table, exact_json
from penstock.model.errors import Malformed
from penstock.nats.api import JetStream
from penstock.nats.compression import Decompressor, DictionaryBucket
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered, PullConsumer
from penstock.nats.subjects import escape

_AT_ONCE = 8  # chunks


class SnapshotMessages:
    """Over an open connection that others may use. Raises Unavailable, SettingsError, Malformed."""

    def __init__(self, connection: Connection, init: str, name: Sequence[str]) -> None:
        self._connection, self._init, self._name = connection, init, name
        self._decompressor = Decompressor(DictionaryBucket(connection).get)
        self._consumer: PullConsumer | None = None

    @property
    def is_read(self) -> bool:
        """Whether some were read since the last `restart`."""
        return self._consumer is not None

    def next(self, snapshot_id: str, wait: float) -> list[Delivered] | None:
        """The next messages of a run, and of all runs those that end one; waits up to `wait`
        seconds. None: the stream is not made yet."""
        if self._consumer is None:
            if JetStream(self._connection).stream(self._init) is None:
                return None
            table = ".".join(map(escape, self._name))
            subjects = [f"init.snap.{table}.{snapshot_id}.>", f"init.meta.{table}"]
            self._consumer = PullConsumer(
                self._connection, self._init,
                {"filter_subjects": [*subjects, f"init.error.{table}"]},
                hint="the pipeline makes it with its first snapshot; `snapshot.stream` names it",
            )  # fmt: skip
        return self._consumer.next(wait, _AT_ONCE)

    def restart(self) -> None:
        """The next messages are those of a run from its beginning."""
        self._consumer = None

    def body(self, message: Delivered, *, exactly: bool = False) -> Mapping[str, Any]:
        return body_of(message.headers, message.payload, self._decompressor, exactly=exactly)

    def last_complete(self) -> Mapping[str, Any] | None:
        """The meta of the last snapshot of the whole table, if all changes after it are there."""
        api = JetStream(self._connection)
        meta = last_meta(api, self._init, self._name)
        stream = api.stream(meta["stream"]) if meta is not None else None
        if meta is None or stream is None or is_of_another(meta, stream):
            return None
        return None if stream["state"]["first_seq"] > meta["start_sequence"] else meta


def last_meta(api: JetStream, init: str, name: Sequence[str]) -> Mapping[str, Any] | None:
    """The newest meta of a whole table: others may ask for parts of it."""
    subject, found = f"init.meta.{'.'.join(map(escape, name))}", None
    if (message := api.last(init, subject)) is None:
        return None
    last = body_of(message.headers, message.payload)
    if not is_partial(last):
        return last
    for message in api.each(init, subject):
        meta = body_of(message.headers, message.payload)
        found = found if is_partial(meta) else meta
    return found


def is_partial(meta: Mapping[str, Any]) -> bool:
    """Whether the rows of a snapshot are not the table: some rows, or some columns."""
    return bool(meta.get("partial") or meta.get("where"))


def is_of_another(meta: Mapping[str, Any], stream: Mapping[str, Any]) -> bool:
    """Whether a snapshot is of a stream that another has replaced: its sequences mean nothing. By
    what the server calls both: the clocks of two hosts differ."""
    return meta.get("stream_created") != stream.get("created")


def body_of(
    headers: Mapping[str, str],
    payload: bytes,
    decompressor: Decompressor | None = None,
    *,
    exactly: bool = False,
) -> Mapping[str, Any]:
    """A chunk, a meta or an error. Raises Malformed, and what the decompressor raises; without one
    there are no dictionaries."""
    try:
        payload = (decompressor or Decompressor()).plain(headers, payload, "snapshot")
        if headers.get("Content-Type") == ARROW:
            table, given, load = arrow_table(payload, orjson.loads)
            columns = {name: table[name].to_pylist() for name in table.column_names}
            return {**given, **{name: list(map(load, each)) for name, each in columns.items()}}
        load = exact_json if exactly else orjson.loads
        found = load(payload) if payload[:1] == b"{" else ormsgpack.unpackb(payload)
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise Malformed(
            f"a message of {len(payload)} bytes is no part of a snapshot", "consumer"
        ) from error
    if not isinstance(found, dict):
        raise Malformed(f"a message of {len(payload)} bytes is no part of a snapshot", "consumer")
    return found


def loaded(body: Mapping[str, Any], payload: bytes) -> LoadedChunk:
    """What is to be remembered of a chunk."""
    return LoadedChunk(int(body["chunk"]), len(body["data"]), zlib.crc32(payload))


def differs(meta: Mapping[str, Any], chunks: Sequence[LoadedChunk]) -> str:
    """Why the chunks are not those that the meta names; "" if they are."""
    have, listed = {each.chunk: each for each in chunks}, meta["chunks"]
    wanted = set(range(meta["batch_count"])) if listed is None else {one["chunk"] for one in listed}
    if missing := wanted - have.keys():
        return f"{len(missing)} of {meta['batch_count']} chunks are not in the stream any more"
    if other := have.keys() - wanted:
        return f"{len(other)} chunks are in the stream that it does not name"
    rows = sum(each.rows for each in chunks)
    if rows != meta["row_count"]:
        return f"its chunks have {rows} rows, and it should have {meta['row_count']}"
    for one in listed or ():
        if have[one["chunk"]].crc32 != one["crc32"]:
            return f"chunk {one['chunk']} is damaged"
    return ""
