"""One pipeline, from its first start to its kill, and the claims that need no other: a start of
Spark is what takes time."""

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import ormsgpack
import psutil
import psycopg
import pytest

from penstock.consumer.compare import Fold
from penstock.model.errors import Unavailable
from penstock.model.position import Place
from penstock.nats.api import JetStream, Stored
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.nats.services import asked
from penstock.nats.settings import NatsSettings
from tests.pipeline.running import (
    Message,
    Run,
    assert_none_is_left,
    commands,
    count,
    document,
    eventually,
    messages,
    running,
    slot_of,
)
from tests.pipeline.test_snapshots import chunk_rows, snapshot
from tests.servers import Database, Nats, Postgres
from tests.workers import FORK_SERVER, python_workers

STREAM = "SHARED"

TABLES = """
CREATE TABLE customers (id bigserial PRIMARY KEY, name text, balance numeric(12,2));
CREATE TABLE unpublished (n int);
CREATE TYPE odd;
CREATE FUNCTION odd_in(cstring) RETURNS odd AS 'textin' LANGUAGE internal IMMUTABLE;
CREATE FUNCTION odd_out(odd) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE;
CREATE TYPE odd (INPUT = odd_in, OUTPUT = odd_out, LIKE = text);
CREATE TABLE strange (id int PRIMARY KEY, seen odd);
CREATE TABLE items (id bigserial PRIMARY KEY);
CREATE TABLE kept (id int PRIMARY KEY, n int, big text);
ALTER TABLE kept ALTER big SET STORAGE EXTERNAL;
INSERT INTO kept SELECT n, 0, repeat('x', 3000) FROM generate_series(1, 3000) n;
CREATE PUBLICATION pub FOR TABLE customers, strange, items, kept
"""


@dataclass(frozen=True, slots=True)
class Shared:
    run: Run
    database: Database
    nats: Nats

    def of(self, table: str) -> list[Message]:
        """The messages of one table; the others are another test's."""
        everything = messages(self.nats, STREAM)
        return [message for message in everything if message.body["collection"] == table]


def family(run: Run) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


def fork_server(run: Run) -> psutil.Process:
    (server,) = (
        child
        for child in psutil.Process(run.process.pid).children()
        if any(FORK_SERVER in word for word in commands([child]))
    )
    return server


def kinds(run: Run) -> list[str]:
    """What each of its Python workers is."""
    return sorted(python_workers(psutil.Process(run.process.pid)).values())


def ready(run: Run) -> bool:
    code, body = run.get("/ready")
    assert json.loads(body)["ready"] is (code == 200)
    return code == 200


