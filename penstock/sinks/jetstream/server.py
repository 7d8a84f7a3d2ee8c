"""The server that has the stream, for what is stored there besides changes."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from penstock.model.table_schema import TableName
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.sinks.jetstream.announcing import announce
from penstock.sinks.jetstream.poison.dead_letters import DeadLetters
from penstock.sinks.jetstream.schemas import SchemaBucket
from penstock.sinks.jetstream.session import borrowed, limit_of
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.stream import TargetStream
from penstock.sinks.poison.dead_letter import Letter


class JetStreamServer:
    """A `penstock.sinks.server.SinkServer`."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self._settings = settings
        self.nats: NatsSettings = settings
        self.stream, self.subject, self.delivery = (
            settings.stream, settings.subject, str(settings.delivery),
        )  # fmt: skip
        self.encoding, self.dictionaries = str(settings.encoding), settings.dictionaries
        self.replicas, self.storage = settings.replicas, str(settings.storage)
        self.limits: Mapping[str, int] = {
            "max_age": int(settings.max_age * 10**9), "max_bytes": int(settings.max_bytes) or -1,
        }  # fmt: skip

    def stream_info(self, name: str) -> Mapping[str, Any] | None:
        """See `SinkServer`."""
        with borrowed(self._settings) as session:
            return session.asked(lambda api: api.stream(name))

    def largest_message(self) -> int:
        """See `SinkServer`."""
        with closing(Connection(self._settings)) as connection:
            connection.open()
            info = JetStream(connection).stream(self.stream)
            return limit_of(TargetStream.of(info).largest if info else 0, connection)

    def announce(self, subject: str, news: Mapping[str, Any], *, identity: str) -> str:
        """See `SinkServer`."""
        with borrowed(self._settings) as session:
            if not session.is_open:
                session.open()
            return announce(session, subject, news, identity=identity)

    def schemas(self, pipeline: str, prefix: TableName = ()) -> SchemaBucket:
        """See `SinkServer`."""
        return SchemaBucket(self._settings, pipeline, prefix)

    def set_aside(self, connection: Connection, letters: Iterable[Letter]) -> None:
        """See `SinkServer`."""
        stream = DeadLetters(connection, JetStream(connection), self._settings)
        for letter in letters:
            stream.store(letter)
