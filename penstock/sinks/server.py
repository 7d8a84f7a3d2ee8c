"""What a sink that stores changes in a stream can say of the server that has it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model.table_schema import TableName, TableSchema
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings

if TYPE_CHECKING:
    from penstock.sinks.poison.dead_letter import Letter


class SchemaStore(Protocol):
    """Where the schemas of tables are kept for consumers. Its methods do I/O. They raise
    Unavailable where nobody can be reached, and SettingsError (or what else) where the other side
    is there and does not store. Owned by one thread."""

    def put(self, *schemas: TableSchema) -> Mapping[TableName, int]:
        """Stores each, unless the last one of its table is the same, or it was put before it by
        this store. One that is not current is stored only where its version never was. Returns the
        revisions of the current ones."""

    def history(self, schema: str, table: str) -> Sequence[Mapping[str, Any]]:
        """The documents that are stored of a table, the oldest first."""

    def remove(self, name: TableName) -> None:
        """The table is gone: deletes its schema, if it is this pipeline's."""

    def keep(self, *names: TableName) -> None:
        """Deletes the schemas of this pipeline's other tables: they went while it did not run."""


class SinkServer(Protocol):
    """The server with the stream of a sink's changes. It has room for what else there is of a
    pipeline: snapshots, schemas and dictionaries of tables, and news. Constructing one does no I/O;
    the methods raise Unavailable and SettingsError."""

    nats: NatsSettings  # how it is reached
    stream: str  # of the changes
    subject: str  # the template of their subjects
    delivery: str
    encoding: str
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

    def set_aside(self, connection: Connection, letters: Iterable["Letter"]) -> None:
        """Stores dead letters, over an open connection."""
