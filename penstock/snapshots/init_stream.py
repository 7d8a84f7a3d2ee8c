"""The stream INIT: chunks, then a meta that says that they are all there; or an error."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from penstock.model.errors import SettingsError, Unavailable
from penstock.model.table_schema import TableName
from penstock.nats.api import ApiError, JetStream, Stored, error_of, unfit
from penstock.nats.buckets import read_map
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.nats.subjects import escape
from penstock.process.backoff import delays
from penstock.process.closing import Closes

PREFIX = "init"
MAX_AGE = 7 * 24 * 3600  # seconds
_PATIENCE = 60.0  # seconds for which a message is tried again
_POLL = 0.1  # seconds between two looks whether a wait is to end
_PAST = 2**31 - 1  # an offset: a list of subjects comes as its length alone
_HEADERS = 4096  # bytes of headers and subject, at most

Result = TypeVar("Result")


def token(name: TableName) -> str:
    """A table's name in subjects."""
    return ".".join(map(escape, name))


def meta_identity(name: TableName, snapshot_id: str) -> str:
    """The header `Nats-Msg-Id` of a snapshot's meta."""
    return f"init-meta-{token(name)}-{snapshot_id}"


def problems(name: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What keeps a stream from taking snapshots: (problem, remedy)."""
    subjects = f"{PREFIX}.>"
    if subjects not in (config.get("subjects") or ()):
        remedy = f"add the subject {subjects} to it, or name another one in snapshot.stream"
        yield f"does not take {subjects}", remedy
    yield from unfit(name, config, subjects)
    if config.get("deny_purge"):
        yield "forbids purging (deny_purge)", "name another one in snapshot.stream"


class InitStream(Closes):
    """A connection to the server that has the stream. Owned by one thread. Everything raises
    Unavailable, SettingsError. Nothing is tried again once it `is_stopped`."""

    def __init__(
        self, settings: NatsSettings, stream: str, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._settings, self._stream, self._is_stopped = settings, stream, is_stopped
        self._connection: Connection | None = None

    def close(self) -> None:
        """Closes the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def api(self) -> JetStream:
        return JetStream(self.connection)

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            made = Connection(self._settings)
            made.open()
            self._connection = made
        return self._connection

    @property
    def room(self) -> int:
        """Bytes that a body may have."""
        return self.connection.max_payload - _HEADERS

    def ensure(self, *, replicas: int, storage: str) -> None:
        """Makes the stream, unless it exists."""
        if (found := self.api.stream(self._stream)) is None:
            self.api.create({
                "name": self._stream, "subjects": [f"{PREFIX}.>"], "max_age": MAX_AGE * 10**9,
                "storage": storage, "num_replicas": replicas, "allow_direct": True,
            })  # fmt: skip
        else:
            for problem, remedy in problems(self._stream, found["config"]):
                raise SettingsError(
                    f"the stream {self._stream} {problem}", "snapshots", hint=remedy
                )

    def publish(
        self, subject: str, body: bytes, headers: Mapping[str, bytes], identity: str
    ) -> int:
        """Stores one message, and returns its sequence. Where the server is away it is tried again
        for a while: within that time the server drops what it has by its id."""
        lines = [b"NATS/1.0", b"Nats-Msg-Id: " + identity.encode()]
        lines += [b"%b: %b" % (name.encode(), value) for name, value in headers.items()]
        head = b"\r\n".join([*lines, b"", b""])

        def stored(api: JetStream) -> int:
            try:
                return int(api.publish(subject, head, body)["seq"])
            except ApiError as error:
                raise error_of(error, f"a message of the stream {self._stream}") from None

        return self._tried(stored)

    def count(self, name: TableName, snapshot_id: str) -> int:
        asked = {"subjects_filter": self._chunks(name, snapshot_id), "offset": _PAST}
        found = self._tried(lambda api: api.stream(self._stream, asked))
        return int(found.get("total", 0)) if found else 0

    def meta(self, name: TableName, snapshot_id: str) -> Mapping[str, Any] | None:
        """The meta of a snapshot, if it is complete."""
        identity = meta_identity(name, snapshot_id)
        for found in self.api.each(self._stream, f"{PREFIX}.meta.{token(name)}"):
            if found.headers.get("Nats-Msg-Id") == identity:
                return read_map(found.payload)
        return None

    def reload(self, name: TableName) -> str | None:
        """The newest snapshot from which mirrors of a table load it again, by the last meta."""
        last = self._tried(lambda api: api.last(self._stream, f"{PREFIX}.meta.{token(name)}"))
        return read_map(last.payload).get("reload") if last else None

    def chunks(self, name: TableName, snapshot_id: str) -> Iterator[Stored]:
        """The chunks of a snapshot that are there, in the order in which they were stored."""
        subject, sequence = self._chunks(name, snapshot_id), 0

        def following(api: JetStream) -> Stored | None:
            return api.next(self._stream, subject, sequence + 1)

        while found := self._tried(following):
            sequence = found.sequence
            yield found

    def discard(self, name: TableName, snapshot_id: str, chunk: int) -> None:
        subject = f"{self._chunks(name, snapshot_id)[:-1]}{chunk}"
        self._tried(lambda api: api.purge(self._stream, subject))

    def config(self, stream: str) -> Mapping[str, Any] | None:
        found = self._tried(lambda api: api.stream(stream))
        return found["config"] if found else None

    def end(self, stream: str) -> tuple[int, str | None]:
        """A stream's next sequence, and when it was made (text); 1, None where there is none."""
        found = self._tried(lambda api: api.stream(stream))
        return (int(found["state"]["last_seq"]) + 1, found["created"]) if found else (1, None)

    def _tried(self, ask: Callable[[JetStream], Result]) -> Result:
        """Where the server is away, it is asked again for a while, over another connection."""
        waits, deadline = delays(), time.monotonic() + _PATIENCE
        while True:
            try:
                return ask(self.api)
            except Unavailable:
                self.close()
                until = min(time.monotonic() + next(waits), deadline)
                while time.monotonic() < until and not self._is_stopped():
                    time.sleep(_POLL)
                if time.monotonic() >= deadline or self._is_stopped():
                    raise

    def purge(self, name: TableName, snapshot_id: str) -> None:
        self.api.purge(self._stream, self._chunks(name, snapshot_id))

    @staticmethod
    def _chunks(name: TableName, snapshot_id: str) -> str:
        return f"{PREFIX}.snap.{token(name)}.{snapshot_id}.>"
