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
        self._stored: dict[str, tuple[str, str | None]] = {}  # key -> version, `suspended`

    def put(self, *schemas: TableSchema) -> None:
        """See `sinks.SchemaStore`."""
        named = {self._key(schema.name): schema for schema in schemas}
        states = {key: (one.version, one.suspended) for key, one in named.items()}
        wanted = {key: one for key, one in named.items() if self._stored.get(key) != states[key]}
        if not wanted:
            return
        now = datetime.now(UTC)
        with self._bucket() as bucket:
            for (key, schema), last in zip(wanted.items(), bucket.lasts(list(wanted)), strict=True):
                if not _is(_read(last), schema):
                    document = schema.document(now, self._pipeline)
                    document["backend"] = self._prefix[0] if self._prefix else None
                    bucket.put(key, self._dialect.value(document))
                self._stored[key] = states[key]

    def remove(self, name: TableName) -> None:
        """See `sinks.SchemaStore`."""
        key = self._key(name)
        self._stored.pop(key, None)
        with self._bucket() as bucket, suppress(WrongRevision):  # another's, since
            last = bucket.last(key)
            if last is not None and _read(last).get("pipeline") == self._pipeline:
                bucket.delete(key, last.revision)

    def keep(self, *names: TableName) -> None:
        """Deletes the schemas of this pipeline's other tables: they went while it did not run."""
        kept, start = set(map(self._key, names)), key_of(self._prefix) + "." if self._prefix else ""
        with self._bucket() as bucket:
            for entry in list(bucket.scan()):
                ours = _read(entry).get("pipeline") == self._pipeline
                if ours and entry.key.startswith(start) and entry.key not in kept:
                    self._stored.pop(entry.key, None)
                    with suppress(WrongRevision):
                        bucket.delete(entry.key, entry.revision)

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


def _is(stored: dict[str, Any], schema: TableSchema) -> bool:
    """Whether the bucket has this already."""
    known = schema.suspended is None or (stored.get("suspended") or "") == schema.suspended
    return known and stored.get("version") == schema.version


def _read(stored: KeyValue | None) -> dict[str, Any]:
    """The document; empty for what is none."""
    document = (stored and stored.value) or b""
    try:
        read: Any = orjson.loads if document[:1] == b"{" else ormsgpack.unpackb
        found = read(document)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
