"""`penstock mirror`, as a user calls it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import nkeys
import orjson
import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.cli.mirror import left, line_of, lines
from penstock.cli.options import settings_of
from penstock.consumer.mirror.bootstrap import Loading
from penstock.consumer.mirror.replica import Replica
from penstock.consumer.mirror.tailing import ReplicaStatus
from penstock.consumer.mirror.target_table import TargetTable
from penstock.model.errors import Unavailable
from penstock.nats.settings import NatsSettings
from penstock.sinks.jetstream.schemas import SchemaBucket
from tests.consumer.mirror.conftest import world_of
from tests.consumer.mirror.world import World, same, sqlite_rows
from tests.nats.test_connection import key
from tests.servers import Database, Nats

__all__ = ["world_of"]


def mirror(*options: str) -> Result:
    return CliRunner().invoke(main, ["mirror", *options])


def test_once_makes_a_copy_and_again_goes_on(
    database: Database, world_of: Callable[..., World], tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE people (id int PRIMARY KEY); INSERT INTO people VALUES (1), (2);"
        "CREATE TABLE other (id int PRIMARY KEY)"
    )
    world = world_of().start()
    target = f"sqlite:///{tmp_path}/mirror.db"
    for rows in (3, 4):
        database.execute("INSERT INTO people SELECT max(id) + 1 FROM people")
        world.published()
        done = mirror(world.nats.url, "--tables", "people", "--to", target, "--once")
        assert done.exit_code == 0, done.output
        assert f"people: {rows} rows, up to message" in done.output
        same(database, target, "people")
    done = mirror(world.nats.url, "--tables", "people", "--to", target, "--once", "--json")
    (table,) = json.loads(done.stdout)
    assert (table["table"], table["rows"], table["stream"]) == ("people", 4, "CDC")
    assert table["message"] > 0
    with pytest.raises(Exception, match="no such table"):
        sqlite_rows(target, "other")


def test_a_pipeline_file_says_where_and_which_tables(
    database: Database, world_of: Callable[..., World], tmp_path: Path
) -> None:
    """Tables that another pipeline announces on the server are not its own."""
    database.execute("CREATE TABLE people (id int PRIMARY KEY); INSERT INTO people VALUES (1), (2)")
    world = world_of(snapshot={"stream": "ROWS"}).start()
    schema = world.feed.schemas()[0]
    other = replace(schema, table="foreign_table", name=("foreign_table",))
    SchemaBucket(world.settings, "another").put(other)
    (file := tmp_path / "pipeline.yaml").write_text(orjson.dumps(world.document).decode())
    world.published()
    target = f"sqlite:///{tmp_path}/mirror.db"
    done = mirror(str(file), "--to", target, "--once")
    assert done.exit_code == 0, done.output
    assert "people: 2 rows, up to message" in done.output
    assert "foreign_table" not in done.output
    same(database, target, "people")


def test_what_is_not_loaded_and_what_cannot_be_counted_is_said() -> None:
    class Replicated:
        copies = (TargetTable(name="a", backend="", schema="public", table="a", target="a",
                              stream="CDC", sequence=1200),)  # fmt: skip
        status = ReplicaStatus(loading=[Loading(name="b", rows=5000)])

        def count(self, _: TargetTable) -> int:
            raise Unavailable("the target does not answer")

    found = list(left(cast(Replica, Replicated())))
    assert found == [
        {"table": "a", "rows": None, "message": 1200, "stream": "CDC"},
        {"table": "b", "rows": 5000, "message": None, "stream": None},
    ]
    assert [line_of(each) for each in found] == [
        "a: up to message 1,200 of CDC", "b: not loaded yet, 5,000 rows so far",
    ]  # fmt: skip


def test_what_is_wrong_is_said_in_one_line(nats: Nats, tmp_path: Path) -> None:
    done = mirror(nats.url, "--to", f"sqlite:///{tmp_path}/none/mirror.db", "--tables", ", ")
    assert done.exit_code == 2
    assert "--tables names no table" in done.output
    done = mirror("nats://127.0.0.1:1", "--to", f"sqlite:///{tmp_path}/mirror.db")
    assert done.exit_code == 1
    assert "Traceback" not in done.output


@pytest.mark.parametrize("command", ["mirror", "tail"])
def test_the_seed_of_an_nkey_is_in_a_file(
    command: str, own_nats: Callable[..., Nats], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, pair = key(nkeys.PREFIX_BYTE_USER)
    server = own_nats({"authorization": {"users": [{"nkey": pair.public_key.decode()}]}})
    (tmp_path / "seed").write_text(seed + "\n")
    given = ["mirror", server.url, "--to", f"sqlite:///{tmp_path}/m.db"]
    given = given if command == "mirror" else ["tail", "--url", server.url, "--no-follow"]
    assert "there is no" not in CliRunner().invoke(main, given).output
    for found in (
        CliRunner().invoke(main, [*given, "--nkey", str(tmp_path / "seed")]),
        CliRunner().invoke(main, given, env={"NATS_NKEY": str(tmp_path / "seed")}),
    ):
        assert "there is no" in found.output, found.output  # bucket, or stream: it is logged in
        assert found.exit_code == 2
    found = CliRunner().invoke(main, [*given, "--nkey", str(tmp_path / "none")])
    assert "does not exist" in found.output


def test_files_of_a_login_are_the_settings_of_their_names(tmp_path: Path) -> None:
    login = {name: f"{tmp_path}/{name}" for name in ("credentials", "tls_ca", "tls_cert")}
    found = settings_of("tls://host", {**login, "tls_key": None, "nkey": None})
    assert found == NatsSettings.model_validate({"url": "tls://host", **login})


def test_progress_is_a_bar_for_each_table_and_then_the_lag() -> None:
    status = ReplicaStatus(loading=[Loading(name="users", rows=1200, chunks=3, done=1, ranges=2)])
    text = lines(status, width=80).plain
    assert "users" in text
    assert "██████████░░░░░░░░░░ 1,200 rows in 3 chunks" in text
    text = lines(ReplicaStatus(tables=2, changes=5, behind=0), width=80).plain
    assert text == "2 tables live, 5 changes applied, 0 messages to go, 0.0 s behind"
