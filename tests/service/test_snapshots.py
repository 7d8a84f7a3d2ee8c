"""Requests for snapshots, answered by the service's thread, on real servers; without Spark."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from penstock.cli import main
from penstock.leases import open_store
from penstock.leases.gaps import Gaps
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.position import START, Bookmark, PartitionId
from penstock.nats.buckets import Bucket
from penstock.nats.services import asked
from penstock.service.owned_pipeline import OwnedPipeline
from penstock.service.snapshots import Snapshots
from tests.servers import Database, Nats
from tests.service.pipelines import owned
from tests.service.served import Json, Served
from tests.waiting import until

Serve = Callable[..., Served]


@pytest.fixture
def serve(database: Database, nats: Nats, tmp_path: Path) -> Iterator[Serve]:
    """`serve(rows, **settings)`: with a table of so many, if there are any; not started."""
    made: list[Served] = []

    def make(rows: int = 0, **snapshot: Any) -> Served:
        if rows:
            table_in(database, rows)
        made.append(Served(database, nats, tmp_path, **snapshot))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def served(serve: Serve) -> Served:
    """One that has begun, with a table of 1,000 rows."""
    return serve(1000).start()


def table_in(database: Database, rows: int = 1000) -> str:
    table = f"t_{database.name}"
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v text);"
        f"INSERT INTO {table} SELECT n, 'v' || n FROM generate_series(1, {rows}) n"
    )
    return table


@contextmanager
def held(database: Database, table: str) -> Iterator[None]:
    """An open transaction has written to the table, and holds the snapshot's slot up."""
    with psycopg.connect(database.url) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (0)".encode())
        yield


def test_a_request_is_answered_and_the_meta_comes(served: Served) -> None:
    table = served.table
    record = served.ended(served.accepted(table))
    assert (record.state, record.rows, record.name) == ("done", 1000, (table,))
    meta = served.last(f"init.meta.{table}")
    assert meta["snapshot_id"] == record.snapshot_id
    assert meta["position"] == record.position
    schema = Bucket(served.connection, "schemas").get(table)
    assert schema is not None
    assert orjson.loads(schema.value or b"")["version"] == meta["schema_version"]


class Masking:
    """Statements that replace every row."""

    refusal, identity = "", "masking"

    def made(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        assert set(batch["operation"].to_pylist()) == {"READ"}
        made = pa.Table.from_batches([batch]).select(list(columns))
        masked = pa.array([orjson.dumps({**orjson.loads(row), "v": "***"}).decode()
                           for row in batch["after"].to_pylist()])  # fmt: skip
        return made.set_column(made.schema.names.index("after"), "after", masked)


def test_a_snapshot_that_began_without_a_transform_is_read_anew_through_it(
    serve: Serve,
) -> None:
    served = serve(4000, chunk_rows=20, slots=1)
    snapshot_id = served.dies(40)
    assert len(served.chunks(snapshot_id)) > 30
    served.transform()
    served.start(Masking())
    record = served.ended(snapshot_id)
    assert (record.state, record.rows) == ("done", 4000)
    chunks = served.data(snapshot_id)
    assert {row["v"] for rows in chunks for row in rows} == {"***"}
    assert sorted(row["id"] for rows in chunks for row in rows) == list(range(1, 4001))


def test_snapshots_that_nobody_asks_for_need_statements_that_take_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Masking, "refusal", "does what it must not")
    for more, says in (
        ({"initial": True}, "snapshot.initial"),
        ({"backend": {"start": "snapshot"}}, "start: snapshot of backend shop"),
        ({"backend": {"on_gap": "resnapshot"}}, "on_gap: resnapshot of backend shop"),
    ):
        pipeline = serve(**more).pipeline
        with pytest.raises(SettingsError, match=f"{says} takes snapshots, and transform does what"):
            Snapshots(pipeline, owned(pipeline)).start(Masking())


def test_rows_do_not_go_around_a_transform(serve: Serve) -> None:
    """Also those of a snapshot that began without it."""
    served = serve(1000, chunk_rows=20, slots=1)
    before = served.dies(10)
    served.transform()
    served.start()
    record = served.ended(before)
    assert record.state == "failed" and "transform" in record.error
    answer = served.ask(f"request.{served.table}")
    assert "transform" in answer["error"] and "again" not in answer
    assert served.last(f"init.error.{served.table}")["error"] == answer["error"]
    assert served.chunks(before) == []
    assert [state for _, state in served.taken()] == ["failed"]


