"""What a sink that stores changes in a stream can say of the server that has it."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from penstock.model.table_schema import SchemaStore, TableName
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings


class SinkServer(Protocol):
    """The server with the stream of a sink's changes. It has room for what else there is of a
    pipeline: snapshots, schemas and dictionaries of tables, and news. Constructing one does no I/O;
    the methods raise Unavailable and SettingsError."""

    nats: NatsSettings  # how it is reached
    stream: str  # of the changes
    subject: str  # the template of their subjects
    delivery: str
    encoding: str
    layout: str  # of bodies
    dictionaries: bool  # whether bodies are compressed by their tables' dictionaries
    # Of what is made there, and of the stream of changes, as far as messages may leave it.
    replicas: int
    storage: str
    limits: Mapping[str, int]

    def stream_info(self, name: str) -> Mapping[str, Any] | None:
        """A stream as the server describes it; None if there is none."""

    def largest_message(self) -> int:
        """Bytes that the message of one change may have. Makes no stream."""

    def announce(self, subject: str, news: Mapping[str, Any], *, identity: str) -> str:
        """Publishes plain JSON, apart from the changes; the same `identity` again is the same news.
        Returns where it is kept; "" if only those who listen now have it."""

    def schemas(self, pipeline: str, prefix: TableName = ()) -> SchemaStore:
        """Of a pipeline's tables, whose names begin with `prefix`; no I/O."""

    def set_aside(self, connection: Connection, letters: Iterable[Any]) -> None:
        """Stores dead letters (`poison.dead_letter.Letter`), over an open connection."""
