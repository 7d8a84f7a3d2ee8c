"""The slot: when it moves, when it must not, and what is said when it can't be used."""

import time
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from penstock.feeds.postgres.slot import find_slot, refuse_unusable
from penstock.feeds.postgres.transport import start
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.position import Bookmark, Place
from penstock.wire.pgoutput.lsn import lsn_of
from tests.feeds.postgres.reading import Reader
from tests.servers import Postgres
from tests.waiting import until

_NOW = "SELECT pg_current_wal_lsn()"
_NOISE = "CREATE TABLE {0} (id int); INSERT INTO {0} SELECT generate_series(1, 1000)"


def test_an_idle_slot_moves_within_seconds(reader_any: Reader) -> None:
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    reader_any.following.read(0)
    # WAL of this server that is none of our business.
    with psycopg.connect(reader_any.database.url, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE noise (id int)")
        connection.execute("SELECT pg_switch_wal()")
    target = reader_any.lsn(_NOW)
    reader_any.until(lambda: reader_any.confirmed() >= target)


def test_a_publication_that_filters_everything_moves_its_slot(reader_any: Reader) -> None:
    database = reader_any.database
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE quiet")
    reader_any.prepare()
    reader_any.following.read(0)
    for number in range(5):
        database.execute(_NOISE.format(f"noise{number}"))
    target = reader_any.lsn(_NOW)
    reader_any.until(lambda: reader_any.confirmed() >= target)
    assert reader_any.rows == []


def test_the_slot_stays_below_the_first_change_that_is_not_acknowledged(
    reader_any: Reader,
) -> None:
    database = reader_any.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    reader_any.prepare()
    reader_any.following.read(0)
    before = reader_any.lsn(_NOW)
    for number in range(4):
        database.execute(f"INSERT INTO t SELECT generate_series({number * 10}, {number * 10 + 4})")
    reader_any.take(20)
    ends = [reader_any.rows[number * 5 + 4] for number in range(4)]

    def place(row: dict[str, object]) -> Place:
        return Place(str(row["cursor"]), int(str(row["ordinal"])))

    middle = reader_any.rows[7]  # of the second transaction
    commits = [lsn_of(str(row["cursor"])) for row in ends]
    for row, least, most in (
        (ends[0], before, commits[1]),
        (middle, before, commits[1]),
        (ends[1], commits[1], commits[2]),
    ):
        reader_any.following.acknowledge(Bookmark(place(row)))
        reader_any.until(lambda least=least: reader_any.confirmed() > least)
        for _ in range(12):
            reader_any.following.read(0.1)
        assert reader_any.confirmed() <= most
    reader_any.following.acknowledge(Bookmark(place(ends[3])))
    target = reader_any.lsn(_NOW)
    reader_any.until(lambda: reader_any.confirmed() >= target)


def test_keep_alive_alone_acknowledges(reader: Reader) -> None:
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    reader.database.execute("INSERT INTO t VALUES (1)")
    reader.take(1)
    before = reader.confirmed()
    reader.following.acknowledge(Bookmark(reader.pages[-1].last))

    def moved() -> bool:
        reader.following.keep_alive()
        return reader.confirmed() > before

    until(moved)


def test_a_reader_that_resumes_holds_the_slot_until_its_place_is_durable(reader: Reader) -> None:
    """It may have pages in its buffer that are not stored anywhere yet."""
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    before = reader.confirmed()
    reader.database.execute("INSERT INTO t VALUES (1)")
    reader.database.execute("INSERT INTO t VALUES (2)")
    reader.take(2)
    reader.close()
    for _ in range(25):
        reader.following.read(0.1)
    assert reader.confirmed() == before
    reader.following.acknowledge(Bookmark(reader.pages[-1].last))
    target = reader.lsn(_NOW)
    reader.until(lambda: reader.confirmed() >= target)


def test_a_heartbeat_moves_a_slot_whose_database_is_idle(reader_of: Callable[..., Reader]) -> None:
    reader = reader_of(heartbeat="200ms").prepare()
    first = reader.confirmed()
    reader.until(lambda: reader.confirmed() > first)
    assert reader.rows == []
    before = reader.lsn(_NOW)
    reader.until(lambda: reader.lsn(_NOW) > before)


def test_the_server_and_we_do_not_play_ping_pong(reader: Reader) -> None:
    reader.prepare()
    reader.following.read(2.0)
    received = int(str(reader.following.status()["details"]["keepalives"]))
    reader.following.read(2.0)
    assert int(str(reader.following.status()["details"]["keepalives"])) - received < 10


def test_a_reader_whose_slot_is_taken_while_it_starts_is_told_the_same(reader: Reader) -> None:
    reader.prepare()
    reader.following.read(0)
    connection = psycopg.connect(reader.database.url + "?replication=database", autocommit=True)
    with pytest.raises(Unavailable, match="is active for PID"):
        start(
            connection,
            f"START_REPLICATION SLOT {reader.slot} LOGICAL 0/0"
            " (proto_version '1', publication_names 'p')",
        )


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("pg_create_logical_replication_slot('{}', 'pgoutput', false, true)", "two_phase"),
        ("pg_create_physical_replication_slot('{}')", "physical"),
    ],
)
def test_a_slot_of_another_kind_is_refused_with_the_remedy(
    reader: Reader, made: str, message: str
) -> None:
    reader.database.execute(f"SELECT {made.format(reader.slot)}")
    try:
        with pytest.raises(SettingsError, match=message) as caught:
            reader.prepare()
        assert f"pg_drop_replication_slot('{reader.slot}')" in caught.value.hint
    finally:
        reader.database.execute(f"SELECT pg_drop_replication_slot('{reader.slot}')")


