"""The process that holds a snapshot for a DataFrame: what it holds, and until when. No Spark."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from penstock.batch.holder import HeldTable, TableRequest, hold
from penstock.model.errors import SettingsError, Unavailable
from tests.servers import Database
from tests.waiting import until

_SLEEPER = [sys.executable, "-c", "input()"]


@pytest.fixture
def table(database: Database) -> Database:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT g, repeat('v', 90) FROM generate_series(1, 5000) g")
    return database


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """What a holder is for; it ends when its stdin is closed."""
    with subprocess.Popen(_SLEEPER, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process


def request(database: Database, parent: int, **options: str) -> TableRequest:
    given = {
        "backend": "postgres", "connection": database.url, "table": "public.t",
        "range_size": "64KiB", **options,
    }  # fmt: skip
    return TableRequest(options=given, columns=("v", "id"), parent=parent)


def read(held: HeldTable) -> list[bytes]:
    """The lines of all ranges."""
    with held.source.lines(held.columns, b"", lambda: False) as lines:
        found = [data for each in held.ranges for data, _ in lines(each)]
    return b"".join(found).splitlines()


def is_held(database: Database) -> bool:
    sessions = "SELECT 1 FROM pg_locks WHERE relation = 't'::regclass AND mode = 'AccessShareLock'"
    return bool(database.execute(sessions))


def test_ranges_are_of_one_point_whatever_is_written_meanwhile(
    table: Database, parent: subprocess.Popen[bytes]
) -> None:
    held = hold(request(table, parent.pid))
    assert len(held.ranges) > 3
    table.execute("INSERT INTO t VALUES (9999, 'late'); DELETE FROM t WHERE id <= 100")
    lines = read(held)
    assert len(lines) == len({*lines}) == 5_000
    assert not [each for each in lines if each.startswith(b"late")]
    assert read(held) == lines


def test_it_ends_after_the_process_that_it_is_for(
    table: Database, parent: subprocess.Popen[bytes]
) -> None:
    held = hold(request(table, parent.pid))
    assert is_held(table)
    parent.kill()
    parent.wait()
    until(lambda: not is_held(table))
    with pytest.raises(Unavailable, match="ended") as caught:
        read(held)
    assert caught.value.code == "postgres.snapshot-ended"


def test_it_ends_some_time_after_the_last_use_and_not_while_it_is_used(
    table: Database, parent: subprocess.Popen[bytes]
) -> None:
    held = hold(request(table, parent.pid, hold="3s"))
    with held.source.lines(held.columns, b"", lambda: False) as lines:
        done = threading.Event()
        assert not done.wait(8)
        assert sum(count for each in held.ranges for _, count in lines(each)) == 5_000
        assert len(read(held)) == 5_000
    until(lambda: not is_held(table))


def test_it_gives_way_to_ddl_that_waits_for_it(
    table: Database, parent: subprocess.Popen[bytes]
) -> None:
    hold(request(table, parent.pid))
    table.execute("ALTER TABLE t ADD COLUMN more int")
    assert not is_held(table)


def test_it_has_no_files_of_its_starter(table: Database, parent: subprocess.Popen[bytes]) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    hold(request(table, parent.pid))
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert is_held(table)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"table": "public.nothing"}, "postgres.settings"),
        ({"table": "public.seen"}, "postgres.not-a-table"),
        ({"tables": "public.other"}, "spark.table-missing"),
        ({"where": "nothing = 1"}, "postgres.settings"),
        ({"backend": "memory"}, "spark.no-snapshots"),
    ],
)
def test_what_it_cannot_hold_is_the_starters_error(
    table: Database, parent: subprocess.Popen[bytes], options: dict[str, str], code: str
) -> None:
    table.execute("CREATE VIEW seen AS SELECT * FROM t")
    given = request(table, parent.pid, **options)
    if "backend" in options:
        given = TableRequest(options={**options, "table": "t"}, columns=(), parent=parent.pid)
    with pytest.raises(SettingsError) as caught:
        hold(given)
    assert caught.value.code == code
    until(lambda: not is_held(table))


def test_a_role_without_rights_is_told_what_it_lacks(
    table: Database, parent: subprocess.Popen[bytes]
) -> None:
    table.execute("CREATE ROLE reader LOGIN REPLICATION")
    try:
        url = table.url.replace("postgres@", "reader@")
        assert url != table.url
        with pytest.raises(SettingsError, match="GRANT SELECT"):
            hold(request(table, parent.pid, connection=url))
    finally:
        table.execute("DROP ROLE reader")
