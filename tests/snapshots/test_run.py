"""One snapshot, on real servers: chunks, then the meta; or nothing."""

import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from penstock.config import SnapshotSettings
from penstock.errors import LeaseLost, Rejected, SettingsError, Unavailable
from penstock.nats.buckets import Bucket
from penstock.position import Bookmark, PartitionId
from penstock.snapshots.run import Cancelled, SnapshotRun
from tests.servers import Database, Nats
from tests.snapshots.conftest import World, read
from tests.snapshots.gate import Gate

pytestmark = pytest.mark.live

PEOPLE = (
    "CREATE TABLE {0} (id int PRIMARY KEY, name text, ok bool, n numeric);"
    "INSERT INTO {0} SELECT n, 'n' || n, n % 2 = 0, n / 10.0 FROM generate_series(1, {1}) n"
)


def table_of(world: World, rows: int) -> str:
    name = f"people_{world.database.name}"
    world.database.execute(PEOPLE.format(name, rows))
    world.feed.begin()
    return name


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("encoding", ["json", "msgpack", "arrow"])
def test_25_000_rows_are_chunks_and_a_meta(encoding: str, world_of: Callable[[str], World]) -> None:
    world = world_of(encoding)
    table = table_of(world, 25_000)
    run = world.run(table, chunk_rows=4_000, chunk_bytes=2**20)
    messages = world.chunks(run)
    bodies = [read(one) for one in messages]
    rows = [row for body in bodies for row in body["data"]]
    assert sorted(row["id"] for row in rows) == list(range(1, 25_001))
    meta = world.meta(table)
    assert meta["row_count"] == 25_000
    assert meta["batch_count"] == len(messages) == len(meta["chunks"]) == run.progress.chunks
    assert max(len(body["data"]) for body in bodies) <= 4_000
    by_sequence = {one.sequence: one for one in messages}
    for chunk in meta["chunks"]:
        message = by_sequence[chunk["sequence"]]
        body = read(message)
        assert (int(body["chunk"]), len(body["data"])) == (chunk["chunk"], chunk["rows"])
        assert zlib.crc32(message.payload) == chunk["crc32"]
        assert len(message.payload) == chunk["bytes"] <= 2**20
        assert message.subject.endswith(f".{chunk['chunk']}")
        identity = f"init-{table}-{run.job.snapshot_id}-{chunk['chunk']}"
        assert message.headers["Nats-Msg-Id"] == identity
        assert message.headers["Penstock-Table-Schema"] == meta["schema_version"]
        assert (body["table"], body["schema"], body["operation"], body["lsn"]) == (
            table, "public", "snapshot", meta["lsn"],
        )  # fmt: skip
    assert sorted(chunk["chunk"] for chunk in meta["chunks"]) == list(range(len(messages)))
    assert meta["columns"] == ["id", "name", "ok", "n"]
    assert Bucket(world.connection, "schemas").get(table) is not None


def test_an_empty_table_has_a_meta_without_chunks(world: World) -> None:
    table = table_of(world, 0)
    run = world.run(table)
    assert world.chunks(run) == []
    meta = world.meta(table)
    assert (meta["batch_count"], meta["row_count"], meta["chunks"]) == (0, 0, [])


def test_chunks_are_cut_by_bytes(world: World) -> None:
    table = f"wide_{world.database.name}"
    world.database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v text);"
        f"INSERT INTO {table} SELECT n, repeat('x', 1000) FROM generate_series(1, 300) n;"
        f"INSERT INTO {table} VALUES (301, repeat('y', 50000))"
    )
    world.feed.begin()
    run = world.run(table, chunk_bytes=16384)
    sizes = sorted(len(one.payload) for one in world.chunks(run))
    assert sizes[-1] > 50_000 > 16384 >= sizes[-2]  # a larger row is alone
    assert world.meta(table)["row_count"] == 301


def test_a_row_that_the_server_does_not_take_ends_the_run(world: World) -> None:
    table = f"huge_{world.database.name}"
    world.database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v text);"
        f"INSERT INTO {table} SELECT n, repeat('x', 20) FROM generate_series(1, 300) n;"
        f"INSERT INTO {table} VALUES (301, repeat('y', 2000000))"
    )
    world.feed.begin()
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=100))
    with pytest.raises(Rejected, match=r"a row of public\..*the server takes"):
        run.run()
    assert world.chunks(run) == []
    assert world.api.last("INIT", f"init.meta.{table}") is None


def test_a_cancelled_run_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table, gate = table_of(world, 20_000), Gate(monkeypatch, "init.snap.", 3)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        gate.reached()
        run.cancel()
        gate.open()
        with pytest.raises(Cancelled):
            running.result(60)
    assert run.progress.chunks < 400
    assert world.chunks(run) == []


