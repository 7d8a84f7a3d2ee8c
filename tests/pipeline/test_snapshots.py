"""Snapshots of a running pipeline with a transform; test_shared.py takes some of one without."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from tests.pipeline.running import Run, document, eventually, messages, running
from tests.servers import Database, Nats
from tests.slots import drop_slot


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


@pytest.mark.timeout(600)
def test_nothing_goes_around_a_transform(
    database: Database, own_nats: Callable[..., Nats], stream: str, tmp_path: Path
) -> None:
    """Whatever asks for a snapshot: no stream and no bucket of a server has what the statements
    mask, nor rows of a table that they leave out."""
    nats = own_nats()
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
