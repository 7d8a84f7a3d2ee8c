"""Databases into one, by `penstock run`, on real servers."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from penstock.cli.verify import command
from tests.pipeline.running import Run, eventually, running
from tests.servers import Database, Postgres
from tests.slots import drop_slots


def test_targets_follow_the_columns_of_their_source_and_what_was_lost_is_loaded_anew(
    database: Database, postgres: Postgres, tmp_path: Path
) -> None:
    with postgres.database() as target:
        database.execute("CREATE TABLE items (id bigint PRIMARY KEY, note text)")
        database.execute("CREATE TABLE loose (note text)")
        database.execute("ALTER TABLE loose REPLICA IDENTITY FULL")
        database.execute("CREATE TABLE prices (id bigint PRIMARY KEY, price numeric)")
        database.execute("CREATE TABLE wide (id int PRIMARY KEY, name varchar(3), n int)")
        database.execute("INSERT INTO wide SELECT n, 'one', n FROM generate_series(1, 50) n")
        for each in (database, target):
            each.execute("CREATE TABLE asked (id int PRIMARY KEY, name text)")
        for each, name in ((database, "stock"), (target, "goods")):
            each.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, at timestamptz, note text)")
        tables = {
            "stock": {"target": "goods"},
            "items": {"create": True}, "loose": {"create": True}, "wide": {"create": True},
            "prices": {"create": True, "type": "history"}, "asked": {"schema_changes": "ask"},
        }  # fmt: skip
        pipeline = {
            "backends": [{
                "name": database.name, "type": "postgres", "on_gap": "resnapshot",
                "sources": [{"sid": "eu", "connection": database.url}],
            }],
            "sink": {
                "type": "postgres", "connection": target.url,
                "map": [{"backend": database.name, "tables": tables}],
            },
        }  # fmt: skip

        def states(run: Run) -> set[str]:
            return {table["state"] for table in run.status()["tables"]}

        with running(tmp_path, pipeline) as run:
            eventually(lambda: states(run) == {"live"}, run=run)
            database.execute("INSERT INTO items SELECT n, n FROM generate_series(1, 100) n")
            database.execute("INSERT INTO loose SELECT n FROM generate_series(1, 100) n")
            database.execute("INSERT INTO prices VALUES (1, 1), (2, 2), (3, 3)")
            count = "SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM loose),"
            count += " (SELECT count(*) FROM prices)"
            eventually(lambda: target.execute(count) == [(100, 100, 3)], run=run)
            _clone_and_verify(run, database, target)
            _follow_columns(run, database, target)
        drop_slots(database)
        database.execute("DELETE FROM items WHERE id % 2 = 0")
        database.execute("UPDATE items SET note = 'lost', id = id + 1000 WHERE id % 3 = 0")
        database.execute("DELETE FROM loose WHERE note < '5'")
        database.execute("DELETE FROM prices WHERE id = 1")
        database.execute("UPDATE prices SET price = 20 WHERE id = 2")
        with running(tmp_path, pipeline) as run:
            eventually(lambda: "lost changes are mended" in run.log, run=run)
            for table in ("items", "loose"):
                rows = f"SELECT t::text FROM {table} t ORDER BY 1"
                assert target.execute(rows) == database.execute(rows)
            database.execute("INSERT INTO items VALUES (5000, 'after')")
            database.execute("UPDATE prices SET price = 30 WHERE id = 3")
            found = "SELECT id, price, kvsz_end = '9999-01-01Z', kvsz_deleted FROM prices"
            versions = [
                (1, 1, False, True), (2, 2, False, False), (2, 20, True, False),
                (3, 3, False, False), (3, 30, True, False),
            ]  # fmt: skip
            eventually(
                lambda: target.execute(f"{found} ORDER BY 1, kvsz_start") == versions, run=run
            )
            eventually(lambda: run.status()["health"] == "ok", run=run)
            assert not run.status()["backends"][0]["gaps"]["eu"]["stale"]
            rows = "SELECT t::text FROM items t ORDER BY 1"
            eventually(lambda: target.execute(rows) == database.execute(rows), run=run)
            assert "Traceback" not in run.log
        drop_slots(database)


def _clone_and_verify(run: Run, source: Database, target: Database) -> None:
    source.execute(
        "INSERT INTO stock SELECT n, now(), repeat(n::text, 1000) FROM generate_series(1, 2000) n"
    )
    source.execute("UPDATE stock SET at = NULL WHERE id % 3 = 0")
    source.execute("DELETE FROM stock WHERE id % 5 = 0")
    source.execute("UPDATE stock SET id = id + 10000 WHERE id % 7 = 0")
    rows = "SELECT t::text FROM {} t ORDER BY id"
    expected = source.execute(rows.format("stock"))
    eventually(lambda: target.execute(rows.format("goods")) == expected, run=run)
    source.execute("UPDATE stock SET note = 'new'")
    where = f"{source.name}/eu"
    assert _verify(run.file, "stock") == (0, [f"equal      {where}"])
    target.execute("UPDATE goods SET note = 'wrong' WHERE id = 1")
    target.execute("DELETE FROM goods WHERE id = 2")
    wrong = ["           changed (1): note", "           missing (2)"]
    assert _verify(run.file, "stock") == (1, [f"different  {where}", *wrong])
    assert _verify(run.file, "stock", "--repair")[0] == 0
    assert _verify(run.file, "stock")[0] == 0

    def table() -> Any:
        (found,) = (each for each in run.status()["tables"] if each["table"] == "public.stock")
        return found

    assert (table()["backend"], table()["sid"]) == (source.name, "eu")
    assert (table()["state"], table()["rows_loaded"], table()["rows_to_come"]) == ("live", 0, 0)
    counts = {"insert": 2000, "update": 666 + 228 + 1600, "delete": 400}
    eventually(lambda: table()["applied"] == counts, run=run)
    assert 'penstock_sink_commits_total{sink="postgres",worker="' in run.get("/metrics")[1]


def _follow_columns(run: Run, source: Database, target: Database) -> None:
    for statement in (
        "ALTER TABLE wide RENAME name TO title", "UPDATE wide SET title = 'uno'",
        "ALTER TABLE wide ALTER n TYPE bigint, ALTER title TYPE text",
        "UPDATE wide SET n = 2::bigint ^ 40, title = 'longer' WHERE id < 9",
        "ALTER TABLE wide ADD x int DEFAULT 5", "DELETE FROM wide WHERE id = 3",
        "ALTER TABLE wide ADD y text", "UPDATE wide SET y = 'y', x = NULL WHERE id = 4",
        "ALTER TABLE wide DROP n", "INSERT INTO wide VALUES (51, 'new', 1, 'z')",
        "ALTER TABLE asked ADD x bigint", "INSERT INTO asked VALUES (1, 'one', 1)",
    ):  # fmt: skip
        source.execute(statement)
    rows = "SELECT id, title, x, y FROM wide ORDER BY id"
    expected = source.execute(rows)
    eventually(lambda: _has(target, "y") and target.execute(rows) == expected, run=run)
    state = "SELECT state, detail FROM penstock.ledger WHERE \"table\" = 'asked'"
    eventually(lambda: target.execute(state)[0][0] == "waiting", run=run)
    statement = 'ALTER TABLE "public"."asked" ADD COLUMN "x" bigint;'
    assert statement in target.execute(state)[0][1]
    eventually(lambda: "ADD COLUMN" in str(run.status()["tables"]), run=run)
    target.execute(statement)
    eventually(lambda: target.execute("SELECT * FROM asked") == [(1, "one", 1)], run=run)


def _has(database: Database, column: str) -> bool:
    found = "SELECT 1 FROM pg_attribute WHERE attrelid = 'wide'::regclass AND attname = %s"
    return bool(database.execute(found, [column]))


def _verify(file: Path, *arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(command, [str(file), *arguments])
    return done.exit_code, [line.partition(" public")[0] for line in done.output.splitlines()]


def test_a_sqlite_file_has_each_change_once_also_after_a_kill(
    database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "target.db"
    database.execute("CREATE TABLE items (id bigint PRIMARY KEY, price numeric, note text)")
    database.execute("CREATE TABLE loose (n int)")
    database.execute("ALTER TABLE loose REPLICA IDENTITY FULL")
    database.execute(
        "INSERT INTO items SELECT n, n / 3.0, repeat(n::text, 1000) FROM generate_series(1, 9000) n"
    )
    database.execute("INSERT INTO loose SELECT 1 FROM generate_series(1, 500)")
    tables = {"items": {"create": True}, "loose": {"create": True}}
    pipeline = {
        "name": "test",
        "backends": [{
            "name": database.name, "type": "postgres",
            "sources": [{"sid": "eu", "connection": database.url}],
        }],
        "sink": {
            "type": "sqlite", "file": str(file), "commit": {"rows": 500, "wait": "20ms"},
            "map": [{"backend": database.name, "tables": tables}],
        },
    }  # fmt: skip
    queries = (
        "SELECT id, CAST(price AS text), note FROM items ORDER BY id", "SELECT n FROM loose"
    )  # fmt: skip

    def rows() -> list[list[tuple[Any, ...]]]:
        with closing(sqlite3.connect(file)) as connection, suppress(sqlite3.OperationalError):
            return [connection.execute(query).fetchall() for query in queries]
        return []  # a target is not made yet

    def change(first: int) -> None:
        for n in range(first, first + 400, 4):
            database.execute(f"UPDATE items SET price = price + {n} WHERE id % 400 = {n % 400}")
            database.execute(f"UPDATE items SET id = -id WHERE id = {n + 1}")
            database.execute(f"DELETE FROM items WHERE id = {n + 2}")
            database.execute(f"INSERT INTO loose SELECT {n} FROM generate_series(1, 3)")

    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        change(1)
        run.kill_and_wait()
    change(401)
    with running(tmp_path, pipeline) as run:
        change(801)
        expected = [database.execute(query) for query in queries]
        eventually(lambda: [*map(sorted, rows())] == [*map(sorted, expected)], run=run)
        eventually(lambda: {each["state"] for each in run.status()["tables"]} == {"live"}, run=run)
        commits = 'penstock_sink_commits_total{sink="sqlite",worker="0"}'
        eventually(lambda: commits in run.get("/metrics")[1], run=run)  # reported after the commit
        assert "Traceback" not in run.log
    found = CliRunner().invoke(command, [str(tmp_path / "pipeline.yaml")])
    assert "a sink of type sqlite" in str(found.exception)
    drop_slots(database)