def test_a_slot_of_another_plugin_is_refused_with_the_remedy(reader: Reader) -> None:
    reader.prepare()
    with psycopg.connect(reader.database.url, autocommit=True) as connection:
        slot = find_slot(connection, reader.slot)
    assert slot is not None
    with pytest.raises(SettingsError, match="is of wal2json, not of pgoutput"):
        refuse_unusable(replace(slot, plugin="wal2json"))


def test_a_slot_of_another_database_is_refused(reader: Reader, postgres: Postgres) -> None:
    postgres.execute(f"SELECT pg_create_logical_replication_slot('{reader.slot}', 'pgoutput')")
    try:
        with pytest.raises(SettingsError, match="belongs to the database postgres"):
            reader.prepare()
    finally:
        postgres.execute(f"SELECT pg_drop_replication_slot('{reader.slot}')")


def test_a_missing_publication_is_an_error_with_its_sql(reader_of: Callable[..., Reader]) -> None:
    reader = reader_of(create_publication=False, tables="a, other.b")
    with pytest.raises(SettingsError) as caught:
        reader.prepare()
    assert 'CREATE PUBLICATION "p" FOR TABLE ONLY "other"."b", ONLY "public"."a"' in str(
        caught.value
    )


def test_a_publication_that_is_dropped_while_we_follow_is_an_error(reader: Reader) -> None:
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    reader.following.read(0)
    reader.database.execute("DROP PUBLICATION p")
    reader.database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(SettingsError, match="publication"):
        for _ in range(600):
            reader.following.read(0.1)


def test_a_partition_that_is_not_the_slot_does_not_exist(reader: Reader) -> None:
    with pytest.raises(SettingsError):
        reader.feed.follow("another")
    assert [each.partition for each in reader.feed.partitions()] == [reader.slot]


def test_the_status_tells_one_server_from_another(reader: Reader) -> None:
    reader.prepare()
    reader.following.read(0)
    status = reader.following.status()["details"]
    ((identifier,),) = reader.database.execute("SELECT system_identifier FROM pg_control_system()")
    assert status["system_identifier"] == str(identifier)
    assert status["timeline"] == 1
    assert status["server_version"] // 10_000 == 16
    assert status["protocol"] == 2


def test_the_lag_of_a_backlog_is_known_from_the_start(reader: Reader) -> None:
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY, a text)")
    reader.database.execute(
        "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 9999) g"
    )
    lag = int(str(reader.following.status()["lag_bytes"]))
    assert lag > 4_000_000
    reader.take(9999)
    assert float(str(reader.following.status()["lag_seconds"])) > 0
    reader.following.acknowledge(Bookmark(reader.pages[-1].last))
    reader.until(lambda: reader.following.status()["lag_bytes"] == 0)
    assert reader.following.status()["lag_seconds"] == 0


def test_a_side_connection_that_the_server_closed_is_made_anew(
    reader_of: Callable[..., Reader],
) -> None:
    reader = reader_of(heartbeat="100ms").prepare()
    first = reader.confirmed()
    reader.until(lambda: reader.confirmed() > first)
    reader.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'penstock' AND backend_type = 'client backend'"
    )
    again = reader.lsn(_NOW)
    reader.until(lambda: reader.confirmed() > again)


def test_a_server_with_a_short_timeout_hears_of_us_often_enough() -> None:
    settings = {"wal_sender_timeout": "6s", "fsync": False}
    with Postgres(version=16, settings=settings) as server, server.database() as database:
        reader = Reader(database).prepare()
        for _ in range(130):
            reader.following.keep_alive()
            time.sleep(0.1)
        assert "terminating walsender" not in server.log
        reader.nothing()
        reader.close()