def test_an_unknown_table_is_an_error_with_those_that_exist(
    database: Database, served: Served
) -> None:
    table, absent = served.table, f"absent_{database.name}"
    answer = served.ask(f"request.{absent}")
    assert absent in answer["error"]
    assert table in answer["hint"]
    assert served.last(f"init.error.{absent}")["hint"] == answer["hint"]
    assert "did you mean 'where'" in served.ask(f"request.{table}", wher="id < 3")["error"]


def test_a_part_of_a_table_is_told_apart_from_the_table(database: Database, serve: Serve) -> None:
    served = serve(1000, where=True)
    table = served.table
    database.execute(f"ALTER TABLE {table} ADD COLUMN secret text DEFAULT 'x'")
    served.start()
    options: Json = {
        "where": "id <= 10 AND v LIKE 'v%'", "columns": ["v", "id"], "chunk_rows": 4
    }  # fmt: skip
    answer = served.ask(f"request.{table}", **options)
    record = served.ended(answer["snapshot_id"])
    assert (record.state, record.rows, record.error) == ("done", 10, "")
    assert record.options == {**options, "columns": ["id", "v"]} and record.is_partial
    chunks = served.data(record.snapshot_id)
    rows = sorted((row for chunk in chunks for row in chunk), key=lambda row: row["id"])
    assert rows == [{"id": n, "v": f"v{n}"} for n in range(1, 11)]
    assert list(map(len, chunks)) == [4, 4, 2]
    meta = served.last(f"init.meta.{table}")
    assert (meta["columns"], meta["where"]) == (["id", "v"], options["where"])
    assert (meta["partial"], meta["row_count"]) == (True, 10)
    whole = served.ended(served.accepted(table))
    meta = served.last(f"init.meta.{table}")
    assert (whole.rows, meta["partial"], meta["where"]) == (1000, False, None)
    assert meta["columns"] == ["id", "v", "secret"]


def test_only_equal_requests_share_a_run(database: Database, serve: Serve) -> None:
    served = serve(1000, where=True, max_concurrent=5).start()
    kinds: list[Json] = [{}, {"where": "id < 3"}, {"columns": ["id"]}, {"chunk_rows": 500}]
    with held(database, served.table):
        first, second = (
            [served.ask(f"request.{name}", **kind)["snapshot_id"] for kind in kinds]
            for name in (served.table, f"public.{served.table}")
        )
    assert first == second and len(set(first)) == 4
    assert [served.ended(one).rows for one in first] == [1001, 3, 1001, 1001]


REFUSED = {
    "id <": "syntax error",
    "nmae = 1": 'column "nmae" does not exist',
    "true) UNION SELECT 1, 'x' WHERE (true": "parenthesis",
    "1 / (id - 5) > 0": "zero",
    "nextval('numbers') > 0": "read-only",
}


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_a_condition_that_the_source_refuses_ends_the_run(
    key: str, database: Database, serve: Serve
) -> None:
    table = f"t_{database.name}"
    database.execute(
        f"CREATE SEQUENCE numbers; CREATE TABLE {table} (id int {key}, v text);"
        f"INSERT INTO {table} SELECT n, 'v' || n FROM generate_series(1, 10) n"
    )
    served = serve(where=True).start()
    for where, error in REFUSED.items():
        record = served.ended(served.ask(f"request.{table}", where=where)["snapshot_id"])
        assert record.state == "failed"
        assert error in record.error and "where" in record.hint, record
        assert served.last(f"init.error.{table}")["error"] == record.error
        assert served.chunks(record.snapshot_id) == []
    assert served.ended(served.accepted(table)).rows == 10


def test_a_part_is_taken_up_as_a_part(serve: Serve) -> None:
    options: Json = {"where": "id % 2 = 0", "columns": ["id"], "chunk_rows": 20}
    served = serve(4000, where=True, slots=1)
    snapshot_id = served.dies(40, **options)
    served.start()
    record = served.ended(snapshot_id)
    assert (record.state, record.rows, record.options) == ("done", 2000, options)
    chunks = served.data(snapshot_id)
    assert sorted(row["id"] for rows in chunks for row in rows) == list(range(2, 4001, 2))
    assert {tuple(row) for rows in chunks for row in rows} == {("id",)}
    assert max(map(len, chunks)) == 20


