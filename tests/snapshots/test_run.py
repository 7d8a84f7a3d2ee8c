"""One snapshot, on real servers: chunks, then the meta; or nothing."""

import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.config import SnapshotSettings
from penstock.errors import Rejected, SettingsError, Unavailable
from penstock.nats.buckets import Bucket
from penstock.snapshots.run import Cancelled, SnapshotRun
from tests.servers import Database, Nats
from tests.snapshots.conftest import World, read

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


def test_a_cancelled_run_leaves_nothing(world: World) -> None:
    table = table_of(world, 20_000)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50))
    failed: list[BaseException] = []

    def take() -> None:
        try:
            run.run()
        except Cancelled as error:
            failed.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    while thread.is_alive() and run.progress.chunks < 3:
        thread.join(0.01)
    run.cancel()
    thread.join(60)
    assert len(failed) == 1
    assert run.progress.chunks < 400
    assert world.chunks(run) == []


def test_a_lost_connection_ends_the_run_and_leaves_nothing(world: World) -> None:
    table = table_of(world, 20_000)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        while not running.done() and run.progress.chunks < 3:
            time.sleep(0.01)
        # Readers of the table, and whoever holds the snapshot.
        world.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
            " current_database() AND application_name = 'penstock' AND backend_type ="
            " 'client backend'"
        )
        with pytest.raises(Unavailable):
            running.result(60)
    assert world.chunks(run) == []
    assert world.api.last("INIT", f"init.meta.{table}") is None


def test_a_server_that_starts_again_meanwhile_gets_every_chunk_once(
    database: Database, own_nats: Callable[..., Nats]
) -> None:
    server = own_nats()
    world = World(database, server)
    table = table_of(world, 20_000)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        while not running.done() and run.progress.chunks < 3:
            time.sleep(0.01)
        server.kill()
        server.start()
        running.result(120)
    world.reconnect()
    rows = [row["id"] for one in world.chunks(run) for row in read(one)["data"]]
    world.connection.close()
    assert sorted(rows) == list(range(1, 20_001))
    assert run.progress.rows == 20_000


def test_an_unknown_table_is_refused(world: World) -> None:
    world.feed.begin()
    with pytest.raises(SettingsError):
        world.run("absent")


def test_the_changes_after_the_start_sequence_are_all_that_follow(world: World) -> None:
    table = table_of(world, 10)
    run = world.run(table)
    assert world.meta(table)["start_sequence"] == 1  # no stream of changes yet
    assert world.meta(table)["position"] == run.progress.position
