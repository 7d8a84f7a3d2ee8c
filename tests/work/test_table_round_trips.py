"""How often a sink of tables waits for PostgreSQL while it applies changes."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.change import WHOLE
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.tables.postgres_database import PostgresDatabase
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.postgres.test_refusals import others
from tests.sinks.postgres.test_write import rows_of
from tests.waiting import until

TARGETS = """
CREATE TABLE items (id int PRIMARY KEY, name text CHECK (name <> 'bad'));
CREATE TABLE others (id int PRIMARY KEY, name text);
"""
TIED = "ALTER TABLE items ADD FOREIGN KEY (id) REFERENCES others"


class Waits:
    """How often connections of workers wait: for an answer, or to send what is copied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, connect = 0, PostgresDatabase.connect

        def connected(*args: Any) -> Any:
            connection = connect(*args)
            waits = connection.wait

            def wait(*args: Any, **named: Any) -> Any:
                self.count += 1
                return waits(*args, **named)

            if threading.current_thread().name.startswith("penstock-apply"):
                connection.wait = wait
            return connection

        monkeypatch.setattr(PostgresDatabase, "connect", connected)

    def of(self, database: Database, *commits: list[pa.RecordBatch]) -> list[int]:
        """Of each commit after the first."""
        entries = [{"backend": "default", "tables": {"items": {}, "others": {}}}]
        sink = PostgresSink(PostgresSinkSettings(
            connection=database.url, map=entries, commit={"wait": "1ms"}, workers=1,
            on_error="dead-letter",
        ))  # fmt: skip
        noted, counts = Noted(), list[int]()

        def changes() -> Iterator[pa.RecordBatch]:
            for number, (*batches, last) in enumerate(commits, 1):
                yield from batches
                yield last.replace_schema_metadata(WHOLE)
                done = {f"00000000/{number:08X}"}
                until(lambda done=done: {at.cursor for at in noted.position.values()} == done, 60)
                counts.append(self.count)

        sink.write(changes(), noted)
        return [end - begin for begin, end in pairwise(counts)]


def of_both(commit: int) -> list[pa.RecordBatch]:
    """A row of each table, in one transaction."""
    one = rows_of(f"INSERT {commit} a", commit=commit, start=1)
    return [others(f"INSERT {commit} a", commit=commit), one]


def test_a_commit_waits_for_what_its_tables_need(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(TARGETS)
    of_one = [[rows_of(f"INSERT {n}1 a", f"UPDATE 11 {n}", commit=n)] for n in (4, 5)]
    refused = [rows_of("INSERT 61 a", "INSERT 62 bad", "INSERT 63 c", "INSERT 64 c", commit=6)]
    commits = [*map(of_both, (1, 2, 3)), *of_one, refused]
    *usual, isolated = Waits(monkeypatch).of(database, *commits)[1:]
    assert usual == [22, 13, 13]
    assert isolated <= 44


def test_a_commit_of_tied_tables_waits_no_more_often(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(TARGETS + TIED)
    assert Waits(monkeypatch).of(database, *map(of_both, (1, 2, 3)))[1:] == [18]
