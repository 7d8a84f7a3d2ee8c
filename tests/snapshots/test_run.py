"""One snapshot, on real servers: chunks, then the meta; or nothing."""

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from psycopg import sql

from penstock.config import SnapshotSettings
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.feeds.postgres.cutting import Published, TableRange, range_query
from penstock.feeds.postgres.snapshot import PostgresRowSource, PostgresSnapshot
from penstock.model.errors import LeaseLost, PenstockError, Rejected, SettingsError, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.nats.buckets import Bucket
from penstock.snapshots.job import Cancelled
from penstock.snapshots.store import SnapshotRun
from penstock.wire.pgoutput.lsn import parse_lsn
from tests.servers import Database, Nats
from tests.snapshots.conftest import StatedPipeline, World, read
from tests.snapshots.gate import Gate
from tests.waiting import until

PEOPLE = (
    "CREATE TABLE {0} (id int PRIMARY KEY, name text, ok bool, n numeric);"
    "INSERT INTO {0} SELECT n, 'n' || n, n % 2 = 0, n / 10.0 FROM generate_series(1, {1}) n"
)


def table_of(world: World, rows: int) -> str:
    name = f"people_{world.database.name}"
    world.database.execute(PEOPLE.format(name, rows))
    world.feed.begin()
    return name


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("encoding", ["json", "msgpack", "arrow"])
def test_25_000_rows_are_chunks_and_a_meta(
    encoding: str, compression: str, world_of: Callable[[str], World]
) -> None:
    world = world_of(encoding)
    table = table_of(world, 25_000)
    run = world.run(table, chunk_rows=4_000, chunk_bytes=2**20, compression=compression)
    messages = world.chunks(run)
    bodies = [read(one) for one in messages]
    rows = [row for body in bodies for row in body["data"]]
    assert sorted(row["id"] for row in rows) == list(range(1, 25_001))
    meta = world.meta(table)
    assert (meta["row_count"], meta["compression"]) == (25_000, compression)
    assert (run.progress.bytes < 25_000 * 20) is (compression == "zstd")
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
    assert meta["position"] == run.progress.position
    # There is no stream of changes yet.
    assert (meta["start_sequence"], meta["stream_created"]) == (1, None)


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


ENDED = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'penstock' AND backend_type = 'client backend'"
)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What ends a run over 4,000 rows in 80 chunks: `prepare` is done with the table before, and
    `meanwhile` when the third chunk waits."""

    error: type[Exception]
    says: str | None = None
    prepare: str = ""
    meanwhile: Callable[[World, SnapshotRun], object] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    snapshots: int = 1
    is_left: bool = False


def grow_old(_: World, run: SnapshotRun) -> None:
    until(lambda: time.monotonic() > run.progress.begun_at + 3)


def lose_lease(_: World, run: SnapshotRun) -> None:
    run.job.pipeline.is_ours = False


def purge(world: World, run: SnapshotRun) -> None:
    """A limit of the stream, or another instance that took the snapshot up."""
    world.api.purge("INIT", f"init.snap.{run.job.table}.>")


OLD: dict[str, Any] = {
    "error": SettingsError, "says": "its changes have no key", "meanwhile": grow_old,
    "settings": {"slots": 1, "max_age": 3, "chunk_bytes": 4096},
}  # fmt: skip
HUGE = "INSERT INTO {0} VALUES (4001, repeat('y', 2000000))"
ENDINGS = {
    "cancelled": Ending(error=Cancelled, meanwhile=lambda _, run: run.cancel()),
    "lease lost": Ending(error=LeaseLost, meanwhile=lose_lease, is_left=True),
    "max_age without a key": Ending(**OLD, prepare="ALTER TABLE {0} DROP CONSTRAINT {0}_pkey"),
    "max_age without an identity": Ending(
        **OLD, prepare="ALTER TABLE {0} REPLICA IDENTITY NOTHING"
    ),
    "chunks gone": Ending(
        error=SettingsError, meanwhile=purge, says=r"80 chunks were stored.* has 7[89] of them"
    ),
    "row too large": Ending(
        error=Rejected, prepare=HUGE, says=r"a row of public\..*the server takes"
    ),
    "no reading succeeds": Ending(error=Unavailable, says="broke", snapshots=5),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_what_ends_a_run_leaves_no_meta_and_no_chunk(
    how: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the next owner of the pipeline goes on with them."""
    table, ending = table_of(world, 4_000), ENDINGS[how]
    if ending.prepare:
        world.database.execute(ending.prepare.format(table))
    if ending.snapshots > 1:
        broken = Unavailable("the connection broke")
        monkeypatch.setattr("penstock.feeds.postgres.snapshot.copied", Mock(side_effect=broken))
    settings = SnapshotSettings(**{"chunk_rows": 50, **ending.settings})
    run = SnapshotRun(world.job(table), world.sink, settings)
    with pytest.raises(ending.error, match=ending.says):
        if ending.meanwhile is None:
            run.run()
        else:
            gate = Gate(monkeypatch, "init.snap.", 3)
            gate.during(run.run, partial(ending.meanwhile, world, run))
    assert run.progress.snapshots == ending.snapshots
    assert (world.chunks(run) != []) is ending.is_left
    assert run.progress.chunks <= 80 and world.api.last("INIT", f"init.meta.{table}") is None


