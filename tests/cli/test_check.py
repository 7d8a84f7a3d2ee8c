"""`penstock check` against real servers: what it prints, and its exit code."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock import cli
from penstock.cli.check import _summary
from penstock.config import load_pipeline
from penstock.config.map_store import MapStore
from penstock.model.errors import SettingsError
from penstock.model.finding import Finding, Level
from penstock.model.position import PartitionId
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.sinks.loading import LoadsTables
from penstock.snapshots.init_stream import InitStream
from tests.servers import Database, Nats, Postgres
from tests.servers.webhook import WebhookServer

FILE = """\
name: shop
state: {state}
backends:
  - {{name: default, type: postgres, connection: '{url}', slot: {slot}, publication: shop}}
sink: {{type: jetstream, url: '{nats}', stream: {stream}, subject: '{stream}.{{collection}}'}}
ops: {{port: 0}}
"""


@pytest.fixture
def file(tmp_path: Path, database: Database, nats: Nats, stream: str) -> Path:
    database.execute("CREATE TABLE customer (id int PRIMARY KEY)")
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        FILE.format(
            state=tmp_path,
            url=database.url,
            nats=nats.url,
            slot=f"s_{stream.lower()}",
            stream=stream,
        )
    )
    return path


def check(file: Path, *more: str) -> Result:
    return CliRunner().invoke(cli.main, ["check", str(file), *more])


def test_a_pipeline_that_could_run_is_0(file: Path, database: Database) -> None:
    database.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    found = check(file)
    assert found.exit_code == 0, found.output
    assert "ok      java: version" in found.output
    assert "backend default: " in found.output
    assert "sink jetstream: " in found.output
    assert found.output.rstrip().endswith("0 errors")


def test_a_missing_publication_is_1_with_the_sql_that_makes_it(file: Path) -> None:
    found = check(file)
    assert found.exit_code == 1
    assert "error   backend default: " in found.output
    assert "CREATE PUBLICATION" in found.output


def test_a_stream_that_does_not_outlast_a_snapshot_is_1(file: Path, database: Database) -> None:
    database.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    file.write_text(file.read_text().replace("sink: {", "sink: {max_age: 5m, "))
    whole = file.read_text()
    found = check(file)
    assert found.exit_code == 0, "no snapshot is configured"
    assert "warning stream" in found.output and "keeps changes for 0:05:00" in found.output
    file.write_text(whole + "snapshot: {initial: true}\n")
    found = check(file)
    assert found.exit_code == 1
    assert "keeps changes for 0:05:00" in found.output
    assert "1:00:00 at least" in found.output
    file.write_text(whole + "snapshot: {initial: true, max_age: 1m}\n")
    assert check(file).exit_code == 0


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"subjects": ["init.snap.>"]}, "does not take init.>"),
        ({"deny_purge": True}, "forbids purging"),
        ({"allow_msg_counter": True, "allow_direct": True}, "counts"),
        ({"subject_transform": {"src": "init.>", "dest": "other.>"}}, "is not found"),
    ],
)
def test_a_stream_that_takes_no_snapshots_is_1(
    own_nats: Callable[..., Nats],
    file: Path,
    database: Database,
    nats: Nats,
    config: dict[str, Any],
    says: str,
) -> None:
    database.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    server = own_nats()
    file.write_text(file.read_text().replace(nats.url, server.url))
    with closing(Connection(NatsSettings(url=server.url))) as connection:
        connection.open()
        JetStream(connection).create({"name": "INIT", "subjects": ["init.>"], **config})
    found = check(file)
    assert found.exit_code == 1 and "stream INIT: " in found.output and says in found.output, (
        found.output
    )
    with (
        InitStream(NatsSettings(url=server.url), "INIT") as stream,
        pytest.raises(SettingsError, match=says),
    ):
        stream.ensure(replicas=1, storage="file")


def test_findings_as_json(file: Path) -> None:
    found = check(file, "--json")
    assert found.exit_code == 1
    rows = json.loads(found.output)
    assert {"level", "subject", "message", "remedy", "code"} == set(rows[0])
    assert {"ok", "error"} <= {row["level"] for row in rows}
    assert all(bool(row["code"]) == (row["level"] != "ok") for row in rows)


def test_servers_that_are_not_there_are_errors_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        FILE.format(
            state=tmp_path,
            url="postgresql://u:hunter22@127.0.0.1:1/db",
            nats="nats://u:hunter33@127.0.0.1:1",
            slot="s",
            stream="S",
        )
    )
    found = check(path)
    assert found.exit_code == 1
    assert "error   backend default" in found.output
    assert "error   sink jetstream" in found.output
    assert "hunter" not in found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    ("config", "limit", "warns"),
    [
        ({}, -1, True),
        ({"max_payload": 64 << 20}, -1, False),
        ({"max_payload": 64 << 20}, 1000, True),
    ],
)
def test_documents_that_the_sink_has_no_room_for_are_found(
    tmp_path: Path, config: dict[str, Any], limit: int, warns: bool
) -> None:
    path = tmp_path / "pipeline.yaml"
    with Nats(config=config) as server:
        path.write_text(f"""
            state: {tmp_path}
            backends:
              - type: mongodb
                connection: mongodb://127.0.0.1:1
                connect_timeout: 100ms
                database: shop
            sink: {{type: jetstream, url: "{server.url}", stream: S, subject: "s.{{collection}}"}}
            ops: {{port: 0}}
        """)
        with closing(Connection(NatsSettings.model_validate({"url": server.url}))) as connection:
            connection.open()
            JetStream(connection).create({"name": "S", "subjects": ["s.>"], "max_msg_size": limit})
        output = check(path).output
    assert ("document size" in output) is warns, output
    assert ("raise max_payload" in output) is warns


def test_where_there_is_no_terminal_there_are_no_colours(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"state: {tmp_path}\nbackends: [{{type: memory}}]\nsink: {{type: memory}}\n")
    assert "\x1b[" not in check(path).output


@pytest.mark.parametrize(
    ("warnings", "errors", "said"),
    [
        (0, 0, "1 ok, 0 warnings, 0 errors"),
        (1, 1, "1 ok, 1 warning, 1 error"),
        (2, 3, "1 ok, 2 warnings, 3 errors"),
    ],
)
def test_the_summary_counts_in_english(
    capsys: pytest.CaptureFixture[str], warnings: int, errors: int, said: str
) -> None:
    levels: list[Level] = ["ok", *["warning"] * warnings, *["error"] * errors]
    _summary([Finding(level=level, subject="it", message="is so") for level in levels])
    assert capsys.readouterr().out.strip() == said


def test_an_empty_map_is_no_error(tmp_path: Path, database: Database) -> None:
    path = tmp_path / "pipeline.yaml"
    sink = f"{{type: postgres, connection: '{database.url}', map: 'sqlite:///{tmp_path}/map.db'}}"
    path.write_text(f"name: shop\nstate: {tmp_path}\nsink: {sink}\nops: {{port: 0}}\n")
    found = check(path)
    assert found.exit_code == 0, found.output
    assert found.output.rstrip().endswith("0 errors")


def test_the_slot_of_a_source_that_left_the_map_is_named(
    tmp_path: Path, database: Database, postgres: Postgres
) -> None:
    name, store = f"b_{database.name}", MapStore(tmp_path / "map.db")
    backend = int(store.add("db", {"name": name})["id"])
    for sid in ("eu", "us"):
        store.add("url", {"db_id": backend, "sid": sid, "url": database.url})
    store.add("tbl", {"db_id": backend, "name": "items"})
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    path = tmp_path / "pipeline.yaml"
    with postgres.database() as target:
        target.execute("CREATE TABLE items (sid text, id int, PRIMARY KEY (sid, id))")
        sink = f"{{type: postgres, connection: '{target.url}', map: 'sqlite:///{store.path}'}}"
        path.write_text(f"name: t\nsink: {sink}\nstate: {tmp_path}/state\nops: {{port: 0}}\n")
        pipeline = load_pipeline(path)
        feed, tables = pipeline.backends[0].feed(), pipeline.sink.sink()
        assert isinstance(tables, LoadsTables)
        for sid in feed.begin():
            tables.enter(name, sid, initial=False)
        slot, warning = f"penstock_{name}_us", "the source us has left the map"
        assert warning not in check(path).output
        store.remove("url", store.rows("url")[-1]["id"])
        assert warning not in check(path).output, "the ledger does not know that"
        tables.leave(name, [PartitionId("eu")], [PartitionId("eu"), PartitionId("us")])
        assert warning in (found := check(path).output)
        assert f"SELECT pg_drop_replication_slot('{slot}');" in found
        assert found.count("pg_drop_replication_slot") == 1
        database.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        assert warning not in check(path).output


def test_before_the_first_start_all_mistakes_of_the_map_are_named(
    tmp_path: Path, database: Database, postgres: Postgres
) -> None:
    """By the source's catalogue: there is no publication yet."""
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text);"
        "CREATE TABLE late (id int PRIMARY KEY);"
        "CREATE TABLE prices (id int PRIMARY KEY, price int);"
        "CREATE TABLE bare (id int);"
        "CREATE TABLE made (id int PRIMARY KEY, n int,"
        " twice int GENERATED ALWAYS AS (n * 2) STORED)"
    )
    tables = {
        "items": {"columns": ["id", "size", "colour"], "filter": "note ="},
        "late": {"create": True, "columns": ["when"], "set": {"id": "lower(id)", "x": "nope"}},
        "prices": {"type": "history"},
        "bare": {"create": True}, "gone": None, "made": None, "ev": {"partitions": "ev_.*"},
    }  # fmt: skip
    with postgres.database() as target:
        target.execute(
            "CREATE TABLE items (id int, note text); CREATE TABLE prices (id int, kvsz_end int);"
            "CREATE TABLE made (id int PRIMARY KEY, n int, twice int); CREATE TABLE gone (id int)"
        )
        document = {
            "name": "t", "state": str(tmp_path / "state"), "ops": {"port": 0},
            "backends": [{"name": "shop", "type": "postgres", "connection": database.url}],
            "sink": {
                "type": "postgres", "connection": target.url,
                "map": [{"backend": "shop", "tables": tables}],
            },
        }  # fmt: skip
        path = tmp_path / "pipeline.yaml"
        path.write_text(json.dumps(document))
        found = check(path, "--json")
        assert found.exit_code == 1

        def named(table: str) -> list[str]:
            subjects = (f"table {table}", f"table {table} of shop", f"target {table}")
            return [
                f"{each['level']} {each['message']}" for each in json.loads(found.output)
                if each["subject"].partition(": ")[2] in subjects
            ]  # fmt: skip

        not_sql = "is not SQL over its columns: reading at the destination:"
        assert named("public.items") == [
            "error it has no column colour, size",
            "error no unique index of public.items has exactly (id)",
            f'error `filter` {not_sql} syntax error at or near ")" (42601)',
        ]
        assert named("public.late") == [
            "error it has no column when",
            "error public.late has no column x",
            f"error `set` of id {not_sql} function lower(integer) does not exist (42883)",
            f'error `set` of x {not_sql} column "nope" does not exist (42703)',
        ]
        assert named("public.prices") == [
            "error public.prices: a history needs a column kvsz_deleted, kvsz_start",
        ]
        assert [each[:29] for each in named("public.bare")][:1] == ["error no replica identity tha"]
        assert named("public.gone") == ["error it does not exist"]
        assert named("public.ev") == [
            "error it does not exist, and public.ev goes there",
            "error no table matches `partitions`",
        ]
        assert [each[:44] for each in named("public.made")] == [
            "warning the source computes twice, and does "
        ]
        assert database.execute("SELECT FROM pg_publication") == []


HOOKS = """\
name: hooks
state: {state}
backends: [{{type: memory}}]
sink: {{type: memory}}
ops: {{port: 0, notify: [{hooks}]}}
"""


def test_each_webhook_gets_a_test_and_no_url_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    with WebhookServer(404) as hook:
        hooks = f"{{url: '{hook.url}/verysecret'}}, {{url: '{hook.url}/verysecret', when: [gap]}}"
        path.write_text(HOOKS.format(state=tmp_path, hooks=hooks))
        found = check(path)
        assert not hook.paths
        found = check(path, "--notify")
    assert "ops.notify[0]: the webhook refused a test: HTTP 404 [cli.webhook]" in found.output
    assert "ok      ops.notify[1]: the webhook took a test" in found.output
    assert "verysecret" not in found.output
    assert [each["kind"] for each in hook.taken] == ["test"]
    assert found.exit_code == 1


def test_that_there_is_no_webhook_to_try_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(HOOKS.format(state=tmp_path, hooks=""))
    assert "warning ops.notify: there is no webhook to try" in check(path, "--notify").output