@pytest.fixture(scope="module")
def shared(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """What is written after the first 200 of /ready is delivered."""
    folder = tmp_path_factory.mktemp("one")
    with Nats() as nats, postgres.database() as database:
        database.execute(TABLES)
        database.execute("INSERT INTO items DEFAULT VALUES")
        pipeline = document(folder, database, nats, STREAM, snapshot={"chunk_rows": 200})
        with running(folder, pipeline) as run:
            eventually(lambda: run.url, run=run)
            code, body = run.get("/ready")
            assert (code, json.loads(body)["reasons"]) == (503, ["backend default: has not begun"])
            eventually(lambda: ready(run), run=run)
            insert(database, 100)
            eventually(lambda: run.status()["sinks"][0]["acknowledged"] == 100, run=run)
            yield Shared(run, database, nats)


def test_an_idle_slot_moves_within_seconds(shared: Shared) -> None:
    shared.database.execute("INSERT INTO unpublished SELECT generate_series(1, 10000)")
    target = slot_of(shared.database)[1]
    eventually(
        lambda: shared.database.execute(
            "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
            " WHERE database = current_database()",
            (target,),
        )[0][0],
        run=shared.run,
    )


def test_what_an_operator_sees(shared: Shared) -> None:
    run = shared.run
    before = run.status()["sinks"][0]["acknowledged"]
    shared.database.execute("INSERT INTO customers (name, balance) VALUES ('Ada', 10.50)")
    eventually(lambda: run.status()["sinks"][0]["acknowledged"] == before + 1, run=run)
    status = eventually(lambda: run.status() if run.status()["last_batch"] else None, run=run)
    backend = status["backends"][0]
    assert backend["connected"] is True
    assert backend["details"]["slot"] == f"slot_{shared.database.name}"
    assert "triggerExecution" in status["last_batch"]["timings"]
    assert status["sinks"][0]["published"] == before + 1
    metrics = run.get("/metrics")[1]
    assert "# HELP penstock_" in metrics
    assert "# TYPE penstock_" in metrics
    code, info = run.get(f"/streams/info?stream={STREAM}")
    assert code == 200, info
    assert json.loads(info)["state"]["messages"] == before + 1
    assert run.get("/streams/info?stream=NOT_THERE")[0] == 404
    assert shared.database.url not in run.log


def test_a_type_nobody_knows_is_its_text_and_said_once(shared: Shared) -> None:
    for number in (1, 2):
        shared.database.execute("INSERT INTO strange VALUES (%s, 'as it is')", (number,))
        eventually(lambda n=number: len(shared.of("strange")) == n, run=shared.run)
    eventually(lambda: "delivered as its text" in shared.run.log, run=shared.run)
    texts = [message.body["data"]["seen"] for message in shared.of("strange")]
    assert texts == ["as it is", "as it is"]
    assert shared.run.log.count("delivered as its text") == 1


@pytest.mark.timeout(600)
def test_a_snapshot_and_the_changes_after_it_are_the_table(shared: Shared) -> None:
    """For a consumer that starts from nothing: without a gap and without a double, while the table
    changes all the time; several times."""
    run, database, nats = shared.run, shared.database, shared.nats
    connection = Connection(NatsSettings.model_validate({"url": nats.url, "timeout": 60}))
    with closing(connection):
        connection.open()
        eventually(lambda: answers(connection), run=run)
        stop = threading.Event()
        writer = threading.Thread(target=write, args=(database, stop))
        writer.start()
        try:
            metas = [snapshot(run, "kept", connection) for _ in range(3)]
        finally:
            stop.set()
            writer.join()
        database.execute("INSERT INTO kept VALUES (-1, 0, 'the last')")
        eventually(lambda: is_the_last(JetStream(connection).last(STREAM, ">")), run=run)
        stored = messages(nats, STREAM)
        rows_of = [chunk_rows(connection, "kept", meta) for meta in metas]
        document_ = Bucket(connection, "schemas").get("kept")
    expected = {
        row[0]: {"id": row[0], "n": row[1], "big": row[2]}
        for row in database.execute("SELECT id, n, big FROM kept")
    }
    for meta, rows in zip(metas, rows_of, strict=True):
        assert len(rows) == meta["row_count"]
        fold: Fold[int] = Fold(lambda change: int(change["key"]["id"]))
        fold.rows.update({row["id"]: row for row in rows})
        start = Place.parse(meta["position"])
        after = [one for one in stored if Place.parse(one.body["position"]) >= start]
        assert after, "nothing changed meanwhile"
        assert meta["start_sequence"] <= stored.index(after[0]) + 1
        for one in after:
            fold.apply(one.body)
        assert dict(fold.rows) == expected
        assert {one.headers["Penstock-Table-Schema"] for one in after} == {meta["schema_version"]}
    assert document_ is not None
    assert ormsgpack.unpackb(document_.value or b"")["version"] == metas[0]["schema_version"]


def write(database: Database, stop: threading.Event) -> None:
    """Inserts, updates with a large value that is not sent, changes of keys, and deletes."""
    number = 3000
    with psycopg.connect(database.url) as connection:
        while not stop.wait(0.01):
            number += 1
            for statement in (
                f"INSERT INTO kept VALUES ({number}, 1, repeat('y', 3000))",
                f"UPDATE kept SET n = n + 1 WHERE id = {number * 7 % 3000}",
                f"UPDATE kept SET id = {number + 10**6} WHERE id = {number * 11 % 3000}",
                f"DELETE FROM kept WHERE id = {number * 13 % 3000}",
            ):
                connection.execute(statement.encode())
            connection.commit()


def answers(connection: Connection) -> bool:
    """Whether the service answers requests already."""
    with suppress(Unavailable):
        return b"error" in asked(connection, "snapshot.cancel.none", b"", 60).payload
    return False


def is_the_last(message: Stored | None) -> bool:
    return message is not None and ormsgpack.unpackb(message.payload)["document_id"] == "-1"


@pytest.mark.timeout(600)
def test_a_pipeline_from_its_first_change_to_its_kill(shared: Shared) -> None:
    """It is not ready while its sink is away; its workers are forks of one process; a killed
    service leaves none."""
    run, nats = shared.run, shared.nats
    nats.stop()
    insert(shared.database, 50)
    eventually(lambda: not ready(run), run=run)
    nats.start()
    eventually(lambda: ready(run), run=run)
    eventually(lambda: len(shared.of("items")) == 150, run=run)
    ids = [message.body["data"]["id"] for message in shared.of("items")]
    assert ids == list(range(2, 152))
    server = fork_server(run)
    # The planner, and the worker of the open micro-batch: those that are done are gone.
    eventually(lambda: kinds(run) == ["source_runner", "worker"], run=run)
    everything = family(run)
    sockets = Path(tempfile.gettempdir()).glob(f"penstock-run-{run.process.pid}-*/sockets/.*")
    assert list(sockets), "a killed run would leave its sockets behind"
    # Every worker is one of them: no other process has imported PySpark.
    forks = server.children(recursive=True)
    rest = commands([each for each in everything if each not in (server, *forks)])
    pythons = [word for word in rest if "python" in word.partition(" ")[0]]
    assert pythons, "each fork has a launcher"
    assert [word for word in pythons if "launcher.py" not in word] == []
    run.kill()
    assert_none_is_left(everything)
    assert "Traceback" not in run.log


def insert(database: Database, rows: int) -> None:
    database.execute("INSERT INTO items SELECT FROM generate_series(1, %s::int)", (rows,))


@pytest.mark.thorough  # rarely fails
@pytest.mark.timeout(600)
def test_without_the_fork_server_a_killed_service_leaves_no_worker(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE items (id bigserial PRIMARY KEY)")
    database.execute("CREATE PUBLICATION pub FOR TABLE items")
    pipeline = document(tmp_path, database, nats, stream, spark={"fork_server": False})
    with running(tmp_path, pipeline) as run:
        eventually(lambda: slot_of(database)[2], run=run)
        database.execute("INSERT INTO items DEFAULT VALUES")
        eventually(lambda: count(nats, stream) == 1, run=run)
        eventually(lambda: {"source_runner", "worker"} <= set(kinds(run)), run=run)
        everything = family(run)
        started = commands(everything)
        assert [word for word in started if FORK_SERVER in word or "launcher.py" in word] == []
        run.kill()
        assert_none_is_left(everything)
