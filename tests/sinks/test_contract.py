"""What every sink promises, `penstock.testing.sinks`, on every implementation."""

import sqlite3
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from examples.sqlite_sink import SqliteSink as ExampleSink
from examples.sqlite_sink import SqliteSinkSettings as ExampleSettings
from penstock.consumer.tail.bodies import changes_of
from penstock.model.change import WHOLE, schema
from penstock.model.finding import Finding
from penstock.sinks import Progress, Receipt, Sink
from penstock.sinks.delta import DeltaSink, DeltaSinkSettings
from penstock.sinks.jetstream import JetStreamSink
from penstock.sinks.memory import MemorySink, MemorySinkSettings, stored
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.sqlite import SqliteSink, SqliteSinkSettings
from penstock.testing import sinks
from penstock.testing.sinks import StagedSink
from tests.claims import marked
from tests.servers import Database, Nats
from tests.sinks.changes import read

# The ways in which messages differ, all stored exactly once.
SHAPES: dict[str, dict[str, Any]] = {
    "batch": {"messages": "batch"},
    "batch-json": {"messages": "batch", "encoding": "json"},
    "arrow": {"messages": "batch", "encoding": "arrow"},
    "debezium": {"layout": "debezium", "encoding": "json"},
    "cloudevents-batch": {"layout": "cloudevents", "encoding": "json", "messages": "batch"},
}
TABLES = ["postgres", "sqlite", "delta"]
EXACT = ["memory", "folder", "example", "exactly-once", "deduplicated", "auto", *SHAPES, *TABLES]


@dataclass
class Case(StagedSink):
    """A sink, and what it stored so far by another way: event ids in order."""

    sink: Sink
    ids: Callable[[], list[str]]

    def for_partitions(self) -> Sink:
        if not isinstance(self.sink, JetStreamSink):
            return self.sink
        settings = self.sink.settings
        subject = f"{settings.stream}.{{backend}}.{{source_partition}}.{{collection}}"
        return JetStreamSink(settings.model_copy(update={"subject": subject}))


@pytest.fixture(params=[*EXACT, "at-least-once"])
def any_case(request: pytest.FixtureRequest) -> Case:
    return _case(request, request.param)


@pytest.fixture(params=EXACT)
def case(request: pytest.FixtureRequest) -> Case:
    return _case(request, request.param)


@pytest.fixture(params=[kind for kind in EXACT if kind != "memory"])
def lasting_case(request: pytest.FixtureRequest) -> Case:
    """A sink whose store outlasts the process."""
    return _case(request, request.param)


@pytest.fixture(params=[kind for kind in EXACT if kind not in ("example", *TABLES)])
def knowing_case(request: pytest.FixtureRequest) -> Case:
    """A sink that knows how far it is."""
    return _case(request, request.param)


def _case(request: pytest.FixtureRequest, kind: str) -> Case:
    if kind in ("memory", "folder"):
        folder: Path | None = request.getfixturevalue("tmp_path") if kind == "folder" else None
        settings = MemorySinkSettings(name=uuid.uuid4().hex, folder=str(folder) if folder else None)
        return Case(MemorySink(settings), lambda: [row["event_id"] for row in stored(settings)])
    if kind == "example":
        file: Path = request.getfixturevalue("tmp_path") / "changes.db"
        return Case(ExampleSink(ExampleSettings(file=file)), lambda: _in_sqlite(file))
    if kind in TABLES:
        return _tables_case(request, kind)
    nats: Nats = request.getfixturevalue("nats")
    stream = request.getfixturevalue("stream")
    delivery = "exactly-once" if kind in SHAPES else kind
    sink = request.getfixturevalue("sink_of")(delivery=delivery, **SHAPES.get(kind, {}))

    def ids() -> list[str]:
        messages = read(nats.url, stream)
        if "messages" not in SHAPES.get(kind, {}):
            return [message.event_id for message in messages]
        changes = [changes_of(message.headers, message.data) for message in messages]
        said = [int(message.headers["Penstock-Count"]) for message in messages]
        last = [message.event_id for message in messages]
        assert said == [len(one) for one in changes]
        assert last == [one[-1]["event_id"] for one in changes]
        return [str(change["event_id"]) for one in changes for change in one]

    return Case(sink, ids)


