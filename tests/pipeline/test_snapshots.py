"""A consumer that starts from nothing: a snapshot of a running pipeline, then the changes."""

import json
import subprocess
import sys
import threading
import uuid
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import ormsgpack
import psycopg
import pytest

from penstock.model.errors import Unavailable
from penstock.model.position import Place
from penstock.nats.api import JetStream, Stored
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.nats.services import asked
from penstock.nats.settings import NatsSettings
from penstock.tables.fold import Fold
from tests.pipeline.running import Run, document, eventually, messages, running, slot_of
from tests.servers import Database, Nats
from tests.slots import drop_slot


@pytest.mark.timeout(600)
def test_a_snapshot_and_the_changes_after_it_are_the_table(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """Without a gap and without a double, while the table changes all the time; several times."""
    table = f"items_{database.name}"
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int, big text);"
        f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL;"
        f"INSERT INTO {table} SELECT n, 0, repeat('x', 3000) FROM generate_series(1, 3000) n;"
        "CREATE PUBLICATION pub FOR ALL TABLES"
    )
    pipeline = document(tmp_path, database, nats, stream, snapshot={"chunk_rows": 200})
    connection = Connection(NatsSettings.model_validate({"url": nats.url, "timeout": 60}))
    with closing(connection), running(tmp_path, pipeline) as run:
        connection.open()
        eventually(lambda: slot_of(database)[2] and answers(connection), run=run)
        stop = threading.Event()
        writer = threading.Thread(target=write, args=(database, table, stop))
        writer.start()
        try:
            metas = [snapshot(run, table, connection) for _ in range(3)]
        finally:
            stop.set()
            writer.join()
        database.execute(f"INSERT INTO {table} VALUES (-1, 0, 'the last')")
        eventually(lambda: is_the_last(JetStream(connection).last(stream, ">")), run=run)
        changes = messages(nats, stream)
        assert run.stop() == 0
        rows_of = [chunk_rows(connection, table, meta) for meta in metas]
        document_ = Bucket(connection, "schemas").get(table)
    expected = {
        row[0]: {"id": row[0], "n": row[1], "big": row[2]}
        for row in database.execute(f"SELECT id, n, big FROM {table}")
    }
    for meta, rows in zip(metas, rows_of, strict=True):
        assert len(rows) == meta["row_count"]
        fold: Fold[int] = Fold(lambda change: int(change["key"]["id"]))
        fold.rows.update({row["id"]: row for row in rows})
        start = Place.parse(meta["position"])
        after = [one for one in changes if Place.parse(one.body["position"]) >= start]
        assert after, "nothing changed meanwhile"
        first = changes.index(after[0])
        assert meta["start_sequence"] <= first + 1
        for one in after:
            fold.apply(one.body)
        assert dict(fold.rows) == expected
        assert {one.headers["Penstock-Table-Schema"] for one in after} == {meta["schema_version"]}
    assert document_ is not None
    assert ormsgpack.unpackb(document_.value or b"")["version"] == metas[0]["schema_version"]


def write(database: Database, table: str, stop: threading.Event) -> None:
    """Inserts, updates with a large value that is not sent, changes of keys, and deletes."""
    number = 3000
    with psycopg.connect(database.url) as connection:
        while not stop.wait(0.01):
            number += 1
            for statement in (
                f"INSERT INTO {table} VALUES ({number}, 1, repeat('y', 3000))",
                f"UPDATE {table} SET n = n + 1 WHERE id = {number * 7 % 3000}",
                f"UPDATE {table} SET id = {number + 10**6} WHERE id = {number * 11 % 3000}",
                f"DELETE FROM {table} WHERE id = {number * 13 % 3000}",
            ):
                connection.execute(statement.encode())
            connection.commit()


def answers(connection: Connection) -> bool:
    """Whether the service answers requests already."""
    with suppress(Unavailable):
        return b"error" in asked(connection, "snapshot.cancel.none", b"", 60).payload
    return False


def snapshot(run: Run, table: str, connection: Connection) -> dict[str, Any]:
    """Takes one as people do, and returns its meta."""
    command = [sys.executable, "-m", "penstock", "snapshot", str(run.file), table, "--json"]
    found = subprocess.run(command, capture_output=True, timeout=180, check=False, text=True)
    assert found.returncode == 0, found.stderr + run.log[-3000:]
    record = json.loads(found.stdout)
    assert record["state"] == "done"
    stored = JetStream(connection).last("INIT", f"init.meta.{table}")
    assert stored is not None
    meta: dict[str, Any] = ormsgpack.unpackb(stored.payload)
    assert meta["snapshot_id"] == record["snapshot_id"]
    return meta


