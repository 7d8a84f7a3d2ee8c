"""The stream INIT: chunks, then a meta that says that they are all there; or an error."""

import time
from collections.abc import Mapping

from penstock.backoff import delays
from penstock.closing import Closes
from penstock.errors import SettingsError, Unavailable
from penstock.nats.api import ApiError, JetStream, error_of
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.sinks.subject import escape
from penstock.table_schema import TableName

PREFIX = "init"
MAX_AGE = 7 * 24 * 3600  # seconds
_PATIENCE = 60.0  # seconds for which a message is tried again
_HEADERS = 4096  # bytes of headers and subject, at most


def token(name: TableName) -> str:
    """A table's name in subjects."""
    return ".".join(map(escape, name))


class InitStream(Closes):
    """A connection to the server that has the stream. Owned by one thread. Everything raises
    Unavailable, SettingsError."""

    def __init__(self, settings: NatsSettings, stream: str) -> None:
        self._settings, self._stream = settings, stream
        self._connection: Connection | None = None

    def close(self) -> None:
        """Closes the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def api(self) -> JetStream:
        """JetStream, over an open connection."""
        return JetStream(self.connection)

    @property
    def connection(self) -> Connection:
        """An open connection."""
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
        found = self.api.stream(self._stream)
        if found is None:
            self.api.create({
                "name": self._stream, "subjects": [f"{PREFIX}.>"], "max_age": MAX_AGE * 10**9,
                "storage": storage, "num_replicas": replicas, "allow_direct": True,
            })  # fmt: skip
        elif f"{PREFIX}.>" not in (found["config"].get("subjects") or ()):
            raise SettingsError(
                f"the stream {self._stream} does not take {PREFIX}.>",
                hint=f"add the subject {PREFIX}.> to it, or name another one in snapshot.stream",
            )

    def publish(
        self, subject: str, body: bytes, headers: Mapping[str, bytes], identity: str
    ) -> int:
        """Stores one message, and returns its sequence. Where the server is away it is tried again
        for a while: within that time the server drops what it has by its id."""
        lines = [b"NATS/1.0", b"Nats-Msg-Id: " + identity.encode()]
        lines += [b"%b: %b" % (name.encode(), value) for name, value in headers.items()]
        head = b"\r\n".join([*lines, b"", b""])
        waits, deadline = delays(), time.monotonic() + _PATIENCE
        while True:
            try:
                return int(self.api.publish(subject, head, body)["seq"])
            except ApiError as error:
                failure = error_of(error, f"a message of the stream {self._stream}")
                if not isinstance(failure, Unavailable) or time.monotonic() > deadline:
                    raise failure from None
            except Unavailable:
                self.close()
                if time.monotonic() > deadline:
                    raise
            time.sleep(next(waits))

    def purge(self, name: TableName, snapshot_id: str) -> None:
        """Deletes the chunks of a snapshot."""
        self.api.purge(self._stream, f"{PREFIX}.snap.{token(name)}.{snapshot_id}.>")
