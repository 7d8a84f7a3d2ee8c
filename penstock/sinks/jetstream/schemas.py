"""The bucket `schemas`: the schema of each followed table, under the table's name."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import orjson

from penstock.model.errors import SettingsError, Unavailable
from penstock.model.table_schema import SchemaStore, TableName, TableSchema
from penstock.nats.buckets import Bucket, KeyValue, WrongRevision, key_of, read_map
from penstock.nats.connection import Connection
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.messages.dialect import dialect

BUCKET = "schemas"
_HISTORY = 10  # documents of a table that the bucket keeps
_INCIDENTAL = {"timestamp", "position", "pipeline"}
_REMEDY = "let the user publish to $KV.schemas.> and $JS.API.>, and JetStream have room"


class SchemaBucket(SchemaStore):
    """Connects when there is something to store, which is rare. Another
    pipeline of the account may have tables of the same names: each stores a document once."""

    def __init__(self, settings: JetStreamSettings, pipeline: str, prefix: TableName = ()) -> None:
        self._settings, self._pipeline, self._prefix = settings, pipeline, prefix
        self._dialect = dialect("json" if settings.encoding == "json" else "msgpack")
        self._stored: dict[str, KeyValue] = {}  # as the bucket had it, or got it from here
        self._past = set[tuple[str, str]]()  # keys and versions that it has, too

    def put(self, *schemas: TableSchema) -> Mapping[TableName, int]:
        now, known = datetime.now(UTC), self._stored
        backend = {"backend": self._prefix[0] if self._prefix else None}
        named = {self._key(one.name): (one, self._document(one, now) | backend) for one in schemas}
        wanted = [
            key for key, (one, document) in named.items()
            if not _is(known.get(key), one, document)
            and (one.is_current or (key, one.version) not in self._past)
        ]  # fmt: skip
        if wanted:
            with self._bucket() as bucket:
                for key, last in zip(wanted, bucket.lasts(wanted), strict=True):
                    self._put(bucket, key, *named[key], last)
        return {one.name: known[key].revision for key, (one, _) in named.items() if key in known}

    def _put(
        self,
        bucket: Bucket,
        key: str,
        schema: TableSchema,
        document: dict[str, Any],
        last: KeyValue | None,
    ) -> None:
        """The last document of a key, unless the bucket has it; one that is not current, unless the
        bucket has its version."""
        value = self._dialect.value(document)
        if schema.is_current:
            if not last or not _is(last, schema, document):
                last = KeyValue(key, bucket.put(key, value), value)
            self._stored[key] = last
        else:
            history = [read_map(each.value) for each in bucket.history(key)]
            if all(one.get("version") != schema.version for one in history):
                bucket.put(key, value)
                self._stored.pop(key, None)  # the current one has to be the last
            self._past.add((key, schema.version))

    def history(self, schema: str, table: str) -> Sequence[Mapping[str, Any]]:
        with self._bucket() as bucket:
            keys = {self._key((table,)), self._key((schema, table))}
            found = [read_map(one.value) for key in sorted(keys) for one in bucket.history(key)]
        name = f"{schema}.{table}"
        return [one for one in found if one.get("qualified_name") == name]

    def remove(self, name: TableName) -> None:
        key = self._key(name)
        self._stored.pop(key, None)
        with self._bucket() as bucket, suppress(WrongRevision):  # another's, since
            last = bucket.last(key)
            if last is not None and read_map(last.value).get("pipeline") == self._pipeline:
                bucket.delete(key, last.revision)

    def keep(self, *names: TableName) -> None:
        kept, start = set(map(self._key, names)), key_of(self._prefix) + "." if self._prefix else ""
        with self._bucket() as bucket:
            for entry in list(bucket.scan()):
                ours = read_map(entry.value).get("pipeline") == self._pipeline
                if ours and entry.key.startswith(start) and entry.key not in kept:
                    self._stored.pop(entry.key, None)
                    with suppress(WrongRevision):
                        bucket.delete(entry.key, entry.revision)

    def _document(self, schema: TableSchema, now: datetime) -> dict[str, Any]:
        found = schema.document(now, self._pipeline)
        if self._settings.layout != "bridge":
            return found
        qualified = {"schema": found["qualified_name"], "timestamp": int(now.timestamp())}
        return found | qualified | {"layout": "bridge"}

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
                raise SettingsError(
                    error.message, error.code, hint=error.hint or _REMEDY
                ) from error


def _is(stored: KeyValue | None, schema: TableSchema, document: Mapping[str, Any]) -> bool:
    """Whether what is stored is this schema."""
    read = read_map(stored.value) if stored else {}
    unknown = {"suspended"} if schema.suspended is None else set[str]()
    return bool(read) and _compared(read, unknown) == _compared(document, unknown)


def _compared(document: Mapping[str, Any], unknown: set[str]) -> Any:
    """Without what does not make it another one."""
    left = {key: document[key] for key in document.keys() - _INCIDENTAL - unknown}
    state = dict(left.get("state") or {})
    # Rows that come to a partition are in the log.
    state["partitions"] = [leaf[:2] for leaf in state.get("partitions") or ()]
    return orjson.loads(orjson.dumps(left | {"state": state}))
