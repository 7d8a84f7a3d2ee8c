"""Tables of a sink of tables are loaded, by `penstock run`, on real servers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.pipeline.running import CLASSES, eventually, running
from tests.servers import Database, Postgres

ROWS = "SELECT t::text FROM {} t ORDER BY t::text"
STILL = "(id <= 20000 AND mod(id, 10) = 3)"


def document(folder: Path, source: Database, target: Database, **more: Any) -> dict[str, Any]:
    tables = more.pop("tables", {"items": None, "notes": None})
    return {
        "name": "test",
        "backends": [{
            "name": "shop", "type": "postgres", "connection": source.url,
            "slot": f"slot_{source.name}", "publication": "pub",
        }],
        "sink": {
            "type": "postgres", "connection": target.url,
            "map": [{"backend": "shop", "tables": tables}],
        },
        "state": str(folder / "state"),
        "ops": {"port": 0},
        **({"spark": {"class_archive": str(CLASSES)}} if CLASSES.exists() else {}),
        **more,
    }  # fmt: skip


def equal(source: Database, target: Database, *tables: str, of: str = "") -> bool:
    """Whether both have the same rows, text by text."""
    return all(
        source.execute(ROWS.format(table)) == target.execute(ROWS.format(of or table))
        for table in tables
    )


def states(target: Database) -> dict[str, str]:
    if target.execute("SELECT to_regclass('penstock.ledger')") == [(None,)]:
        return {}
    return dict(target.execute('SELECT "table", state FROM penstock.ledger'))


@contextmanager
def changing(source: Database) -> Iterator[None]:
    """Changes of all kinds, until the end of the block; rows of `STILL` are left alone.

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
    try:
        yield
    finally:
        over.set()
        thread.join()


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


MADE = (
    "CREATE TABLE items (id bigint PRIMARY KEY, at timestamptz, note text, large text)",
    "CREATE TABLE notes (text text)",
)


def test_a_kill_in_mid_load_repeats_no_range_and_loses_no_change(
    source: Database, postgres: Postgres, tmp_path: Path
) -> None:
    with postgres.database() as target:
        for statement in MADE:
            target.execute(statement)
        snapshot = {"chunk_rows": 20, "row_rate": 1500}
        slow = document(tmp_path, source, target, snapshot=snapshot)
        done = "SELECT count(*) FROM penstock.loading WHERE is_done"
        with changing(source):
            with running(tmp_path, slow) as run:
                eventually(lambda: "items" in states(target), run=run, seconds=60)
                eventually(lambda: target.execute(done)[0][0] >= 2, run=run, seconds=60)
                run.kill_and_wait()
            written = f"SELECT id, xmin::text FROM items WHERE {STILL}"
            before = target.execute(written)
            assert states(target)["items"] == "loading"
            fast = document(tmp_path, source, target, snapshot={"chunk_rows": 20})
            with running(tmp_path, fast) as run:
                eventually(
                    lambda: states(target) == {"items": "live", "notes": "live"},
                    run=run,
                    seconds=90,
                )
        with running(tmp_path, fast) as run:
            eventually(lambda: equal(source, target, "items", "notes"), run=run, seconds=60)
        assert before and set(before) <= set(target.execute(written))
        assert target.execute("SELECT count(*) FROM penstock.held") == [(0,)]


def test_a_table_that_joins_the_map_is_loaded_alone(
    source: Database, postgres: Postgres, tmp_path: Path
) -> None:
    with postgres.database() as target:
        target.execute(MADE[0])
        with running(tmp_path, document(tmp_path, source, target, tables={"items": None})) as run:
            eventually(lambda: states(target) == {"items": "live"}, run=run, seconds=90)
        target.execute("UPDATE items SET note = 'mine' WHERE id = 1")
        tables = {"items": None, "notes": {"create": True, "target": "remarks"}}
        with running(tmp_path, document(tmp_path, source, target, tables=tables)) as run:
            eventually(
                lambda: states(target) == {"items": "live", "notes": "live"}, run=run, seconds=90
            )
            source.execute("INSERT INTO notes VALUES ('last')")
            eventually(lambda: equal(source, target, "notes", of="remarks"), run=run, seconds=60)
        assert target.execute("SELECT note FROM items WHERE id = 1") == [("mine",)]
