"""A process that is killed at each step of a load, of a commit, and of the way back loses and
repeats nothing, wherever the target is."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.docs.pages import ROOT
from tests.servers import Database, Postgres
from tests.sinks.tables.steps import steps_of
from tests.waiting import until

ROWS = "SELECT id, name, n FROM {} ORDER BY id, name, n"


@contextmanager
def changing(source: Database) -> Iterator[None]:
    """Rows of both tables come, change, get other keys and go, until the block ends."""
    over = threading.Event()

    def change() -> None:
        with psycopg.connect(source.url) as connection:
            number = 0
            while not over.wait(0.005):
                number += 1
                for table in ("items", "notes"):
                    at = [number, f"n{number}", number]
                    connection.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)", at)
                    connection.execute(
                        f"UPDATE {table} SET n = n + 1, name = %s WHERE id %% 7 = %s",
                        [f"u{number}", number % 7],
                    )
                    connection.execute(
                        f"UPDATE {table} SET id = id + 100000 WHERE id = %s", [number - 3]
                    )
                    connection.execute(f"DELETE FROM {table} WHERE id = %s", [number - 20])
                connection.commit()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(params=["postgres", "sqlite"])
def target(
    request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path
) -> Iterator[Database | Path]:
    if request.param == "sqlite":
        yield tmp_path / "target.db"
        return
    with postgres.database() as found:
        yield found


Rows = list[tuple[Any, ...]]


def rows(target: Database | Path, query: str) -> Rows:
    if isinstance(target, Database):
        return target.execute(query)
    with sqlite3.connect(target) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.fault
@pytest.mark.parametrize(  # SQLite's is killed below
    "target", ["postgres", pytest.param("sqlite", marks=pytest.mark.thorough)], indirect=True
)
def test_a_kill_at_each_step_loses_and_repeats_nothing(
    database: Database, target: Database | Path, tmp_path: Path
) -> None:
    for table, key in (("items", "PRIMARY KEY"), ("notes", "")):
        database.execute(f"CREATE TABLE {table} (id int {key}, name text, n int)")
        database.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        database.execute(f"INSERT INTO {table} SELECT -g, 'old', 0 FROM generate_series(1, 2000) g")
    url = target.url if isinstance(target, Database) else str(target)
    follow_through_kills(
        database, url, tmp_path, lambda table: rows(target, ROWS.format(table)), ROWS
    )


def follow_through_kills(
    source: Database, target: str, folder: Path, there: Callable[[str], Rows], query: str
) -> None:
    """The tables `items` and `notes` are changed, while the sink of the URL or folder `target` is
    killed at each step; in the end what is `there` of each is what `query` finds at the source."""
    called = [sys.executable, "-m", "tests.sinks.tables.steps", source.url, target]
    called += [f"sqlite:///{folder / 'positions.db'}"]
    log = folder / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            called, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        ) as run,
    ):
        try:
            with changing(source):
                until(
                    lambda: run.poll() is not None or has_all_steps(log, target),
                    300,
                    problem=log.read_text,
                )
            for table in ("items", "notes"):
                until(
                    lambda table=table: (
                        sorted(there(table)) == sorted(source.execute(query.format(table)))
                    ), 180,
                    problem=lambda table=table: (
                        {*there(table)} ^ {*source.execute(query.format(table))}, log.read_text()
                    ),
                )  # fmt: skip
        finally:
            os.killpg(run.pid, signal.SIGKILL)
    assert has_all_steps(log, target), log.read_text()


def has_all_steps(log: Path, target: str) -> bool:
    return {*steps_of(target)} <= {*log.read_text().splitlines()}


@pytest.mark.fault
@pytest.mark.parametrize(
    "target", [pytest.param("postgres", marks=pytest.mark.thorough), "sqlite"], indirect=True
)
def test_a_kill_while_a_destination_that_went_back_gets_what_it_lacks(
    database: Database, target: Database | Path, tmp_path: Path
) -> None:
    """Read again, or loaded anew where the source has it no more."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int)")
    database.execute("ALTER TABLE other ADD PRIMARY KEY (id)")
    database.execute("INSERT INTO t SELECT g, 'old' FROM generate_series(1, 500) g")
    url = target.url if isinstance(target, Database) else str(target)
    called = [sys.executable, "-m", "tests.sinks.tables.back", database.url, url]
    called += [str(tmp_path / "positions.db")]
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            called, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        ) as run,
    ):
        try:
            run.wait(400)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert has_all_steps(log, url), log.read_text()
    assert has_all_steps(log, url), log.read_text()
