"""A pipeline without Spark: snapshots on request by the service's own thread, and changes by the
real feed, decoder and sink, in a thread. And a replica's rows beside those of the source.
"""

import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import orjson
import psycopg
import psycopg.rows
import pytest

from penstock.config import Pipeline, parse_pipeline
from penstock.consumer.mirror.replica import Replica
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.services import asked
from penstock.nats.settings import NatsSettings
from penstock.reading.announced import Announced
from penstock.service.ownership import positions_of
from penstock.service.snapshots import Snapshots
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from penstock.sinks.jetstream.schemas import SchemaBucket
from penstock.snapshots.statements import RowTransform
from tests.consumer.mirror.texts import differences
from tests.servers import Database, Nats
from tests.service.pipelines import owned
from tests.snapshots.gate import Gate
from tests.waiting import until

STREAM = "CDC"


class World:
    """`start` what publishes; `replica` makes a consumer. `sink` are settings of the sink: the way
    to a server, if it is not that of `nats`, among them."""

    def __init__(
        self, database: Database, nats: Nats, folder: Path, snapshot: Any = None, **sink: Any
    ) -> None:
        self.database, self.nats, self.folder = database, nats, folder
        self.slot = PartitionId(f"s_{uuid.uuid4().hex[:12]}")
        document = {
            "name": "shop", "state": str(folder / "state"),
            "backends": [{
                "name": "default", "type": "postgres", "connection": database.url,
                "slot": self.slot, "publication": "p", "create_publication": True,
            }],
            "sink": {"type": "jetstream", "url": nats.url, "stream": STREAM, **sink},
            "snapshot": snapshot or {},
        }  # fmt: skip
        self._open(document)

    def _open(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.pipeline: Pipeline = parse_pipeline(orjson.dumps(document).decode())
        self.feed: Any = self.pipeline.backends[0].feed()
        self.settings: Any = self.pipeline.sink.settings
        self.first = Bookmark()
        self.service: Snapshots | None = None
        self.pump: Pump | None = None
        way = self.settings.model_dump(include=set(NatsSettings.model_fields), exclude_unset=True)
        self.way = NatsSettings.model_validate(way)
        self.connection = Connection(NatsSettings.model_validate({**way, "timeout": 30}))

    def _begin(self) -> None:
        self._store(self.feed.begin())

    def _store(self, begun: Bookmarks) -> None:
        positions_of(self.pipeline, self.pipeline.backends[0].name, "me").begin(begun)

    def start(self) -> Self:
        """The pipeline runs from now on."""
        self._begin()
        JetStreamSink(self.settings).prepare()
        SchemaBucket(self.settings, "shop").put(*self.feed.schemas())
        self.connection.open()
        self.start_service()
        self.start_pump()
        return self

    def start_service(self, statements: RowTransform | None = None) -> None:
        self.owned = owned(self.pipeline)
        self.service = Snapshots(self.pipeline, self.owned)
        self.service.start(statements)
        until(self._answers)

    def _answers(self) -> bool:
        """Asks with little patience: the server may still give a request to the connection of a
        service that has just ended."""
        with suppress(Unavailable):
            return b"error" in asked(self.connection, "snapshot.cancel.snap-none", b"", 2).payload
        return False

    def stop_service(self) -> None:
        if self.service is not None:
            self.service.close()
            self.service = None

    def start_pump(self) -> None:
        self.pump = Pump(self)
        self.pump.start()

    def stop_pump(self) -> None:
        if self.pump is not None:
            self.pump.stop()
            self.pump = None

    def make_stream_again(self) -> None:
        """The stream of changes is deleted, and another one has its name."""
        config = dict((self.api.stream(STREAM) or {})["config"])
        self.stop_pump()
        self.api._call(f"STREAM.DELETE.{STREAM}", {})
        self.api.create(config)
        self.start_pump()

    def close(self) -> None:
        self.stop_pump()
        self.stop_service()
        self.connection.close()

    @property
    def api(self) -> JetStream:
        return JetStream(self.connection)

    def published(self) -> None:
        """Returns when all that is committed now is in the stream."""
        mark = uuid.uuid4().hex
        self.database.execute("SELECT pg_logical_emit_message(true, 'mark', %s)", [mark])
        assert self.pump is not None
        self.pump.until(mark)

    def replica(self, target: str, **options: Any) -> Replica:
        return Replica(options.pop("server", self.way), target, **options)

    def mirror(self, target: str, **options: Any) -> Replica:
        """A replica that has all that is committed now; it is closed."""
        self.published()
        made = self.replica(target, **options)
        with made:
            made.run(once=True, is_stopped=_deadline())
        return made


class Pump(threading.Thread):
    """Feed -> decoder -> sink, from the last change that was stored on, until `stop`."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world = world
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._marks: set[str] = set()
        self._arrived = threading.Condition()

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error

    def until(self, mark: str, seconds: float = 60.0) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: mark in self._marks or self.error, seconds)
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            with self._arrived:
                self.error = error
                self._arrived.notify_all()

    def _run(self) -> None:
        feed, sink = self.world.feed, JetStreamSink(self.world.settings)
        feed.announce_schemas(Announced(SchemaBucket(self.world.settings, "shop")))
        decoder = feed.decoder(sink.settings.images)
        with closing(self._following()) as following:
            while not self._over.is_set():
                for page in following.read(0.05):
                    batches = list(decoder.decode(page))
                    place = sink.write(batches, ignore).position[self.world.slot]
                    following.acknowledge(Bookmark(place))
                    self._notice(batches)

    def _following(self) -> Any:
        """Goes on after the last change in the stream, once the slot is free."""
        deadline = time.monotonic() + 60
        last = JetStreamSink(self.world.settings).records("default", [self.world.slot])
        bookmark = last[self.world.slot].bookmark or self.world.first
        while True:
            try:
                return self.world.feed.follow(self.world.slot, bookmark)
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _notice(self, batches: Sequence[Any]) -> None:
        for batch in batches:
            for row in batch.select(["operation", "collection", "after"]).to_pylist():
                if row["operation"] == "MESSAGE" or row["collection"] == "marks":
                    with self._arrived:
                        self._marks |= _texts(row["after"])
                        self._arrived.notify_all()


def _texts(image: Any) -> set[str]:
    text = image if isinstance(image, str) else bytes(image).decode(errors="replace")
    return {text[n : n + 32] for n in range(max(0, len(text) - 31))}


def converges(
    world: World,
    target: str,
    table: str,
    write: Callable[[threading.Event], None],
    written: Callable[[], int],
) -> None:
    """Loads a table that a thread writes to meanwhile, and follows it: until a chunk waits, more
    is `written`, and the chunks and some changes are in the target."""
    over = threading.Event()
    with (
        pytest.MonkeyPatch.context() as patch,
        world.replica(target, tables=[table]) as replica,
        ThreadPoolExecutor() as pool,
    ):
        gate = Gate(patch, "init.snap.", 6)
        running = [pool.submit(write, over), pool.submit(replica.run, is_stopped=over.is_set)]
        try:
            gate.reached()
            before = written()
            until(lambda: written() > before + 30)
            gate.open()
            until(lambda: replica.status.snapshots == 1 and replica.status.changes > 30)
        finally:
            gate.open()
            over.set()
        for each in running:
            each.result(60)
    world.mirror(target, tables=[table])


def _deadline(seconds: float = 60.0) -> Callable[[], bool]:
    end = time.monotonic() + seconds

    def over() -> bool:
        assert time.monotonic() < end, "the mirror did not come to the end of the stream"
        return False

    return over


def same(database: Database, target: str, table: str) -> None:
    """Asserts that the target's table is the source's, row by row, as text of all columns."""
    found = differences(database.url, target, table)
    assert not found, "\n".join(found)


def rows_of(url: str, table: str) -> Counter[tuple[Any, ...]]:
    """The rows of a table: (column, text) of each, by their names."""
    if url.startswith("sqlite"):
        rows = sqlite_rows(url, table)
    else:
        with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
            rows = connection.execute(f'SELECT * FROM "{table}"'.encode()).fetchall()
    return Counter(
        tuple((name, None if row[name] is None else str(row[name])) for name in sorted(row))
        for row in rows
    )


def sqlite_rows(url: str, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f'SELECT * FROM "{table}"')]


def execute(url: str, statement: str) -> None:
    """In a target, as its users do."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.execute(statement)
            file.commit()
    else:
        with psycopg.connect(url) as connection:
            connection.execute(statement.encode())
