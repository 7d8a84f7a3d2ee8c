"""Both transports say the same: on a plain connection and under TLS, on a real server."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.feeds.postgres.transport import LibpqTransport, PlainTransport, Transport, start
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.position import Bookmark
from tests.feeds.postgres.reading import Reader
from tests.servers import Database, Postgres


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
            "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt"),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def secure(certificate: Path) -> Iterator[Postgres]:
    """A server that speaks TLS and plain: Debian's, the builds on PyPI are without TLS."""
    try:
        fresh = Postgres(version=15, settings={"fsync": False})
    except Unavailable as error:
        pytest.skip(str(error))
    with fresh as server:
        for name in ("server.crt", "server.key"):
            target = server.data / name
            target.write_bytes((certificate / name).read_bytes())
            target.chmod(0o600)
            owner = server.data.stat()
            os.chown(target, owner.st_uid, owner.st_gid)
        server.stop()
        server.settings["ssl"] = "on"
        server.start()
        yield server


@pytest.fixture(params=["plain", "tls"])
def encrypted(
    request: pytest.FixtureRequest, secure: Postgres, certificate: Path
) -> Iterator[Database]:
    """A database whose URL says how to connect."""
    with secure.database() as fresh:
        more = "?sslmode=disable"
        if request.param == "tls":
            more = f"?sslmode=verify-full&sslrootcert={certificate / 'server.crt'}"
        yield Database(name=fresh.name, url=fresh.url + more)


def _tls(database: Database) -> bool:
    return "verify-full" in database.url


def test_the_kind_of_connection_chooses_the_transport(encrypted: Database) -> None:
    reader = Reader(encrypted).prepare()
    transport = reader.following._transport  # type: ignore[attr-defined]
    assert type(transport) is (LibpqTransport if _tls(encrypted) else PlainTransport)
    ((ssl,),) = encrypted.execute(
        "SELECT ssl FROM pg_stat_replication JOIN pg_stat_ssl USING (pid)"
        " WHERE application_name = 'penstock' AND pid ="
        " (SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s)",
        [reader.slot],
    )
    assert ssl is _tls(encrypted)
    reader.close()


def test_rows_acknowledgements_and_resuming_work_alike(encrypted: Database) -> None:
    encrypted.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    reader = Reader(encrypted).prepare()
    encrypted.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g")
    rows = reader.take(20_000)
    assert [row["after"]["id"] for row in rows] == list(range(1, 20_001))
    reader.following.acknowledge(Bookmark(reader.pages[-1].last))
    target = reader.lsn("SELECT pg_current_wal_lsn()")
    reader.until(lambda: reader.confirmed() >= target)
    reader.close()
    encrypted.execute("INSERT INTO t VALUES (0, 'later')")
    (row,) = reader.take(1)
    assert row["after"]["id"] == 0
    reader.close()


def test_a_row_of_20_megabytes_arrives(encrypted: Database) -> None:
    encrypted.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    reader = Reader(encrypted).prepare()
    encrypted.execute("INSERT INTO t VALUES (1, repeat('x', 20000000))")
    (row,) = reader.take(1)
    assert row["after"]["a"] == "x" * 20_000_000
    reader.close()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("START_REPLICATION SLOT missing LOGICAL 0/0", "does not exist"),
        ("IDENTIFY_SYSTEM", ""),  # starts no copy
    ],
)
def test_a_refused_start_says_why(encrypted: Database, command: str, says: str) -> None:
    connection = psycopg.connect(_replication(encrypted), autocommit=True)
    with pytest.raises(PenstockError, match=says):
        start(connection, command)
    assert connection.closed


def test_an_error_in_the_stream_is_an_error_of_ours(encrypted: Database) -> None:
    reader = Reader(encrypted).prepare()
    reader.following.read(0)
    _terminate(reader)
    with pytest.raises(Unavailable):
        for _ in range(600):
            reader.following.read(0.1)
    assert reader.following.status()["connected"] is False
    reader.close()


def test_sending_to_a_server_that_is_gone_is_unavailable(encrypted: Database) -> None:
    reader = Reader(encrypted).prepare()
    reader.following.read(0)
    transport: Transport = reader.following._transport  # type: ignore[attr-defined]
    _terminate(reader)
    deadline = time.monotonic() + 60
    with pytest.raises(Unavailable):
        while time.monotonic() < deadline:
            transport.send(b"r" + bytes(33))
            time.sleep(0.05)
    transport.close()
    transport.close()


def test_a_server_that_must_encrypt_and_can_not_names_the_setting(database: Database) -> None:
    reader = Reader(Database(name=database.name, url=database.url + "?sslmode=require"))
    with pytest.raises(SettingsError) as caught:
        reader.prepare()
    assert "sslmode" in caught.value.hint


def _replication(database: Database) -> str:
    return database.url + "&replication=database"


def _terminate(reader: Reader) -> None:
    reader.database.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
        [reader.slot],
    )
