"""The server stops, restarts, crashes, hangs: nothing is lost, and everything is noticed."""

import os
import signal
import time
from collections.abc import Iterator

import psycopg
import pytest

from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.feeds.postgres.connect import connect_replication
from penstock.feeds.postgres.slot import identify_system
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark
from tests.feeds.postgres.reading import Reader
from tests.servers import Database, Postgres

pytestmark = pytest.mark.fault


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server of our own, to be mistreated."""
    with Postgres(version=16, settings={"fsync": False}) as server:
        yield server


@pytest.fixture
def own(server: Postgres) -> Iterator[Database]:
    """A database on it, with the table `t`."""
    with server.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield database


def _until_unavailable(reader: Reader, seconds: float = 60.0) -> Unavailable:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            reader.following.read(0.2)
        except Unavailable as error:
            return error
    raise AssertionError("the reader noticed nothing")


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_a_restart_in_the_middle_loses_and_repeats_nothing(
    server: Postgres, own: Database, mode: str
) -> None:
    reader = Reader(own, page_rows=10).prepare()
    own.execute("INSERT INTO t SELECT generate_series(1, 100)")
    reader.following.read(5)
    reader.close()  # what was read is thrown away: it was not acknowledged
    reader.pages.clear()
    first = reader.take(30)
    if mode == "kill":
        server.kill()
    else:
        server.stop(mode, timeout=3)  # type: ignore[arg-type]
    _until_unavailable(reader)
    reader.close()
    with pytest.raises(Unavailable):
        reader.feed.follow(reader.slot)
    server.start()
    own.execute("INSERT INTO t VALUES (101)")
    rest = reader.take(101 - len(first))
    assert [row["after"]["id"] for row in [*first, *rest]] == list(range(1, 102))
    reader.close()


def test_a_fast_stop_does_not_wait_for_an_idle_reader(server: Postgres, own: Database) -> None:
    reader = Reader(own).prepare()
    own.execute("INSERT INTO t VALUES (1)")
    reader.take(1)
    reader.following.acknowledge(Bookmark(reader.pages[-1].last))
    target = reader.lsn("SELECT pg_current_wal_lsn()")
    reader.until(lambda: reader.confirmed() >= target)
    server.signal(signal.SIGINT)
    _until_unavailable(reader)
    assert server.wait(60)
    reader.close()
    server.start()


def test_a_wal_sender_that_hangs_is_noticed(own: Database) -> None:
    reader = Reader(own, silence="1500ms").prepare()
    began = time.monotonic()
    reader.following.read(0.2)
    ((pid,),) = own.execute(
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [reader.slot]
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        reader.following.keep_alive()
        error = _until_unavailable(reader)
        assert "sent nothing" in str(error)
        assert time.monotonic() - began > 1.4, "as long as the server may be silent"
    finally:
        os.kill(pid, signal.SIGCONT)
        reader.close()


def test_a_silent_slot_is_not_taken_for_a_hung_server(own: Database) -> None:
    reader = Reader(own, silence="5s").prepare()
    reader.nothing(11)
    reader.close()


def test_a_reader_that_paused_does_not_take_its_own_silence_for_the_servers(own: Database) -> None:
    reader = Reader(own, silence="2s").prepare()
    reader.following.read(0)
    for _ in range(25):
        reader.following.keep_alive()
        time.sleep(0.1)
    reader.nothing(0.5)
    time.sleep(3)
    reader.nothing(0.5)
    reader.close()


def test_a_server_that_hangs_while_we_connect_is_unavailable(
    server: Postgres, own: Database
) -> None:
    reader = Reader(own, connect_timeout="2s")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            reader.feed.begin()
        assert time.monotonic() - began < 30
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_process_of_the_server_that_hangs_is_not_waited_for_without_limit(
    server: Postgres,
) -> None:
    feed = PostgresFeed(
        PostgresSettings(connection=server.url, slot="s", publication="p", connect_timeout=2)
    )
    with connect_replication(feed.settings) as connection:
        pid = connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            before = time.monotonic()
            with pytest.raises(Unavailable, match="no answer"):
                identify_system(connection)
            assert time.monotonic() - before < 30
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_slot_that_waits_for_a_long_transaction_is_made_later(own: Database) -> None:
    reader = Reader(own)
    with psycopg.connect(own.url) as busy:
        busy.execute("INSERT INTO t VALUES (1)")
        with psycopg.connect(own.url, autocommit=True) as other:
            other.execute("SET statement_timeout = 500")
            with pytest.raises(psycopg.errors.QueryCanceled):
                other.execute(
                    "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [reader.slot]
                )
    reader.prepare()
    own.execute("INSERT INTO t VALUES (2)")
    (row,) = reader.take(1)
    assert row["after"]["id"] == 2
    reader.close()


def test_an_immediate_second_reader_waits_for_the_first_and_goes_on(own: Database) -> None:
    first = Reader(own).prepare()
    own.execute("INSERT INTO t VALUES (1)")
    first.take(1)
    second = Reader(own)
    with pytest.raises(Unavailable, match="in use by the process"):
        second.feed.follow(second.slot)
    first.close()
    (row,) = second.take(1)
    assert row["after"]["id"] == 1
    second.close()
