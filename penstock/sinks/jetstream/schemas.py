"""The bucket `schemas`: the schema of each followed table, under the table's name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import ormsgpack

from penstock.nats.buckets import Bucket, key_of
from penstock.nats.connection import Connection
from penstock.sinks.encoding.dialect import dialect
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.table_schema import TableName, TableSchema

BUCKET = "schemas"
_HISTORY = 10  # versions of a table that the bucket keeps


class SchemaBucket:
    """A `sinks.SchemaStore`. Connects when it is first used, and again after an error."""

    def __init__(self, settings: JetStreamSettings, prefix: TableName = ()) -> None:
        self._settings, self._prefix = settings, prefix
        self._dialect = dialect("json" if settings.encoding == "json" else "msgpack")
        self._open: tuple[int, Connection] | None = None  # with the process that made it
        self._stored: dict[str, str] = {}  # key -> version

    def put(self, schema: TableSchema) -> None:
        """See `sinks.SchemaStore`."""
        key = key_of((*self._prefix, *schema.name))
        if self._stored.get(key) == schema.version:
            return
        with self._bucket() as bucket:
            last = bucket.get(key)
            if last is None or _version(last.value or b"") != schema.version:
                bucket.put(key, self._dialect.value(schema.document(datetime.now(UTC))))
        self._stored[key] = schema.version

    def remove(self, name: TableName) -> None:
        """See `sinks.SchemaStore`."""
        key = key_of((*self._prefix, *name))
        self._stored.pop(key, None)
        with self._bucket() as bucket:
            bucket.delete(key)

    def close(self) -> None:
        """See `sinks.SchemaStore`."""
        opened, self._open = self._open, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].close()

    @contextmanager
    def _bucket(self) -> Iterator[Bucket]:
        try:
            if self._open is None or self._open[0] != os.getpid():
                connection = Connection(self._settings)
                connection.open()
                self._open = os.getpid(), connection
                replicas, storage = self._settings.replicas, self._settings.storage
                made = Bucket(connection, BUCKET)
                made.create(history=_HISTORY, replicas=replicas, storage=storage)
            yield Bucket(self._open[1], BUCKET)
        except BaseException:
            self.close()
            raise


def _version(document: bytes) -> Any:
    """The version that a document names; None for what is no document."""
    try:
        read: Any = orjson.loads if document[:1] == b"{" else ormsgpack.unpackb
        return read(document).get("version")
    except (ValueError, AttributeError):
        return None
