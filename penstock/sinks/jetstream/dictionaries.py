"""The bucket `dictionaries`: what small messages are compressed with, for each table of a stream.

`id.ID` is a dictionary. It never changes and is never deleted, because messages name it. The key
`table.STREAM.BACKEND.NAMESPACE.TABLE` names the one that writers use from their next start on.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from penstock.consumer.tail.decompression import BUCKET
from penstock.model.errors import SettingsError
from penstock.nats.buckets import Bucket, WrongRevision, key_of
from penstock.nats.connection import Connection
from penstock.sinks.encoding.compression import Dictionaries
from penstock.sinks.jetstream.settings import JetStreamSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDictionary:
    """Which dictionary a table has. `ratio`: how many times smaller bodies were that it was not
    trained on, and `plain_ratio` without it."""

    id: str
    backend: str
    namespace: str
    table: str
    size: int
    samples: int
    ratio: float
    plain_ratio: float
    trained_at: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """As the writer knows the table."""
        return self.backend, self.namespace, self.table


class DictionaryBucket:
    """Of one stream, over an open connection. Everything raises Unavailable, SettingsError."""

    def __init__(self, connection: Connection, settings: JetStreamSettings) -> None:
        self._bucket, self._settings = Bucket(connection, BUCKET), settings

    def tables(self) -> list[TableDictionary]:
        """All tables that have a dictionary; none where there is no bucket."""
        keys = f"table.{key_of([self._settings.stream])}.>"
        found = [orjson.loads(entry.value or b"") for entry in self._bucket.scan(keys)]
        return [TableDictionary(**one) for one in found]

    def newest(self) -> Dictionaries:
        """The dictionary of each table."""
        tables = self.tables()
        found = self._bucket.lasts([f"id.{one.id}" for one in tables])
        return {
            table.key: entry.value
            for table, entry in zip(tables, found, strict=True)
            if entry is not None and entry.value is not None
        }

    def get(self, id: str) -> bytes | None:
        """One of them."""
        found = self._bucket.get(f"id.{id}")
        return None if found is None else found.value

    def put(self, dictionaries: Sequence[tuple[TableDictionary, bytes]]) -> None:
        """Stores new ones. The bucket is made if it is missing."""
        settings = self._settings
        self._bucket.create(replicas=settings.replicas, storage=settings.storage)
        for table, data in dictionaries:
            try:
                self._bucket.insert(f"id.{table.id}", data)
            except WrongRevision:
                raise SettingsError(
                    f"there is another dictionary with the id {table.id}", hint="train it again"
                ) from None
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            document: dict[str, Any] = asdict(table) | {"trained_at": now}
            key = "table." + key_of([settings.stream, *table.key])
            self._bucket.put(key, orjson.dumps(document))