def _in_sqlite(file: Path, query: str = "SELECT event_id FROM change ORDER BY rowid") -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return [row[0] for row in connection.execute(query)]


def _in_lake(folder: Path) -> list[str]:
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    rows = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return [row["id"] for row in sorted(rows, key=lambda row: str(row["_sequence"]))]


@dataclass
class LineSink:
    """A sink of tables, which is given changes of the suite as rows of one column: event ids."""

    sink: Any

    def write(self, changes: Iterable[pa.RecordBatch], progress: Progress) -> Receipt:
        return self.sink.write(map(_as_lines, changes), progress)  # type: ignore[no-any-return]

    def prepare(self) -> None:
        self.sink.prepare()

    def check(self) -> Sequence[Finding]:
        return self.sink.check()  # type: ignore[no-any-return]


RELATION = orjson.dumps({
    "schema": "public", "table": "items", "version": "1",
    "columns": [{"name": "id", "type": 25, "modifier": -1, "key": True}],
}).decode()  # fmt: skip


def _as_lines(batch: pa.RecordBatch) -> pa.RecordBatch:
    if not len(batch):
        return batch
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    columns["key"] = columns["after"] = columns["event_id"]
    columns["delta"] = [RELATION, *[None] * (len(batch) - 1)]
    return pa.RecordBatch.from_pydict(columns, schema("text").with_metadata(WHOLE))


def _tables_case(request: pytest.FixtureRequest, kind: str) -> Case:
    create = "CREATE TABLE items (id text PRIMARY KEY)"
    entries: Any = [{"backend": "default", "tables": {"items": None}}]
    commit: Any = {"wait": "20ms"}
    if kind == "delta":
        folder: Path = request.getfixturevalue("tmp_path")
        entries = [{"backend": "default", "tables": {"items": {"type": "log"}}}]
        path = f"{folder}/{{table}}"
        lake = DeltaSink(DeltaSinkSettings(location=path, map=entries, commit=commit, clean=0.01))
        return Case(LineSink(lake), lambda: _in_lake(folder / "items"))
    if kind == "sqlite":
        file: Path = request.getfixturevalue("tmp_path") / "tables.db"
        _in_sqlite(file, create)
        sink: Any = SqliteSink(SqliteSinkSettings(file=file, map=entries, commit=commit))
        return Case(LineSink(sink), lambda: _in_sqlite(file, "SELECT id FROM items ORDER BY rowid"))
    database: Database = request.getfixturevalue("database")
    database.execute(create)
    found = PostgresSinkSettings(connection=database.url, map=entries, commit=commit)  # type: ignore[arg-type]
    return Case(
        LineSink(PostgresSink(found)),
        lambda: [row[0] for row in database.execute("SELECT id FROM items ORDER BY ctid")],
    )


_SLOW = {
    sinks.what_was_written_is_stored_in_order,
    sinks.a_generator_is_written_as_a_list_is,
    sinks.nothing_counts_as_stored_before_it_is_durable,
    sinks.two_tasks_of_one_process_write_at_once,
    sinks.the_same_batch_twice_is_once,
    sinks.a_crash_after_a_write_is_once,
    sinks.a_write_that_was_cut_short_is_completed,
}


@pytest.mark.parametrize("claim", marked(sinks.CLAIMS, _SLOW))
def test_a_sink_keeps_the_contract(any_case: Case, claim: Callable[[StagedSink], None]) -> None:
    claim(any_case)


@pytest.mark.parametrize("claim", marked(sinks.EXACT, _SLOW))
def test_an_exact_sink_stores_once(case: Case, claim: Callable[[StagedSink], None]) -> None:
    claim(case)


@pytest.mark.process
@pytest.mark.parametrize("claim", sinks.LASTS, ids=lambda claim: claim.__name__)
def test_a_sink_outlasts_its_process(
    lasting_case: Case, claim: Callable[[StagedSink], None]
) -> None:
    claim(lasting_case)


@pytest.mark.parametrize("claim", sinks.KNOWS, ids=lambda claim: claim.__name__)
def test_a_sink_knows_how_far_it_is(
    knowing_case: Case, claim: Callable[[StagedSink], None]
) -> None:
    claim(knowing_case)
