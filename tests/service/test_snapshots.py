"""Requests for snapshots, answered by the service's thread, on real servers; without Spark."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from penstock.cli import main
from penstock.config import Pipeline, parse_pipeline
from penstock.errors import Unavailable
from penstock.nats.api import JetStream
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.nats.services import asked
from penstock.nats.settings import NatsSettings
from penstock.service.snapshots import Snapshots
from penstock.snapshots.records import Records, RunRecord
from tests.servers import Database, Nats

pytestmark = pytest.mark.live

Json = dict[str, Any]


class Desk:
    """A service's thread, and who asks it."""

    def __init__(self, database: Database, nats: Nats, folder: Path, **snapshot: Any) -> None:
        self.database = database
        self.file = folder / "pipeline.yaml"
        self.name = f"pipe-{uuid.uuid4().hex[:8]}"
        document: Json = {
            "name": self.name, "state": str(folder / "state"),
            "backends": [{
                "name": "shop", "type": "postgres", "connection": database.url,
                "slot": f"s_{database.name}", "publication": "p", "create_publication": True,
            }],
            "sink": {"type": "jetstream", "url": nats.url, "encoding": "json"},
            "snapshot": snapshot,
        }  # fmt: skip
        self.file.write_bytes(orjson.dumps(document))  # JSON is YAML
        self.pipeline: Pipeline = parse_pipeline(self.file.read_text())
        self.pipeline.backends[0].feed().begin()
        self.connection = Connection(NatsSettings.model_validate({"url": nats.url, "timeout": 30}))
        self.connection.open()
        self.records = Records(self.connection, self.name)
        self.service: Snapshots | None = None

    def start(self) -> None:
        self.service = Snapshots(self.pipeline, "me")
        self.service.start()
        self.until(lambda: "error" in self.ask("cancel.snap-none"))

    def stop(self) -> None:
        if self.service is not None:
            self.service.close()
            self.service = None

    def ask(self, what: str, **options: Any) -> Json:
        payload = orjson.dumps({"pipeline": self.name, **options})
        with suppress(Unavailable):
            found: Json = orjson.loads(
                asked(self.connection, f"snapshot.{what}", payload, 20).payload
            )
            return found
        return {}

    def ended(self, snapshot_id: str) -> RunRecord:
        found: list[RunRecord] = []

        def has_ended() -> bool:
            record = self.records.get(snapshot_id)
            found.extend([record] if record is not None and record.has_ended else [])
            return bool(found)

        self.until(has_ended)
        return found[0]

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def last(self, subject: str) -> Json:
        found = JetStream(self.connection).last("INIT", subject)
        assert found is not None
        document: Json = orjson.loads(found.payload)
        return document


@pytest.fixture
def desk_of(database: Database, nats: Nats, tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(**snapshot: Any) -> Desk:
        made.append(Desk(database, nats, tmp_path, **snapshot))
        return made[-1]

    yield make
    for each in made:
        each.stop()
        each.connection.close()


def table_in(database: Database, rows: int = 1000) -> str:
    table = f"t_{database.name}"
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v text);"
        f"INSERT INTO {table} SELECT n, 'v' || n FROM generate_series(1, {rows}) n"
    )
    return table


def test_a_request_is_answered_and_the_meta_comes(
    database: Database, desk_of: Callable[..., Desk]
) -> None:
    table = table_in(database)
    desk = desk_of()
    desk.start()
    answer = desk.ask(f"request.{table}")
    assert answer["state"] in ("queued", "running")
    record = desk.ended(answer["snapshot_id"])
    assert (record.state, record.rows, record.name) == ("done", 1000, (table,))
    meta = desk.last(f"init.meta.{table}")
    assert meta["snapshot_id"] == record.snapshot_id
    assert meta["position"] == record.position
    schema = Bucket(desk.connection, "schemas").get(table)
    assert schema is not None
    assert orjson.loads(schema.value or b"")["version"] == meta["schema_version"]


def test_requests_for_a_table_share_a_run(database: Database, desk_of: Callable[..., Desk]) -> None:
    table = table_in(database)
    desk = desk_of()
    desk.start()
    with psycopg.connect(database.url) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (0, 'holds the slot up')".encode())
        answers = [desk.ask(f"request.{name}") for name in (table, f"public.{table}")]
        connection.commit()
    assert len({answer["snapshot_id"] for answer in answers}) == 1
    assert desk.ended(answers[0]["snapshot_id"]).rows == 1001


def test_an_unknown_table_is_an_error_with_those_that_exist(
    database: Database, desk_of: Callable[..., Desk]
) -> None:
    table = table_in(database)
    desk = desk_of()
    desk.start()
    absent = f"absent_{database.name}"
    answer = desk.ask(f"request.{absent}")
    assert absent in answer["error"]
    assert table in answer["hint"]
    assert desk.last(f"init.error.{absent}")["hint"] == answer["hint"]
    assert "pipeline" in desk.ask(f"request.{table}", wher="id < 3")["hint"]