@pytest.mark.parametrize("how", ["lost connection without a key", "max_age"])
def test_a_run_goes_on_under_another_snapshot_of_the_source(
    how: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, gate = table_of(world, 4_000), Gate(monkeypatch, "init.snap.", 22)
    max_age = 3 if how == "max_age" else 600
    settings = SnapshotSettings(chunk_rows=50, chunk_bytes=4096, slots=1, max_age=max_age)
    run = SnapshotRun(world.job(table), world.sink, settings)
    if how == "max_age":
        gate.during(run.run, lambda: grow_old(world, run))
    else:
        world.database.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey")
        gate.during(run.run, lambda: world.database.execute(ENDED))
    assert run.progress.snapshots >= 2
    rows = [row["id"] for one in world.chunks(run) for row in read(one)["data"]]
    assert sorted(rows) == list(range(1, 4_001))
    places = {chunk["lsn"] for chunk in world.meta(table)["chunks"]}
    # Without a key nothing of what was read before counts.
    assert len(places) == 1 or (how == "max_age" and min(places) == world.meta(table)["lsn"])
    assert run.progress.rows == 4_000


def test_a_lost_connection_is_gone_on_after_with_what_is_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key change moves a row, whose large value the log has as unchanged, from a range that is
    read later to one that was read: it is read again."""
    table = table_of(world, 4_000)
    world.database.execute(
        f"ALTER TABLE {table} ALTER name SET STORAGE EXTERNAL; ALTER TABLE {table} ADD big text;"
        f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL;"
        f"UPDATE {table} SET big = repeat('b', 9000) WHERE id = 3950"
    )
    gate = Gate(monkeypatch, "init.snap.", 22)
    settings = SnapshotSettings(chunk_rows=50, slots=1)  # ranges of 800 rows, in the order of keys
    run = SnapshotRun(world.job(table), world.sink, settings)
    written = (
        f"UPDATE {table} SET id = -1 WHERE id = 3950; DELETE FROM {table} WHERE id = 3951;"
        f"UPDATE {table} SET name = 'new' WHERE id = 5;"
    )
    gate.during(run.run, lambda: [world.database.execute(one) for one in (written, ENDED)])
    assert run.progress.snapshots == 2
    meta = world.meta(table)
    chunks = sorted(world.chunks(run), key=lambda one: one.sequence)
    rows: dict[int, Any] = {}
    for body in map(read, chunks):
        rows |= {row["id"]: row for row in body["data"]}
    assert rows.keys() - {3950, 3951} == {-1, *range(1, 3950), *range(3952, 4001)}
    assert (rows[-1]["big"], rows[5]["name"]) == ("b" * 9000, "new")
    places = [chunk["lsn"] for chunk in sorted(meta["chunks"], key=lambda one: one["sequence"])]
    assert meta["lsn"] == places[0] != places[-1]
    assert len(set(places)) == 2
    assert meta["batch_count"] == len(chunks) == run.progress.chunks
    assert [chunk["chunk"] for chunk in meta["chunks"]] == list(range(len(chunks)))
    assert meta["row_count"] == sum(len(read(one)["data"]) for one in chunks) < 5_500


def test_a_meta_is_of_the_first_point_of_which_something_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of that under which the table was cut, if all was read later."""
    table = table_of(world, 4_000)
    opened, cut_at = PostgresRowSource.opened, list[str]()

    @contextmanager
    def cut_off(source: PostgresRowSource, *more: Any) -> Iterator[Any]:
        with opened(source, *more) as pages:

            def none(*_: Any) -> Iterator[Any]:
                cut_at.append(run.progress.position)
                world.database.execute(f"DELETE FROM {table} WHERE id > 3000")
                raise Unavailable("the connection is lost")

            yield pages if cut_at else none

    monkeypatch.setattr(PostgresRowSource, "opened", cut_off)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50, slots=1))
    run.run()
    meta = world.meta(table)
    (place,) = {(chunk["position"], chunk["lsn"]) for chunk in meta["chunks"]}
    assert place == (meta["position"], meta["lsn"])
    assert place[0] == run.progress.position > cut_at[0]
    assert meta["row_count"] == 3000


