"""The bucket `schemas`: the schema of each followed table, under the table's name."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import orjson
import ormsgpack

from penstock.errors import SettingsError, Unavailable
from penstock.nats.buckets import Bucket, KeyValue, WrongRevision, key_of
from penstock.nats.connection import Connection
from penstock.sinks.encoding.dialect import dialect
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.table_schema import TableName, TableSchema

BUCKET = "schemas"
_HISTORY = 10  # versions of a table that the bucket keeps
_REMEDY = "let the user publish to $KV.schemas.> and $JS.API.>, and JetStream have room"


class SchemaBucket:
    """A `sinks.SchemaStore`. Connects when there is something to store, which is rare. Another
    pipeline of the account may have tables of the same names: each stores a version once."""

    def __init__(self, settings: JetStreamSettings, pipeline: str, prefix: TableName = ()) -> None:
        self._settings, self._pipeline, self._prefix = settings, pipeline, prefix
        self._dialect = dialect("json" if settings.encoding == "json" else "msgpack")
        self._stored: dict[str, str] = {}  # key -> version

    def put(self, *schemas: TableSchema) -> None:
        """See `sinks.SchemaStore`."""
        named = {self._key(schema.name): schema for schema in schemas}
        wanted = {key: one for key, one in named.items() if self._stored.get(key) != one.version}
        if not wanted:
            return
        now = datetime.now(UTC)
        with self._bucket() as bucket:
            for (key, schema), last in zip(wanted.items(), bucket.lasts(list(wanted)), strict=True):
                if _read(last).get("version") != schema.version:
                    bucket.put(key, self._dialect.value(schema.document(now, self._pipeline)))
                self._stored[key] = schema.version

    def remove(self, name: TableName) -> None:
        """See `sinks.SchemaStore`."""
        key = self._key(name)
        self._stored.pop(key, None)
        with self._bucket() as bucket, suppress(WrongRevision):  # another's, since
            last = bucket.last(key)
            if last is not None and _read(last).get("pipeline") == self._pipeline:
                bucket.delete(key, last.revision)

    def _key(self, name: TableName) -> str:
        return key_of((*self._prefix, *name))

    @contextmanager
    def _bucket(self) -> Iterator[Bucket]:
        connection = Connection(self._settings)
        bucket = Bucket(connection, BUCKET)
        with closing(connection):
            try:
                connection.open()
                replicas, storage = self._settings.replicas, self._settings.storage
                bucket.create(history=_HISTORY, replicas=replicas, storage=storage)
                yield bucket
            except Unavailable as error:
                if not connection.info:  # no server spoke to us: nor to the sink
                    raise
                raise SettingsError(error.message, hint=error.hint or _REMEDY) from error


def _read(stored: KeyValue | None) -> dict[str, Any]:
    """The document; empty for what is none."""
    document = (stored and stored.value) or b""
    try:
        read: Any = orjson.loads if document[:1] == b"{" else ormsgpack.unpackb
        found = read(document)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