def test_a_lost_connection_ends_the_run_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, gate = table_of(world, 20_000), Gate(monkeypatch, "init.snap.", 3)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        gate.reached()
        # Readers of the table, and whoever holds the snapshot.
        world.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
            " current_database() AND application_name = 'penstock' AND backend_type ="
            " 'client backend'"
        )
        gate.open()
        with pytest.raises(Unavailable):
            running.result(60)
    assert world.chunks(run) == []
    assert world.api.last("INIT", f"init.meta.{table}") is None


def test_a_server_that_starts_again_meanwhile_gets_every_chunk_once(
    database: Database, own_nats: Callable[..., Nats], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_nats()
    world = World(database, server)
    table, gate = table_of(world, 20_000), Gate(monkeypatch, "init.snap.", 3)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        gate.reached()
        server.kill()
        gate.open()
        server.start()
        running.result(120)
    world.reconnect()
    rows = [row["id"] for one in world.chunks(run) for row in read(one)["data"]]
    world.connection.close()
    assert sorted(rows) == list(range(1, 20_001))
    assert run.progress.rows == 20_000


def test_chunks_that_are_gone_forbid_the_meta(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of the stream, or another instance that took the snapshot up."""
    table, gate = table_of(world, 2_000), Gate(monkeypatch, "init.snap.", 3)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=100))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        gate.reached()
        world.api.purge("INIT", f"init.snap.{table}.>")
        gate.open()
        with pytest.raises(Unavailable, match=r"20 chunks were stored.* has 1[89] of them"):
            running.result(60)
    assert world.chunks(run) == []
    assert world.api.last("INIT", f"init.meta.{table}") is None


def test_a_run_that_is_not_ours_any_more_has_no_meta(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, gate = table_of(world, 2_000), Gate(monkeypatch, "init.snap.", 20)
    lost = threading.Event()
    job = world.job(table, is_ours=lambda: not lost.is_set())
    run = SnapshotRun(job, world.sink, SnapshotSettings(chunk_rows=100))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        gate.reached()
        lost.set()
        gate.open()
        with pytest.raises(LeaseLost):
            running.result(60)
    assert world.chunks(run) == []
    assert world.api.last("INIT", f"init.meta.{table}") is None


def test_chunks_stay_when_the_answer_to_the_meta_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(world, 10)
    Gate(monkeypatch, "init.meta.", then=Unavailable("away")).open()
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings())
    with pytest.raises(Unavailable, match="away"):
        run.run()
    assert len(world.chunks(run)) == 1
    assert world.meta(table)["snapshot_id"] == run.job.snapshot_id


def test_another_history_meanwhile_fails_the_run(world: World) -> None:
    """Its changes sort after the position, though they may be of before it."""
    table = table_of(world, 10)
    slot = PartitionId(f"s_{world.database.name}")
    known = iter([{}, {slot: Bookmark(None, {"era": "e0001-"})}])
    run = SnapshotRun(world.job(table, known=lambda: next(known)), world.sink, SnapshotSettings())
    with pytest.raises(Unavailable, match="history"):
        run.run()
    assert world.chunks(run) == []
    assert world.api.last("INIT", f"init.meta.{table}") is None


def test_a_cancelled_run_waits_for_no_old_transaction(world: World) -> None:
    table = table_of(world, 10)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(patience=600))
    ours = "datname = current_database() AND backend_type = 'walsender'"
    waiting = f"SELECT 1 FROM pg_stat_activity WHERE {ours} AND wait_event_type = 'Lock'"
    left = (
        f"SELECT 1 FROM pg_stat_activity WHERE {ours} UNION ALL SELECT 1 FROM pg_replication_slots"
        " WHERE database = current_database() AND temporary"
    )
    with psycopg.connect(world.database.url) as connection, ThreadPoolExecutor() as pool:
        connection.execute(f"INSERT INTO {table} VALUES (0)".encode())
        running = pool.submit(run.run)
        until(lambda: bool(world.database.execute(waiting)))
        run.cancel()
        with pytest.raises(Cancelled):
            running.result(60)
        until(lambda: not world.database.execute(left))


def test_a_run_that_is_cancelled_waits_for_no_server(
    database: Database, own_nats: Callable[..., Nats], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.snapshots.init_stream._PATIENCE", 600.0)
    server = own_nats()
    world = World(database, server)
    table, gate = table_of(world, 1_000), Gate(monkeypatch, "init.snap.", 3)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        gate.reached()
        server.kill()
        gate.open()
        run.cancel()
        with pytest.raises(Cancelled):
            running.result(60)


def test_an_unknown_table_is_refused(world: World) -> None:
    world.feed.begin()
    with pytest.raises(SettingsError):
        world.run("absent")


def test_the_changes_after_the_start_sequence_are_all_that_follow(world: World) -> None:
    table = table_of(world, 10)
    run = world.run(table)
    assert world.meta(table)["start_sequence"] == 1  # no stream of changes yet
    assert world.meta(table)["position"] == run.progress.position