def test_a_permission_that_is_taken_away_ends_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, gate = table_of(world, 4_000), Gate(monkeypatch, "init.snap.", 2)
    role = f"r_{world.database.name}"
    world.database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON {table} TO {role}"
    )
    feed = PostgresFeed(
        PostgresSettings(
            connection=world.database.url.replace("postgres@", f"{role}@"),
            slot=f"s_{world.database.name}", publication="p",
        )
    )  # fmt: skip
    run = SnapshotRun(
        world.job(table, feed=feed), world.sink, SnapshotSettings(chunk_rows=50, slots=1)
    )
    try:
        revoke = f"REVOKE SELECT ON {table} FROM {role}"
        with pytest.raises(SettingsError, match="permission denied"):
            gate.during(run.run, lambda: world.database.execute(revoke))
    finally:
        world.database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert world.chunks(run) == []


def test_a_stream_that_keeps_changes_for_a_minute_is_refused(world: World) -> None:
    table = table_of(world, 10)
    publishing_to(world, max_age=60 * 10**9)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings())
    with pytest.raises(SettingsError, match=r"keeps changes for 0:01:00.*rows stay wrong"):
        run.run()
    assert world.chunks(run) == []


def test_a_full_disk_of_the_stream_ends_the_run(
    database: Database, own_nats: Callable[..., Nats], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.snapshots.init_stream._PATIENCE", 0.5)
    monkeypatch.setattr("penstock.snapshots.reading._TRIES", 2)
    world = World(database, own_nats({"jetstream": {"max_file_store": 1_000_000}}))
    table = table_of(world, 20_000)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_bytes=65536))
    with pytest.raises(PenstockError, match="resource"):
        run.run()
    world.reconnect()
    assert world.chunks(run) == []
    assert world.api.last("INIT", f"init.meta.{table}") is None
    world.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_run_waits_until_its_source_has_begun(world: World, is_cancelled: bool) -> None:
    """A change between its rows and the beginning would be in neither."""
    begun: Bookmarks = {}
    table, pipeline = table_of(world, 10), StatedPipeline(known=lambda: begun)
    job = world.job(table, pipeline=pipeline)
    run = SnapshotRun(job, world.sink, SnapshotSettings())
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        until(lambda: run.progress.waiting == "the pipeline to follow its source", 60)
        world.database.execute(f"UPDATE {table} SET name = 'new'")
        if is_cancelled:
            run.cancel()
            with pytest.raises(Cancelled):
                running.result(60)
            return
        begun = StatedPipeline().known()
        running.result(60)
    assert run.progress.waiting == ""
    (chunk,) = world.chunks(run)
    assert {row["name"] for row in read(chunk)["data"]} == {"new"}


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_run_waits_for_a_server_unless_it_is_cancelled(
    is_cancelled: bool,
    database: Database,
    own_nats: Callable[..., Nats],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which gets every chunk once."""
    monkeypatch.setattr("penstock.snapshots.init_stream._PATIENCE", 600.0)
    server = own_nats()
    world = World(database, server)
    table, gate = table_of(world, 20_000), Gate(monkeypatch, "init.snap.", 3)
    run = SnapshotRun(world.job(table), world.sink, SnapshotSettings(chunk_rows=50))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run.run)
        gate.reached()
        server.kill()
        gate.open()
        if is_cancelled:
            run.cancel()
            with pytest.raises(Cancelled):
                running.result(60)
            return
        server.start()
        running.result(120)
    world.reconnect()
    rows = [row["id"] for one in world.chunks(run) for row in read(one)["data"]]
    world.close()
    assert sorted(rows) == list(range(1, 20_001))
    assert run.progress.rows == 20_000


def test_another_history_meanwhile_begins_the_run_anew(world: World) -> None:
    """Its changes sort after the position, though they may be of before it."""
    table = table_of(world, 10)
    slot = PartitionId(f"s_{world.database.name}")
    later = {slot: Bookmark(None, {"era": "e0001-"})}
    known = iter([{slot: Bookmark()}, later, later, later])
    pipeline = StatedPipeline(known=lambda: next(known))
    run = SnapshotRun(world.job(table, pipeline=pipeline), world.sink, SnapshotSettings())
    run.run()
    assert run.progress.snapshots == 2
    assert [len(read(one)["data"]) for one in world.chunks(run)] == [10]
    assert world.meta(table)["position"].startswith("e0001-")
    assert world.meta(table)["chunks"][0]["position"] == world.meta(table)["position"]


def test_a_gap_meanwhile_begins_the_run_anew(world: World) -> None:
    """Of the same history: the slot was lost and made again. Changes of before it do not follow:
    over rows of after it they would be wrong, where no position tells them apart."""
    table, lsns, publish = table_of(world, 10), list[str](), publishing_to(world)
    gaps = iter(["", "slot:1:", "slot:1:", "slot:1:0/9", "slot:1:0/9", "slot:1:0/9"])

    def gap() -> str:
        lsns.append(world.database.execute("SELECT pg_current_wal_lsn()::text")[0][0])
        world.database.execute("CREATE TABLE IF NOT EXISTS more (); DROP TABLE more")
        if found := next(gaps):
            publish()
        return found

    pipeline = StatedPipeline(gap=gap)
    run = SnapshotRun(world.job(table, pipeline=pipeline), world.sink, SnapshotSettings())
    run.run()
    assert (len(lsns), run.progress.snapshots) == (6, 3)
    assert [len(read(one)["data"]) for one in world.chunks(run)] == [10]
    meta = world.meta(table)
    (chunk,) = meta["chunks"]
    assert chunk["lsn"] == meta["lsn"]
    assert parse_lsn(chunk["lsn"]) > parse_lsn(lsns[4])
    # Published: one at the end and one at the beginning of each reading before, and one of this.
    assert (meta["start_sequence"], meta["losses"], run.progress.gap) == (5, *["slot:1:0/9"] * 2)


def test_what_ended_the_snapshot_is_the_error_and_not_what_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed statement ends the transaction that exports the snapshot: whoever imports it then
    may fail before the statement's error has arrived here."""
    table, plan = table_of(world, 10), PostgresSnapshot.plan
    opened = threading.Semaphore(0)

    def import_nothing(*_: object) -> None:
        opened.release()
        raise Unavailable("the source process is not running anymore")

    def fail(self: PostgresSnapshot, rows: int, size: int) -> Any:
        for _ in range(2):
            assert opened.acquire(timeout=30)
        time.sleep(0.2)  # both are about to say so
        plan(self, rows, size)
        raise SettingsError("cannot execute nextval() in a read-only transaction")

    monkeypatch.setattr(PostgresRowSource, "opened", import_nothing)
    monkeypatch.setattr(PostgresSnapshot, "plan", fail)
    with pytest.raises(SettingsError, match="read-only"):
        world.run(table, slots=2)


def test_an_unknown_table_is_refused(world: World) -> None:
    world.feed.begin()
    with pytest.raises(SettingsError):
        world.run("absent")


def test_a_change_that_is_published_while_the_snapshot_is_made_follows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit may be after the point: nothing else has it."""
    table, publish = table_of(world, 10), publishing_to(world)
    publish()
    enter = PostgresSnapshot.__enter__

    def publishing(snapshot: PostgresSnapshot) -> PostgresSnapshot:
        publish()  # while it waits for the point
        found = enter(snapshot)
        publish()  # after the point
        return found

    monkeypatch.setattr(PostgresSnapshot, "__enter__", publishing)
    world.run(table)
    meta, stream = world.meta(table), world.api.stream(world.settings.stream)
    assert stream is not None
    assert (meta["start_sequence"], meta["stream_created"]) == (2, stream["created"])


def publishing_to(world: World, **config: Any) -> Callable[[], object]:
    """Makes the stream of changes; publishes one."""
    name = f"CDC_{world.database.name}"
    world.api.create({"name": name, "subjects": [f"{name}.>"], **config})
    world.settings = world.settings.model_copy(update={"stream": name})
    return lambda: world.api.publish(f"{name}.a", b"NATS/1.0\r\n\r\n", b"")


def test_rows_that_the_source_did_not_count_are_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the index of the key is corrupt: reading by it gives rows again, or leaves some
    out."""
    table = table_of(world, 2_000)

    def doubling(table: Published, part: TableRange) -> sql.Composed:
        part.pop("after", None)
        return range_query(table, part)

    monkeypatch.setattr("penstock.feeds.postgres.cutting.range_query", doubling)
    with pytest.raises(SettingsError, match=f"public.{table} has 2,000 rows, .* [0-9],[0-9]+ were"):
        world.run(table, chunk_rows=20)
    assert world.messages(f"init.*.{table}.>") == world.messages(f"init.meta.{table}") == []
