"""Databases into one, by `penstock run`, on real servers."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.verify import command
from tests.pipeline.running import CLASSES, eventually, running
from tests.servers import Database, Postgres

pytestmark = pytest.mark.live


def test_a_table_is_cloned_while_it_changes(
    database: Database, postgres: Postgres, tmp_path: Path
) -> None:
    with postgres.database() as target:
        database.execute("CREATE TABLE items (id bigint PRIMARY KEY, at timestamptz, note text)")
        database.execute("CREATE PUBLICATION pub FOR TABLE items")
        target.execute("CREATE TABLE goods (id bigint PRIMARY KEY, at timestamptz, note text)")
        slot = f"slot_{database.name}"
        pipeline = {
            "name": "test",
            "backends": [{
                "name": "shop", "type": "postgres", "connection": database.url,
                "slot": slot, "publication": "pub",
            }],
            "sink": {
                "type": "postgres", "connection": target.url,
                "map": [{"backend": "shop", "tables": {"items": {"target": "goods"}}}],
            },
            "state": str(tmp_path / "state"),
            "ops": {"port": 0},
            **({"spark": {"class_archive": str(CLASSES)}} if CLASSES.exists() else {}),
        }  # fmt: skip
        with running(tmp_path, pipeline) as run:
            eventually(lambda: run.get("/ready")[0] == 200, run=run)
            database.execute(
                "INSERT INTO items SELECT n, now(), repeat(n::text, 1000) FROM"
                " generate_series(1, 2000) n"
            )
            database.execute("UPDATE items SET at = NULL WHERE id % 3 = 0")
            database.execute("DELETE FROM items WHERE id % 5 = 0")
            database.execute("UPDATE items SET id = id + 10000 WHERE id % 7 = 0")
            rows = "SELECT t::text FROM {} t ORDER BY id"
            expected = database.execute(rows.format("items"))
            eventually(lambda: target.execute(rows.format("goods")) == expected, run=run)
            database.execute("UPDATE items SET note = 'new'")
            assert _verify(run.file) == (0, ["equal      shop/" + slot])
            target.execute("UPDATE goods SET note = 'wrong' WHERE id = 1")
            target.execute("DELETE FROM goods WHERE id = 2")
            wrong = ["           changed (1): note", "           missing (2)"]
            assert _verify(run.file) == (1, ["different  shop/" + slot, *wrong])
            assert _verify(run.file, "items", "--repair")[0] == 0
            assert _verify(run.file)[0] == 0
            table = run.status()["tables"][0]
            assert (table["backend"], table["sid"], table["table"]) == (
                "shop",
                slot,
                "public.items",
            )
            assert (table["state"], table["rows_loaded"], table["rows_to_come"]) == ("live", 0, 0)
            counts = {"insert": 2000, "update": 666 + 228 + 1600, "delete": 400}
            eventually(lambda: run.status()["tables"][0]["applied"] == counts, run=run)
            assert 'penstock_sink_commits_total{sink="postgres",worker="' in run.get("/metrics")[1]
            assert "Traceback" not in run.log


def test_two_sources_flow_into_one_table(postgres: Postgres, tmp_path: Path) -> None:
    with postgres.database() as one, postgres.database() as two, postgres.database() as target:
        for source in (one, two):
            source.execute("CREATE TABLE items (id bigint PRIMARY KEY, note text)")
        target.execute("CREATE TABLE items (sid text, id bigint, note text, PRIMARY KEY (sid, id))")
        pipeline = {
            "name": "test",
            "backends": [{
                "name": target.name, "type": "postgres",
                "sources": [
                    {"sid": "eu", "connection": one.url}, {"sid": "us", "connection": two.url},
                    {"sid": "gone", "connection": "postgresql://127.0.0.1:1/gone"},
                ],
            }],
            "sink": {
                "type": "postgres", "connection": target.url,
                "map": [{"backend": target.name, "tables": {"items": None}}],
            },
            "state": str(tmp_path / "state"),
            "ops": {"port": 0},
            **({"spark": {"class_archive": str(CLASSES)}} if CLASSES.exists() else {}),
        }  # fmt: skip
        with running(tmp_path, pipeline) as run:
            eventually(lambda: _slots(one) and _slots(two), run=run)
            for number, source in enumerate((one, two)):
                source.execute(f"INSERT INTO items VALUES (1, 'a{number}'), (2, 'b{number}')")
                source.execute("UPDATE items SET id = 3 WHERE id = 2")
            rows = [("eu", 1, "a0"), ("eu", 3, "b0"), ("us", 1, "a1"), ("us", 3, "b1")]
            found = "SELECT * FROM items ORDER BY 1, 2"
            eventually(lambda: target.execute(found) == rows, run=run)
            one.execute("TRUNCATE items")
            eventually(lambda: target.execute(found) == rows[2:], run=run)
            assert "source gone" in str(run.status())
            assert "Traceback" not in run.log
        for source in (one, two):
            source.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                           " WHERE database = current_database()")  # fmt: skip


def _slots(database: Database) -> bool:
    found = "SELECT 1 FROM pg_replication_slots WHERE active AND database = current_database()"
    return bool(database.execute(found))


def _verify(file: Path, *arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(command, [str(file), *arguments])
    return done.exit_code, [line.partition(" public")[0] for line in done.output.splitlines()]
