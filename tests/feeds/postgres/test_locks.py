"""DDL of the application's waits for a lock of penstock's, and never ends because of it."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from penstock.feeds import SnapshotWait
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.feeds.postgres.connect import connect_ordinary
from penstock.model.errors import PenstockError
from tests.feeds.postgres.reading import Reader
from tests.servers import Database
from tests.waiting import until

TREE = (
    "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20);"
    "CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (20) TO (30);"
    "INSERT INTO t SELECT generate_series(1, 29)"
)
# Statements of one transaction: the first locks what penstock comes to last.
ORDERS = {
    "the last partition, then the first": ("TRUNCATE t_3", "TRUNCATE t_1"),
    "a partition, then the root": (
        "ALTER TABLE t_2 ADD CHECK (id < 99)",
        "ALTER TABLE t ADD n int",
    ),
    "two partitions, then the root": ("TRUNCATE t_2", "TRUNCATE t_3", "LOCK TABLE t"),
}


def load(reader: Reader) -> None:
    snapshot = reader.feed.snapshot("public", "t", {}, SnapshotWait(patience=60))
    with snapshot, snapshot.source.opened():
        pass


def look(reader: Reader) -> None:
    reader.feed.current_schemas()
    reader.feed.left_out()


WAITING = """
SELECT a.pid, a.query_start, clock_timestamp() - a.query_start > %s * interval '1 s'
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.application_name = 'penstock' AND a.datname = current_database()
"""
TRUNCATES = (
    "SELECT true FROM pg_stat_activity WHERE query = 'TRUNCATE t' AND wait_event_type = 'Lock'"
)


class Deadlocks:
    """Work of penstock's, again and again, beside transactions of an application."""

    def __init__(self, reader: Reader, work: Callable[[Reader], None]) -> None:
        self._reader, self._work, self._is_over = reader, work, threading.Event()
        self.done, self._errors = 0, list[BaseException]()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Deadlocks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(90)
        if self._errors:
            raise self._errors[0]

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with suppress(PenstockError):
                    self._work(self._reader)
                    self.done += 1
            except BaseException as error:
                self._errors.append(error)
                return

    def has_waited(self, seconds: float) -> Callable[[], bool]:
        """True once a statement of it has waited for a lock for so long, or for the second time."""
        seen = set[Any]()

        def found() -> bool:
            rows = self._reader.database.execute(WAITING, [seconds])
            seen.update(row[:2] for row in rows)
            return len(seen) > 1 or any(is_long for *_, is_long in rows)

        return found


@pytest.mark.parametrize("limit", ["1s", "200ms"])
@pytest.mark.parametrize("work", [load, look])
@pytest.mark.parametrize("order", ORDERS)
def test_ddl_of_several_partitions_is_never_ended_for_a_deadlock(
    order: str, work: Callable[[Reader], None], limit: str, reader: Reader
) -> None:
    """The server ends whose wait is the first to last for `deadlock_timeout`, once it is in a
    deadlock: that of penstock's may have been longer already, without one."""
    database = reader.database
    database.execute(f"ALTER DATABASE {database.name} SET deadlock_timeout = '{limit}'")
    seconds = {"1s": 1.2, "200ms": 0.25}[limit]
    reader.prepare(TREE)
    database.execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    first, *rest = ORDERS[order]
    with psycopg.connect(database.url) as application:
        application.execute(first.encode())
        with Deadlocks(reader, work) as works:
            until(works.has_waited(seconds), 60)
            for statement in rest:
                application.execute(statement.encode())
            application.commit()
            until(lambda: works.done, 120)


# What an older transaction of an application waits for: our lock itself, or what waits for that.
CIRCLES = {
    "our lock": ("TRUNCATE t", ""),
    "one in between": ("INSERT INTO t VALUES (9)", "TRUNCATE t"),
}


@pytest.mark.parametrize("circle", CIRCLES)
def test_a_load_gives_way_to_ddl_that_its_slot_waits_for(circle: str, reader: Reader) -> None:
    """The server sees no deadlock: the lock and the slot are of two connections."""
    database, (waits, between) = reader.database, CIRCLES[circle]
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int)")
    with psycopg.connect(database.url) as application, Deadlocks(reader, load) as works:
        application.execute("INSERT INTO u VALUES (1)")
        until(works.has_waited(0.1), 60)
        other = threading.Thread(target=database.execute, args=[between]) if between else None
        if other is not None:
            other.start()
            until(lambda: database.execute(TRUNCATES), 30)
        application.execute("SET statement_timeout = '30s'")
        application.execute(waits.encode())
        application.commit()
        if other is not None:
            other.join(60)
        until(lambda: works.done, 120)


@pytest.fixture
def feed(database: Database) -> PostgresFeed:
    return PostgresFeed(PostgresSettings(
        name=database.name, connection=database.url, tables=("a", "b", "c"), silence=60
    ))  # fmt: skip


def test_a_table_that_is_locked_keeps_no_other_out_of_the_publication(
    feed: PostgresFeed, database: Database
) -> None:
    feed.begin()
    database.execute("; ".join(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"))
    with psycopg.connect(database.url) as application:
        application.execute("LOCK TABLE b")
        assert {each.table for each in feed.current_schemas()} == {"a", "c"}
        assert [*feed.left_out()] == [("public", "b")]
        application.execute("LOCK TABLE a")
    assert {each.table for each in feed.current_schemas()} == {"a", "b", "c"}
    assert feed.left_out() == {}


def test_no_statement_of_penstocks_waits_as_long_as_the_server_waits_for_a_deadlock(
    feed: PostgresFeed, database: Database
) -> None:
    for limit, most in (("1s", "500ms"), ("30ms", "15ms"), ("1min", "500ms"), ("1ms", "1ms")):
        database.execute(f"ALTER DATABASE {database.name} SET deadlock_timeout = '{limit}'")
        with closing(connect_ordinary(feed.settings)) as connection:
            assert connection.execute("SHOW lock_timeout").fetchone() == (most,)
