"""A sink in one module: changes become rows of a table in a SQLite file.

It is what docs/how-to/write-a-sink.md describes, and passes the contract suite of sinks.
"""

import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.errors import PenstockError, SettingsError
from penstock.model.finding import Finding
from penstock.model.position import PartitionId, Place
from penstock.model.settings import Settings
from penstock.process.backoff import delays
from penstock.sinks import Progress, Receipt, SinkPlugin

__all__ = ["PLUGIN", "SqliteSink", "SqliteSinkSettings"]

_CREATE = """
CREATE TABLE IF NOT EXISTS change (
    event_id text PRIMARY KEY, operation text, "table" text, document text
)
"""
_INSERT = "INSERT OR IGNORE INTO change VALUES (?, ?, ?, ?)"


class SqliteSinkSettings(Settings):
    """The `sink:` block of a pipeline file."""

    type: Literal["sqlite-changes"] = "sqlite-changes"
    file: Path
    """Made if missing; its folder must exist."""


class SqliteSink:
    """A `penstock.sinks.Sink`. It is its settings, so it pickles; constructing it does no I/O."""

    def __init__(self, settings: SqliteSinkSettings) -> None:
        self.settings = settings

    def prepare(self) -> None:
        """Makes the table."""
        with self._open() as connection:
            connection.execute(_CREATE)

    def write(self, changes: Iterable[pa.RecordBatch], progress: Progress) -> Receipt:
        """Stores batch after batch, each in one transaction. The iterator of an open micro-batch
        goes on for an hour, so what is durable is reported after each batch."""
        position: dict[PartitionId, Place] = {}
        published = duplicates = size = 0
        for batch in changes:
            rows = [_row(change) for change in batch.to_pylist()]
            if not rows:
                continue
            new = self._store(rows, progress)
            published, duplicates = published + new, duplicates + len(rows) - new
            size += sum(len(text) for row in rows for text in row)
            places = _places(batch)
            position |= places
            progress.stored(places)
            progress.report({
                "connected": True,
                "published": published, "duplicates": duplicates, "size": size,
            })  # fmt: skip
        return Receipt(position=position, published=published, duplicates=duplicates, size=size)

    def check(self) -> Sequence[Finding]:
        """Preflight: whether the file can be written."""
        try:
            self.prepare()
        except PenstockError as error:
            return [Finding(level="error", subject="sqlite", message=error.message)]
        return [Finding(level="ok", subject="sqlite", message=f"writes {self.settings.file}")]

    def _store(self, rows: Sequence[tuple[str, ...]], progress: Progress) -> int:
        """How many of the rows were new. A file that is locked or full is tried for ever."""
        for wait in delays():
            try:
                with self._open() as connection, connection:
                    connection.execute(_CREATE)
                    return connection.executemany(_INSERT, rows).rowcount
            except sqlite3.OperationalError as error:
                progress.report({"connected": False, "error": str(error)})
                time.sleep(wait)
        raise AssertionError("delays never end")

    def _open(self) -> "closing[sqlite3.Connection]":
        if not self.settings.file.parent.is_dir():
            raise SettingsError(f"the folder {self.settings.file.parent} does not exist")
        connection = sqlite3.connect(self.settings.file, timeout=5)
        connection.execute("PRAGMA synchronous = FULL")  # durable when a transaction returns
        return closing(connection)


def _row(change: dict[str, Any]) -> tuple[str, ...]:
    image = change["after"] or change["before"] or change["key"] or "{}"
    if isinstance(image, bytes):  # images are JSON text, or MessagePack
        image = orjson.dumps(ormsgpack.unpackb(image), default=str).decode()
    return change["event_id"], change["operation"], change["collection"] or "", image


def _places(batch: pa.RecordBatch) -> dict[PartitionId, Place]:
    """The last place of each partition: changes of a partition come in order."""
    columns = (batch.column(name).to_pylist() for name in ("partition", "cursor", "ordinal"))
    return {
        PartitionId(name): Place(cursor, ordinal)
        for name, cursor, ordinal in zip(*columns, strict=True)
    }


PLUGIN = SinkPlugin(settings=SqliteSinkSettings, build=SqliteSink)
