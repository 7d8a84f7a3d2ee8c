"""A database with a publication, a NATS server of the session, a stream for chunks, and a pipeline
whose answers a test chooses.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest

from penstock.config import SnapshotSettings
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.nats.api import JetStream, Stored
from penstock.nats.connection import Connection
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.snapshots.job import Job
from penstock.snapshots.statements import RowTransform
from penstock.snapshots.store import SnapshotRun
from tests.servers import Database, Nats


@dataclass
class StatedPipeline:
    """Is a `PipelineState`. `known` gives the bookmarks, `gap` the losses, of any backend."""

    name: str = ""
    statements: RowTransform | None = None
    is_ours: bool = True
    known: Callable[[], Bookmarks] = lambda: {PartitionId("s"): Bookmark(mark={})}
    gap: Callable[[], str] = str

    def bookmarks(self, backend: str) -> Bookmarks:
        return self.known()

    def losses(self, backend: str) -> str:
        return self.gap()


class World:
    """What a snapshot needs, and what came of it."""

    feed: Any

    def __init__(self, database: Database, nats: Nats, encoding: Any = "json") -> None:
        self.database = database
        self.settings = JetStreamSettings(
            url=nats.url, encoding=encoding, stream="NONE",
            messages="batch" if encoding == "arrow" else "change",
        )  # fmt: skip
        self.feed = PostgresFeed(
            PostgresSettings(
                connection=database.url, slot=f"s_{database.name}", publication="p",
                create_publication=True,
            )
        )  # fmt: skip
        self.reconnect()

    @property
    def sink(self) -> JetStreamServer:
        return JetStreamServer(self.settings)

    def reconnect(self) -> None:
        self.connection = Connection(self.settings)
        self.connection.open()
        self.api = JetStream(self.connection)

    def close(self) -> None:
        self.connection.close()

    def job(self, table: str, **more: Any) -> Job:
        return Job(
            **{
                "snapshot_id": f"snap-{uuid.uuid4().hex}", "pipeline": StatedPipeline(),
                "backend": "shop", "feed": self.feed, "schema": "public", "table": table,
                "name": (table,), **more,
            }
        )  # fmt: skip

    def run(self, table: str, **settings: Any) -> SnapshotRun:
        run = SnapshotRun(self.job(table), self.sink, SnapshotSettings(**settings))
        run.run()
        return run

    def messages(self, subject: str) -> list[Stored]:
        return list(self.api.each("INIT", subject))

    def chunks(self, run: SnapshotRun) -> list[Stored]:
        name = ".".join(run.job.name)
        return self.messages(f"init.snap.{name}.{run.job.snapshot_id}.>")

    def meta(self, name: str) -> dict[str, Any]:
        found = self.api.last("INIT", f"init.meta.{name}")
        assert found is not None
        return read(found)


def read(message: Stored) -> dict[str, Any]:
    """The body of a chunk, a meta or an error, by its own words."""
    if message.headers.get("Content-Encoding") == "zstd":
        plain = pa.CompressedInputStream(pa.BufferReader(message.payload), "zstd").read()
        headers = {**message.headers, "Content-Encoding": ""}
        return read(replace(message, payload=plain, headers=headers))
    if message.headers["Content-Type"] == "application/vnd.apache.arrow.stream":
        table = pa.ipc.open_stream(message.payload).read_all()
        about = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
        return about | {"data": [ormsgpack.unpackb(one) for one in table["data"].to_pylist()]}
    load: Any = orjson.loads if message.payload[:1] == b"{" else ormsgpack.unpackb
    found: dict[str, Any] = load(message.payload)
    return found


@pytest.fixture
def world(database: Database, nats: Nats) -> Iterator[World]:
    made = World(database, nats)
    yield made
    made.connection.close()


@pytest.fixture
def world_of(database: Database, nats: Nats) -> Iterator[Callable[[str], World]]:
    worlds: list[World] = []

    def make(encoding: str) -> World:
        worlds.append(World(database, nats, encoding))
        return worlds[-1]

    yield make
    for each in worlds:
        each.connection.close()
