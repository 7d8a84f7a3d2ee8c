"""The contract suite of sinks: what `penstock.sinks.Sink` promises, on every implementation."""

import pickle
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from examples.sqlite_sink import SqliteSink as ExampleSink
from examples.sqlite_sink import SqliteSinkSettings as ExampleSettings
from penstock.consumer.tail.bodies import changes_of
from penstock.model.change import WHOLE, schema
from penstock.model.finding import Finding
from penstock.model.position import Bookmark, PartitionId, Place, Position
from penstock.sinks import Progress, Receipt, Record, ReportsPositions, Sink, ignore
from penstock.sinks.jetstream import JetStreamSink
from penstock.sinks.memory import MemorySink, MemorySinkSettings, stored
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.sqlite import SqliteSink, SqliteSinkSettings
from tests.progress import Noted
from tests.servers import Database, Nats
from tests.sinks.changes import batch_of, ids_of, read

# The ways in which messages differ, all stored exactly once.
SHAPES: dict[str, dict[str, Any]] = {
    "batch": {"messages": "batch"},
    "batch-json": {"messages": "batch", "encoding": "json"},
    "arrow": {"messages": "batch", "encoding": "arrow"},
    "debezium": {"layout": "debezium", "encoding": "json"},
    "cloudevents-batch": {"layout": "cloudevents", "encoding": "json", "messages": "batch"},
}
TABLES = ["postgres", "sqlite"]
EXACT = ["memory", "folder", "example", "exactly-once", "deduplicated", "auto", *SHAPES, *TABLES]

SHOP = PartitionId("shop")


@dataclass
class Case:
    """A sink, and what it stored so far by another way: event ids in order."""

    sink: Sink
    ids: Callable[[], list[str]]

    def again(self) -> Sink:
        """As another process would have it."""
        return pickle.loads(pickle.dumps(self.sink))


@pytest.fixture(params=[*EXACT, "at-least-once"])
def any_case(request: pytest.FixtureRequest) -> Case:
    return _case(request, request.param)


@pytest.fixture(params=EXACT)
def case(request: pytest.FixtureRequest) -> Case:
    return _case(request, request.param)


@pytest.fixture(params=[kind for kind in EXACT if kind not in ("example", *TABLES)])
def telling_case(request: pytest.FixtureRequest) -> Case:
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


@pytest.mark.slow
def test_what_was_written_is_stored_in_order(any_case: Case) -> None:
    any_case.sink.prepare()
    batches = [batch_of(700, 1), batch_of(1, 2), batch_of(2500, 3)]
    receipt = any_case.sink.write(batches, ignore)
    assert any_case.ids() == ids_of(*batches)
    assert receipt.published == 3201
    assert receipt.duplicates == 0
    assert receipt.size > 3201 * 50


def test_a_sink_may_be_written_to_before_it_was_prepared(any_case: Case) -> None:
    assert any_case.sink.write([batch_of(3)], ignore).published == 3
    any_case.sink.prepare()
    assert len(any_case.ids()) == 3


def test_nothing_written_is_an_empty_receipt(any_case: Case) -> None:
    any_case.sink.prepare()
    for changes in ([], [batch_of(0)], iter(())):
        receipt = any_case.sink.write(changes, ignore)
        assert (receipt.published, receipt.duplicates, dict(receipt.position)) == (0, 0, {})


@pytest.mark.slow
def test_the_same_batch_twice_is_once(case: Case) -> None:
    case.sink.prepare()
    first, second = batch_of(1500, 1), batch_of(40, 2)
    case.sink.write([first, second], ignore)
    receipt = case.sink.write([first, second], ignore)
    assert (receipt.published, receipt.duplicates) == (0, 1540)
    assert case.ids() == ids_of(first, second)


def test_a_receipt_says_how_far_it_is_even_when_all_were_there(case: Case) -> None:
    case.sink.prepare()
    for _ in range(2):
        receipt = case.sink.write([batch_of(5, 1), batch_of(7, 2)], ignore)
        assert receipt.position == {PartitionId("shop"): Place("00000000/00000002", 6)}
        assert pickle.loads(pickle.dumps(receipt)) == receipt


def test_what_a_sink_knows_of_itself_is_a_bookmark(telling_case: Case) -> None:
    """The place and the mark of the last change that is stored, as another process sees it."""
    case, shop, other = telling_case, PartitionId("shop"), PartitionId("other")
    case.sink.prepare()
    assert isinstance(case.sink, ReportsPositions)
    assert case.sink.records("default", [shop]) == {shop: Record()}
    for commit in (1, 2):
        marks = [None, *(f'{{"token":"{commit}-{n}"}}' for n in range(1, 5))]
        case.sink.write([batch_of(5, commit, mark=marks)], ignore)
        sink = case.again()
        assert isinstance(sink, ReportsPositions)
        last = Bookmark(Place(f"00000000/{commit:08X}", 4), {"token": f"{commit}-4"})
        exact = getattr(case.sink.settings, "delivery", "auto") in ("auto", "exactly-once")
        expected = Record(bookmark=last if exact else None, begun=True)
        assert sink.records("default", [shop, other]) == {shop: expected, other: Record()}
    case.sink.write([batch_of(1, 3)], ignore)
    record = case.again().records("default", [shop])[shop]
    assert record.bookmark in (None, Bookmark(Place("00000000/00000003", 0), {}))


