"""The embedded servers come up, keep their port over a crash, and say why when they do not."""

import os
import socket
import subprocess
import tempfile
from pathlib import Path

import boto3
import psycopg
import pymongo
import pytest

from penstock.demo.sources.postgres import reachable
from penstock.model.errors import Unavailable
from tests.servers import Database, Moto, Nats, Postgres, Secantus, postgres_bin


def test_every_version_serves_logical_decoding(postgres_any: Postgres) -> None:
    [(level, version)] = postgres_any.execute(
        "SELECT current_setting('wal_level'), current_setting('server_version_num')::int / 10000"
    )
    assert (level, version) == ("logical", postgres_any.version)


def test_a_killed_postgres_starts_again_with_its_data_on_its_port() -> None:
    with Postgres(settings={"fsync": False, "work_mem": "7MB"}) as server:
        assert server.execute("SHOW work_mem") == [("7MB",)]
        server.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
        port, pid = server.port, server.pid
        server.kill()
        with pytest.raises(Unavailable):
            _ = server.pid
        server.start()
        assert (server.port, server.pid != pid) == (port, True)
        assert server.execute("SELECT id FROM t") == [(1,)]
        server.stop("immediate")
        server.start()
        assert server.execute("SELECT id FROM t") == [(1,)]
    assert not server.folder.exists()


def test_a_password_is_asked_for_when_hba_says_so() -> None:
    with Postgres(hba=["host all guarded 127.0.0.1/32 scram-sha-256"]) as server:
        server.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        psycopg.connect(server.url_of("postgres", "guarded", "right")).close()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.url_of("postgres", "guarded", "wrong"))


def test_a_wrong_setting_is_unavailable_with_the_end_of_the_log() -> None:
    server = Postgres(settings={"no_such_setting": 1})
    with pytest.raises(Unavailable, match="no_such_setting"), server:
        pass
    assert not server.folder.exists()


def test_an_absent_version_names_the_package_to_install() -> None:
    with pytest.raises(Unavailable, match="apt-get install postgresql-9"):
        postgres_bin(9)


def test_a_database_goes_with_its_slots_even_when_they_are_in_use(postgres: Postgres) -> None:
    with postgres.database() as database:
        database.execute("SELECT pg_create_logical_replication_slot('demo_gone', 'pgoutput')")
        held = psycopg.connect(database.url)
    held.close()
    assert postgres.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database.name]) == []
    assert postgres.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name='demo_gone'") == []


def test_execute_returns_the_rows_of_the_last_statement(database: Database) -> None:
    assert database.execute("CREATE TABLE t (id int)") == []
    assert database.execute("INSERT INTO t VALUES (%s) RETURNING id", [5]) == [(5,)]
    assert database.execute("SELECT 1; SELECT id FROM t") == [(5,)]


def test_a_killed_nats_server_keeps_its_port() -> None:
    with Nats(config={"max_payload": 4096}) as server:
        port = server.port
        assert _info(server).count('"max_payload":4096') == 1
        assert '"jetstream":true' in _info(server)
        server.kill()
        server.start()
        assert server.port == port
        assert '"jetstream":true' in _info(server)


def test_jetstream_can_be_turned_off() -> None:
    with Nats(config={"jetstream": False}) as server:
        assert '"jetstream":true' not in _info(server)


def test_a_taken_port_is_said_and_not_taken_for_ours(nats: Nats, tmp_path: Path) -> None:
    second = Nats(folder=tmp_path)
    second.port = nats.port
    second.timeout = 5.0  # the port is tried again as long
    with pytest.raises(Unavailable, match="address already in use"):
        second.start()


def test_programs_that_nobody_can_reach_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root runs PostgreSQL as somebody else")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("penstock.demo.sources.postgres.reachable", lambda _: False)
    first = postgres_bin(16)
    assert first.is_relative_to(tmp_path)
    said = subprocess.run([first / "postgres", "--version"], capture_output=True, check=True)
    assert b"PostgreSQL) 16" in said.stdout
    assert postgres_bin(16) == first
    assert len(list(tmp_path.iterdir())) == 1


def test_a_private_folder_on_the_way_is_not_reachable(tmp_path: Path) -> None:
    inner = tmp_path / "private" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)
    assert not reachable(inner)


def _info(server: Nats) -> str:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        return connection.recv(65536).decode()


def test_a_killed_mongodb_stand_in_starts_again_with_its_data_on_its_port() -> None:
    with Secantus() as server, pymongo.MongoClient(server.url) as client:
        assert client.admin.command("hello")["setName"] == "secantus"
        client.shop.users.insert_one({"_id": 1})
        port, pid = server.port, server.pid
        server.kill()
        server.start()
        assert (server.port, server.pid != pid) == (port, True)
        assert client.shop.users.find_one() == {"_id": 1}
    assert not server.folder.exists()


def test_the_dynamodb_stand_in_serves_streams() -> None:
    with Moto() as server:
        login = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
        where = {"endpoint_url": server.url, "region_name": "us-east-1"}
        client = boto3.client("dynamodbstreams", **where, **login)
        assert client.list_streams()["Streams"] == []
    assert not server.folder.exists()