def test_another_pipelines_requests_are_not_ours(
    database: Database, desk_of: Callable[..., Desk]
) -> None:
    table = table_in(database)
    desk = desk_of()
    desk.start()
    with pytest.raises(Unavailable):
        asked(desk.connection, f"snapshot.request.{table}", b'{"pipeline":"other"}', 1.0)


def test_a_run_is_cancelled(database: Database, desk_of: Callable[..., Desk]) -> None:
    table = table_in(database)
    desk = desk_of()
    desk.start()
    with psycopg.connect(database.url) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (0, 'holds the slot up')".encode())
        answer = desk.ask(f"request.{table}")
        desk.ask(f"cancel.{answer['snapshot_id']}")
        connection.commit()
    record = desk.ended(answer["snapshot_id"])
    assert record.state == "cancelled"
    assert desk.last(f"init.error.{table}")["snapshot_id"] == record.snapshot_id
    assert JetStream(desk.connection).last("INIT", f"init.meta.{table}") is None


def test_what_a_dead_service_left_is_taken_up(
    database: Database, desk_of: Callable[..., Desk]
) -> None:
    table = table_in(database, 20_000)
    desk = desk_of(chunk_rows=100)
    desk.start()
    answer = desk.ask(f"request.{table}")
    chunks = f"init.snap.{table}.{answer['snapshot_id']}.>"
    api = JetStream(desk.connection)
    desk.until(lambda: api.last("INIT", chunks) is not None)
    desk.stop()  # as a crash: the record says that it runs
    record = desk.records.get(answer["snapshot_id"])
    assert record is not None and not record.has_ended
    desk.start()
    record = desk.ended(answer["snapshot_id"])
    assert record.state == "replaced"
    assert desk.ended(record.by).rows == 20_000
    assert api.last("INIT", chunks) is None
    assert desk.last(f"init.meta.{table}")["snapshot_id"] == record.by


def test_the_command_takes_snapshots_and_lists_them(
    database: Database, desk_of: Callable[..., Desk]
) -> None:
    table = table_in(database)
    desk = desk_of()
    file = str(desk.file)
    found = CliRunner().invoke(main, ["snapshot", file, table])
    assert found.exit_code == 1 and "is the pipeline" in found.output
    desk.start()
    found = CliRunner().invoke(main, ["snapshot", file, table])
    assert found.exit_code == 0, found.output
    assert "1,000 rows in 1 chunks" in found.stdout
    listed = CliRunner().invoke(main, ["snapshot", file, "list", "--json"])
    (record,) = [orjson.loads(line) for line in listed.output.splitlines()]
    assert (record["state"], record["rows"]) == ("done", 1000)
    assert record["snapshot_id"] in CliRunner().invoke(main, ["snapshot", file]).output
    failed = CliRunner().invoke(main, ["snapshot", file, "absent"])
    assert failed.exit_code == 2 and "no followed table is called absent" in failed.output
    failed = CliRunner().invoke(main, ["snapshot", file, "cancel", record["snapshot_id"]])
    assert failed.exit_code == 2 and "does not run" in failed.output


def test_schemas_follow_the_tables(
    database: Database, desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.service.tables._LOOK", 0.2)
    table = table_in(database)
    desk = desk_of()
    desk.start()
    bucket = Bucket(desk.connection, "schemas")
    desk.until(lambda: bucket.get(table) is not None)
    database.execute(f"ALTER TABLE {table} ADD w int")
    desk.until(lambda: b'"w"' in (((found := bucket.get(table)) and found.value) or b""))
    database.execute(f"DROP TABLE {table}")
    desk.until(lambda: bucket.get(table) is None)
    assert [one.value is None for one in bucket.history(table)] == [False, False, True]


def test_nothing_listens_after_the_end(database: Database, desk_of: Callable[..., Desk]) -> None:
    desk = desk_of()
    desk.start()
    desk.stop()
    assert desk.ask("request.t") == {}
    assert "snapshots" not in [thread.name for thread in threading.enumerate()]


def test_without_rights_to_requests_schemas_are_stored_all_the_same(
    database: Database, own_nats: Callable[..., Nats], tmp_path: Path
) -> None:
    table = table_in(database)
    permissions = {"publish": ">", "subscribe": {"deny": "snapshot.>"}}
    user = {"user": "u", "password": "p", "permissions": permissions}
    server = own_nats({"authorization": {"users": [user]}, "no_auth_user": "u"})
    desk = Desk(database, server, tmp_path)
    with capture_logs() as logs, closing(desk.connection):
        desk.service = Snapshots(desk.pipeline, "me")
        desk.service.start()
        bucket = Bucket(desk.connection, "schemas")
        desk.until(lambda: bucket.get(table) is not None and bool(logs))
        desk.stop()
    assert ["snapshot.>" in each["error"] for each in logs] == [True]