@pytest.mark.slow
def test_a_crash_after_a_write_is_once(case: Case) -> None:
    case.sink.prepare()
    case.sink.write([batch_of(1200, 1)], ignore)
    # The driver died; another process does the same micro-batch again, cut differently.
    again = case.again()
    again.prepare()
    receipt = again.write([batch_of(500, 1), batch_of(700, 1, start=500), batch_of(10, 2)], ignore)
    assert (receipt.published, receipt.duplicates) == (10, 1200)
    assert case.ids() == ids_of(batch_of(1200, 1), batch_of(10, 2))


@pytest.mark.slow
def test_a_write_that_was_cut_short_is_completed(case: Case) -> None:
    case.sink.prepare()

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch_of(1100, 1)
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        case.sink.write(failing(), ignore)
    receipt = case.sink.write([batch_of(1100, 1), batch_of(30, 2)], ignore)
    assert receipt.published + receipt.duplicates == 1130
    assert case.ids() == ids_of(batch_of(1100, 1), batch_of(30, 2))


@pytest.mark.slow
def test_a_generator_is_written_as_a_list_is(any_case: Case) -> None:
    any_case.sink.prepare()
    batches = [batch_of(3, n) for n in range(1, 60)]
    receipt = any_case.sink.write((batch for batch in batches), ignore)
    assert receipt.published == 177
    assert any_case.ids() == ids_of(*batches)


def test_a_write_without_a_progress_is_a_type_error(any_case: Case) -> None:
    write: Any = any_case.sink.write
    with pytest.raises(TypeError, match="progress"):
        write([])


def test_progress_is_made_while_the_iterator_goes_on(any_case: Case) -> None:
    """That of an open micro-batch goes on for an hour, and the source must be acknowledged."""
    any_case.sink.prepare()
    progress, deadline = Noted(), time.monotonic() + 60

    def slow() -> Iterator[pa.RecordBatch]:
        for commit in (1, 2):
            yield batch_of(3, commit)
            while progress.position.get(SHOP) != Place(f"00000000/{commit:08X}", 2):
                assert time.monotonic() < deadline, progress.position
                yield batch_of(0)
                time.sleep(0.001)

    assert any_case.sink.write(slow(), progress).position == progress.position


@pytest.mark.slow
def test_nothing_counts_as_stored_before_it_is_durable(any_case: Case) -> None:
    any_case.sink.prepare()
    batches = [batch_of(200, commit) for commit in range(1, 9)]
    ids = {
        Place(f"00000000/{commit:08X}", number): event
        for commit, batch in enumerate(batches, 1)
        for number, event in enumerate(ids_of(batch))
    }
    missing: list[set[str]] = []

    class Checked(Noted):
        def stored(self, position: Position) -> None:
            super().stored(position)
            due = {event for place, event in ids.items() if place <= position[SHOP]}
            missing.append(due.difference(any_case.ids()))

    progress = Checked()

    def cut_short() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches[:6]):
            yield batch
            while number == 3 and not progress.position:
                yield batch_of(0)
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        any_case.sink.write(cut_short(), progress)
    receipt = any_case.sink.write(batches, progress)
    assert len(missing) >= 1
    assert missing == [set()] * len(missing)
    # And what was not passed on is in the receipt.
    assert receipt.position == {SHOP: max(ids)}
    assert progress.position[SHOP] <= max(ids)


@pytest.mark.slow
def test_two_tasks_of_one_process_write_at_once(any_case: Case) -> None:
    if isinstance(any_case.sink, JetStreamSink):
        settings = any_case.sink.settings
        subject = f"{settings.stream}.{{backend}}.{{source_partition}}.{{collection}}"
        any_case.sink = JetStreamSink(settings.model_copy(update={"subject": subject}))
    any_case.sink.prepare()
    parts = [[batch_of(300, n, partition=p) for n in range(1, 9)] for p in ("a", "b")]
    parts = [
        [
            batch.set_column(
                4, "event_id", pa.array([f"{p}{one}" for one in ids_of(batch)], pa.string())
            ).cast(batch.schema)
            for batch in part
        ]
        for p, part in zip("ab", parts, strict=True)
    ]
    with ThreadPoolExecutor(2) as pool:
        receipts: list[Receipt] = list(pool.map(any_case.sink.write, parts, (ignore, ignore)))
    assert [receipt.published for receipt in receipts] == [2400, 2400]
    ids = any_case.ids()
    for p, part in zip("ab", parts, strict=True):
        assert [one for one in ids if one.startswith(p)] == ids_of(*part)


def test_images_come_out_whichever_encoding_they_had(any_case: Case) -> None:
    any_case.sink.prepare()
    changes = [batch_of(2, 1, images="json"), batch_of(2, 2, images="msgpack")]
    assert any_case.sink.write(changes, ignore).published == 4


def test_a_sink_checks_itself_without_errors(any_case: Case) -> None:
    findings = any_case.sink.check()
    assert findings
    assert not [finding for finding in findings if finding.level == "error"]