def chunk_rows(connection: Connection, table: str, meta: dict[str, Any]) -> list[dict[str, Any]]:
    api, rows = JetStream(connection), list[dict[str, Any]]()
    for chunk in meta["chunks"]:
        stored = api.message("INIT", chunk["sequence"])
        assert stored is not None
        assert stored.subject == f"init.snap.{table}.{meta['snapshot_id']}.{chunk['chunk']}"
        rows += ormsgpack.unpackb(stored.payload)["data"]
    return rows


def is_the_last(message: Stored | None) -> bool:
    return message is not None and ormsgpack.unpackb(message.payload)["document_id"] == "-1"


@pytest.mark.timeout(600)
def test_nothing_goes_around_a_transform(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """Whatever asks for a snapshot: no stream and no bucket has what the statements mask, nor rows
    of a table that they leave out."""
    masked, left_out = f"masked-{uuid.uuid4().hex}", f"left-out-{uuid.uuid4().hex}"
    table, secrets = f"people_{database.name}", f"secrets_{database.name}"
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, ssn text);"
        f"CREATE TABLE {secrets} (id int PRIMARY KEY, what text);"
        f"INSERT INTO {table} SELECT n, '{masked}' FROM generate_series(1, 3000) n;"
        f"INSERT INTO {secrets} SELECT n, '{left_out}' FROM generate_series(1, 100) n;"
        "CREATE PUBLICATION pub FOR ALL TABLES"
    )
    sql = (
        "SELECT * EXCEPT (after), regexp_replace(after, 'masked-[0-9a-f]+', '***') AS after"
        f" FROM changes WHERE collection <> '{secrets}'"
    )
    pipeline = document(
        tmp_path, database, nats, stream, transform=[{"sql": sql}],
        snapshot={"initial": True, "chunk_rows": 200},
    )  # fmt: skip
    pipeline["backends"][0]["on_gap"] = "resnapshot"
    connection = Connection(NatsSettings.model_validate({"url": nats.url, "timeout": 60}))

    def done(count: int) -> bool:
        found = run.status()["backends"][0]["snapshots"]["runs"]
        assert set(found) <= {"done"}
        return int(found.get("done", 0)) >= count

    with closing(connection), running(tmp_path, pipeline) as run:
        connection.open()
        eventually(lambda: done(2), run=run)  # the initial ones
        database.execute(f"UPDATE {table} SET ssn = ssn || ' changed' WHERE id = 1")
        database.execute(f"INSERT INTO {secrets} VALUES (0, '{left_out}')")
        eventually(lambda: messages(nats, stream), run=run)
        meta = snapshot(run, table, connection)
        assert meta["row_count"] == 3000
        rows = {row["id"]: row["ssn"] for row in chunk_rows(connection, table, meta)}
        assert rows == {1: "*** changed"} | dict.fromkeys(range(2, 3001), "***")
        assert snapshot(run, secrets, connection)["row_count"] == 0
        assert "no row of a snapshot comes through transform" in run.log
        drop_slot(database, f"slot_{database.name}", taken=True)
        eventually(lambda: done(6), run=run)  # those after the gap
        eventually(lambda: "lost changes are mended" in run.log, run=run)
        assert run.stop() == 0
        stored = everything(JetStream(connection))
    changed = {subject for name, subject, _ in stored if name == stream}
    assert {table in subject for subject in changed} == {True}
    assert len([1 for *_, body in stored if b"***" in body]) > 3 * 3000 // 200
    for where, subject, body in stored:
        assert masked.encode() not in body and left_out.encode() not in body, (where, subject)
    assert masked not in run.log and left_out not in run.log


def everything(api: JetStream) -> list[tuple[str, str, bytes]]:
    """(stream, subject, headers and body) of all that the server has; buckets are streams."""
    found: list[tuple[str, str, bytes]] = []
    for name in api._call("STREAM.NAMES", {})["streams"]:
        for message in api.each(name, ">"):
            whole = repr(message.headers).encode() + message.payload
            found.append((name, message.subject, whole))
    return found
