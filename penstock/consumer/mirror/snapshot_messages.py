"""What the stream of snapshots has of one table: the chunks of a run, metas and errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from penstock.consumer.mirror.chunks import body_of
from penstock.nats.api import JetStream
from penstock.nats.compression import Decompressor, DictionaryBucket
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered, PullConsumer
from penstock.nats.subjects import escape

_AT_ONCE = 8  # chunks


class SnapshotMessages:
    """Reads them over an open connection that others may use. Everything raises Unavailable,
    SettingsError, Malformed."""

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

    def body(
        self, message: Delivered, load_json: Callable[[bytes], Any] = orjson.loads
    ) -> Mapping[str, Any]:
        """The body of a message."""
        return body_of(message.headers, message.payload, self._decompressor, load_json)

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
    message = api.last(init, subject)
    if message is None:
        return None
    last = body_of(message.headers, message.payload)
    if not is_partial(last):
        return last
    sequence = 0
    while message := api.next(init, subject, sequence + 1):
        sequence = message.sequence
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