def test_another_pipelines_requests_are_not_ours(served: Served) -> None:
    table = served.table
    with pytest.raises(Unavailable):
        asked(served.connection, f"snapshot.request.{table}", b'{"pipeline":"other"}', 1.0)
    snapshot_id = served.accepted(table)
    assert [record.snapshot_id for record in served.records.all()] == [snapshot_id]


def test_a_suspended_table_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes after its snapshot would be missing."""
    served = serve(1000, initial=True)  # its refusal ends nothing
    table = served.table
    reasons = {("shop", f"public.{table}"): "decode"}
    monkeypatch.setattr(OwnedPipeline, "suspended", lambda _: reasons)
    monkeypatch.setattr(OwnedPipeline, "bookmarks", lambda *_: {PartitionId("s"): START})
    served.start()
    assert f"{table} is suspended: decode" in served.ask(f"request.{table}")["error"]
    reasons.clear()
    assert served.ended(served.accepted(table)).state == "done"


def test_a_table_suspended_since_the_last_look_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror asks as soon as it reads that its table is suspended."""
    served = serve(1000, initial=True)
    table = served.table
    reasons: dict[tuple[str, str], str] = {}
    monkeypatch.setattr(OwnedPipeline, "suspended", lambda _: reasons)
    monkeypatch.setattr(OwnedPipeline, "bookmarks", lambda *_: {PartitionId("s"): START})
    served.start()
    assert served.ended(served.accepted(table)).state == "done"
    reasons["shop", f"public.{table}"] = "decode"
    assert f"{table} is suspended: decode" in served.ask(f"request.{table}").get("error", "")


WAITING = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'walsender' AND wait_event_type = 'Lock'"
)


def test_a_run_is_cancelled(database: Database, served: Served) -> None:
    """Without waiting for the transaction: nothing is left of it at the source."""
    table = served.table
    left = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_type ="
        " 'walsender' UNION ALL SELECT 1 FROM pg_replication_slots"
        " WHERE database = current_database() AND temporary"
    )
    with held(database, table):
        snapshot_id = served.accepted(table)
        until(lambda: database.execute(WAITING))
        assert served.ask(f"cancel.{snapshot_id}").get("snapshot_id") == snapshot_id
        record = served.ended(snapshot_id)
        until(lambda: not database.execute(left))
    assert record.state == "cancelled"
    assert served.last(f"init.error.{table}")["snapshot_id"] == record.snapshot_id
    assert served.api.last("INIT", f"init.meta.{table}") is None


def test_a_run_goes_on_where_a_dead_service_left_it(serve: Serve) -> None:
    """Under its own id, and without what was read: chunks of the range in the middle of which it
    ended are deleted."""
    served = serve(4000, chunk_rows=50, slots=1)
    snapshot_id = served.dies(40)
    left = served.chunks(snapshot_id)
    assert len(left) in (39, 40)
    served.start()
    record = served.ended(snapshot_id)
    assert (record.state, record.rows, record.done) == ("done", 4000, record.ranges)
    chunks = served.chunks(snapshot_id)
    rows = [row["id"] for rows in served.data(snapshot_id) for row in rows]
    assert sorted(rows) == list(range(1, 4001))
    assert left[:32] == chunks[:32], "the first two ranges were not read again"
    meta = served.last(f"init.meta.{served.table}")
    assert meta["start_sequence"] == 1 and len(meta["chunks"]) == len(chunks)
    assert min(one["lsn"] for one in meta["chunks"]) == meta["lsn"]
    assert served.records.plan(snapshot_id) is None


def test_a_run_begins_anew_where_changes_were_lost_since(database: Database, serve: Serve) -> None:
    served = serve(4000, chunk_rows=50, slots=1)
    snapshot_id = served.dies(40)
    left = served.chunks(snapshot_id)
    with closing(open_store(served.pipeline.positions)) as store:
        gap = {"id": "1", "cause": "slot_missing", "from": "", "to": "", "policy": "continue"}
        Gaps(store, f"{served.name}/shop").record(f"s_{database.name}", gap)
    served.start()
    assert served.ended(snapshot_id).rows == 4000
    sequences = {one.sequence for one in served.chunks(snapshot_id)}
    assert sequences.isdisjoint(one.sequence for one in left)


