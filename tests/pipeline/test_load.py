"""Tables of a sink of tables are loaded, by `penstock run`, on real servers."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.pipeline.running import eventually, running
from tests.servers import Database, Postgres

ROWS = "SELECT count(*), md5(string_agg(md5(t::text), '' ORDER BY t::text)) FROM {} t"
STILL = "(id <= 20000 AND mod(id, 10) = 3)"


def document(
    source: Database, target: Database, tables: dict[str, Any], snapshot: dict[str, Any]
) -> dict[str, Any]:
    return {
        "backends": [{
            "name": "shop", "type": "postgres", "connection": source.url,
            "slot": f"slot_{source.name}", "publication": "pub",
        }],
        "sink": {
            "type": "postgres", "connection": target.url,
            "map": [{"backend": "shop", "tables": tables}],
        },
        "snapshot": snapshot,
    }  # fmt: skip


def equal(source: Database, target: Database, table: str, of: str) -> bool:
    """Whether both have the same rows, text by text."""
    return source.execute(ROWS.format(table)) == target.execute(ROWS.format(of))


def states(target: Database) -> dict[str, str]:
    if target.execute("SELECT to_regclass('penstock.ledger')") == [(None,)]:
        return {}
    return dict(target.execute('SELECT "table", state FROM penstock.ledger'))


@contextmanager
def changing(source: Database) -> Iterator[Callable[[], None]]:
    """Changes of all kinds, until the function is called; rows of `STILL` are left alone.

    Rows whose key changes are sent whole.
    """
    over = threading.Event()

    def change() -> None:
        with psycopg.connect(source.url, autocommit=True) as connection:
            number = 0
            while not over.wait(0.005):
                number += 1
                connection.execute(
                    f"UPDATE items SET note = %s WHERE mod(id, 1000) = %s AND NOT {STILL}",
                    [f"n{number}", number % 999],
                )
                connection.execute(
                    f"DELETE FROM items WHERE id = %s AND NOT {STILL}", [number * 1000 % 20011]
                )
                connection.execute(
                    "INSERT INTO items VALUES (%s, now(), %s, %s)",
                    [100_000 + number, "x\ty\\", "z" * 3000],
                )
                connection.execute(
                    "UPDATE items SET id = id + 1000000"
                    f" WHERE id = %s AND mod(id, 50) > 0 AND NOT {STILL}",
                    [number * 7 % 20011],
                )
                connection.execute("INSERT INTO notes VALUES (%s)", [f"note {number}"])
                connection.execute("DELETE FROM notes WHERE text = %s", [f"note {number // 2}"])

    thread = threading.Thread(target=change)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    try:
        yield end
    finally:
        end()


@pytest.fixture
def source(database: Database) -> Database:
    """20,000 rows of a table with a key and large values, and 3,000 of one without."""
    database.execute(
        "CREATE TABLE items (id bigint PRIMARY KEY, at timestamptz, note text, large text)"
    )
    database.execute("ALTER TABLE items ALTER large SET STORAGE EXTERNAL")
    database.execute("CREATE TABLE notes (text text)")
    database.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
    database.execute(
        "INSERT INTO items SELECT n, now(), 'n', repeat(n::text, CASE WHEN n % 50 = 0 THEN 2000"
        " ELSE 1 END) FROM generate_series(1, 20000) n"
    )
    database.execute("INSERT INTO notes SELECT 'note ' || n % 1000 FROM generate_series(1, 3000) n")
    database.execute("CREATE PUBLICATION pub FOR TABLE items, notes")
    return database


def test_a_kill_in_mid_load_repeats_no_range_and_loses_no_change(
    source: Database, postgres: Postgres, tmp_path: Path
) -> None:
    """And a table that has joined the map meanwhile is loaded alone."""
    with postgres.database() as target:
        target.execute(
            "CREATE TABLE items (id bigint PRIMARY KEY, at timestamptz, note text, large text)"
        )
        slow = {"chunk_rows": 20, "row_rate": 1500}
        first = document(source, target, {"items": None}, slow)
        done = "SELECT count(*) FROM penstock.loading WHERE is_done"
        with changing(source) as end:
            with running(tmp_path, first) as run:
                eventually(lambda: "items" in states(target), run=run)
                eventually(lambda: target.execute(done)[0][0] >= 2, run=run)
                run.kill_and_wait()
            written = f"SELECT id, xmin::text FROM items WHERE {STILL}"
            before = target.execute(written)
            assert states(target) == {"items": "loading"}
            tables = {"items": None, "notes": {"create": True, "target": "remarks"}}
            snapshot = {"chunk_rows": 20}
            second = document(source, target, tables, snapshot)
            with running(tmp_path, second) as run:
                live = {"items": "live", "notes": "live"}
                eventually(lambda: states(target) == live, run=run)
                end()
                eventually(lambda: equal(source, target, "items", "items"), run=run)
                eventually(lambda: equal(source, target, "notes", "remarks"), run=run)
        assert before and set(before) <= set(target.execute(written))
        assert target.execute("SELECT count(*) FROM penstock.held") == [(0,)]