def test_five_tables_at_once_and_five_requests_for_one(database: Database, serve: Serve) -> None:
    tables = [f"t{n}_{database.name}" for n in range(5)]
    for table in tables:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1)"
        )
    served = serve(max_concurrent=3).start()
    with held(database, tables[0]):
        ids = [served.accepted(table) for table in tables]
        assert {served.accepted(tables[4]) for _ in range(5)} == {ids[4]}
        until(lambda: sum(each.state == "running" for each in served.records.all()) == 3)
    records = [served.ended(one) for one in ids]
    assert [(each.state, each.rows) for each in records] == [("done", 2)] + [("done", 1)] * 4


def test_every_table_is_taken_once_at_its_first_start(
    database: Database, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.service.tables._LOOK", 0.2)
    monkeypatch.setattr("penstock.snapshots.followed_tables._LOOK", 0.0)
    begun: dict[PartitionId, Bookmark] = {}
    monkeypatch.setattr(OwnedPipeline, "bookmarks", lambda *_: begun)
    served = serve(10, initial=True).start()
    first = served.table
    until(lambda: Bucket(served.connection, "schemas").get(first) is not None)
    assert served.taken() == [], "nothing is followed yet"
    begun[PartitionId(f"s_{database.name}")] = START
    until(lambda: served.taken() == [(first, "done")])
    served.stop_service()
    served.start()
    second = f"u_{database.name}"
    database.execute(f"CREATE TABLE {second} (id int PRIMARY KEY)")
    until(lambda: served.taken() == [(first, "done"), (second, "done")])
    assert served.last(f"init.meta.{second}")["row_count"] == 0


def test_an_initial_snapshot_that_failed_is_tried_again(
    database: Database, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.snapshots.followed_tables._LOOK", 0.0)
    monkeypatch.setattr("penstock.snapshots.followed_tables._AGAIN", 0.0)
    monkeypatch.setattr(OwnedPipeline, "bookmarks", lambda *_: {PartitionId("s"): START})
    served = serve(10, initial=True, patience=0.2)
    table = served.table
    with held(database, table):
        served.start()
        until(lambda: (table, "failed") in served.taken())
    until(lambda: (table, "done") in served.taken())


def test_a_gap_is_mended_by_snapshots_of_all_tables(
    database: Database, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.service.snapshots._LOOK", 0.0)
    served = serve(10, backend={"on_gap": "resnapshot"})
    tables = [served.table, f"u_{database.name}"]
    database.execute(f"CREATE TABLE {tables[1]} (id int PRIMARY KEY)")
    served.start()
    before = served.accepted(tables[0])
    assert served.ended(before).state == "done"
    store = open_store(served.pipeline.positions)
    gaps = Gaps(store, f"{served.name}/shop")
    with closing(store):
        gap = {
            "id": "1", "cause": "slot_missing", "from": "", "to": "00000000/00000010",
            "policy": "resnapshot", "detail": "",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }  # fmt: skip
        gaps.record(f"s_{database.name}", gap)
        until(lambda: not gaps.rows()[f"s_{database.name}"]["stale"])
    assert sorted(served.taken()) == sorted([(tables[0], "done")] * 2 + [(tables[1], "done")])


def test_a_stop_waits_for_no_snapshot(database: Database, serve: Serve) -> None:
    served = serve(1000, patience=600).start()
    with held(database, served.table):
        snapshot_id = served.accepted(served.table)
        until(lambda: database.execute(WAITING))
        served.stop_service()
        assert "snapshots" not in [thread.name for thread in threading.enumerate()]
        assert served.ask("request.t") == {}, "nothing listens after the end"
        until(lambda: not database.execute(WAITING))
    record = served.records.get(snapshot_id)
    assert record is not None and not record.has_ended


def test_a_service_that_nobody_asks_for_long_answers(
    database: Database, own_nats: Callable[..., Nats], tmp_path: Path
) -> None:
    """The server drops a client that answers none of its pings."""
    table = table_in(database)
    served = Served(database, own_nats({"ping_interval": "1s", "ping_max": 2}), tmp_path)
    try:
        served.start()
        end = time.monotonic() + 6.0
        while time.monotonic() < end:
            served.connection.receive(0.05)
        record = served.ended(served.accepted(table))
        assert (record.state, record.rows) == ("done", 1000)
    finally:
        served.close()


def test_a_request_that_is_malformed_is_answered(served: Served) -> None:
    table = served.table
    for what in ("request.%FF", "request", "cancel.%E2%82"):
        assert "names nothing" in served.ask(what)["error"]
    assert served.ended(served.accepted(table)).state == "done"


def test_tables_that_are_not_known_yet_are_to_be_asked_for_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Mock(side_effect=Unavailable("the database does not answer now"))
    monkeypatch.setattr("penstock.service.tables.tables_of", away)
    served = serve(1000).start()
    table = served.table
    answer = served.ask(f"request.{table}")
    assert answer.keys() == {"again", "error", "hint"} and answer["again"] is True
    assert "tables of shop are not known" in answer["error"] and "ask again" in answer["hint"]
    assert served.api.last("INIT", f"init.error.{table}") is None
    monkeypatch.undo()
    assert served.ended(served.accepted(table)).state == "done"
    assert "again" not in served.ask("request.absent")


def test_the_stream_of_chunks_is_there_before_any_request(serve: Serve) -> None:
    """A consumer subscribes to it, and then asks."""
    served = serve()
    api = served.api
    if api.stream("INIT") is not None:
        api._call("STREAM.DELETE.INIT", {})
    served.start()
    found = api.stream("INIT")
    assert found is not None and found["config"]["subjects"] == ["init.>"]


def test_the_command_takes_snapshots_and_lists_them(database: Database, serve: Serve) -> None:
    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["snapshot", str(served.file), *words])

    served = serve(1000)
    table = served.table
    database.execute(f'CREATE TABLE "{table}.b" (id int PRIMARY KEY)')
    found = run(table)
    assert found.exit_code == 1 and "is the pipeline" in found.output
    served.start()
    found = run(table)
    assert found.exit_code == 0, found.output
    assert "1,000 rows in 1 chunks" in found.stdout
    (record,) = [orjson.loads(line) for line in run("list", "--json").output.splitlines()]
    assert (record["state"], record["rows"]) == ("done", 1000)
    assert record["snapshot_id"] in run().output
    options = ["--columns", "id, v", "--chunk-rows", "400", "--chunk-bytes", "64KiB"]
    assert run(table, *options).exit_code == 0
    taken = served.records.all()[-1]
    assert (taken.state, taken.rows, taken.chunks) == ("done", 1000, 3)
    assert taken.options == {"chunk_rows": 400, "chunk_bytes": 65536}  # those are all columns
    for words, says in (
        ((table, "--where", "id < 3"), "snapshot.where"),
        ((table, "--chunk-bytes", "1B"), "chunk_bytes"),
        (("absent",), "no followed table is called absent"),
        (("cancel", record["snapshot_id"]), "does not run"),
    ):
        failed = run(*words)
        assert failed.exit_code == 2 and says in failed.output
    found = run(f"{table}.b", f"public.{table}.b", f"shop.public.{table}.b")
    assert found.exit_code == 0, found.output
    assert found.stdout.count(f"{table}.b: 0 rows in 0 chunks") == 3


def test_schemas_follow_the_tables(
    database: Database, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.service.tables._LOOK", 0.2)
    table = served.table
    bucket = Bucket(served.connection, "schemas")
    until(lambda: bucket.get(table) is not None)
    database.execute(f"ALTER TABLE {table} ADD w int")
    until(lambda: b'"w"' in (((found := bucket.get(table)) and found.value) or b""))
    database.execute(f"DROP TABLE {table}")
    until(lambda: bucket.get(table) is None)
    assert [one.value is None for one in bucket.history(table)] == [False, False, True]


def test_without_rights_to_requests_schemas_are_stored_all_the_same(
    database: Database, own_nats: Callable[..., Nats], tmp_path: Path
) -> None:
    table = table_in(database)
    permissions = {"publish": ">", "subscribe": {"deny": "snapshot.>"}}
    user = {"user": "u", "password": "p", "permissions": permissions}
    server = own_nats({"authorization": {"users": [user]}, "no_auth_user": "u"})
    served = Served(database, server, tmp_path)
    with capture_logs() as logs, closing(served.connection):
        served.service = Snapshots(served.pipeline, owned(served.pipeline))
        served.service.start()
        bucket = Bucket(served.connection, "schemas")
        until(lambda: bucket.get(table) is not None and bool(logs))
        served.stop_service()
    assert ["snapshot.>" in each["error"] for each in logs] == [True]
