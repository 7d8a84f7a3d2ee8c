"""`penstock run` keeps Delta tables, and goes on where it was killed."""

from pathlib import Path

import pytest

from tests.pipeline.running import eventually, running
from tests.servers import Database
from tests.sinks.delta.lake import Lake, change, ordered

ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, name text, n numeric(12,2), large text);
INSERT INTO items SELECT g, 'old', g, 'x' FROM generate_series(1, 50) g;
CREATE TABLE notes (name text);
CREATE PUBLICATION pub FOR TABLE items, notes;
"""


@pytest.mark.spark
def test_a_lake_follows_its_source_over_a_kill(database: Database, tmp_path: Path) -> None:
    database.execute(ITEMS)
    lake = Lake(tmp_path / "lake")
    pipeline = {
        "backends": [{
            "name": "shop", "type": "postgres", "connection": database.url,
            "slot": f"slot_{database.name}", "publication": "pub",
        }],
        "sink": {
            "type": "delta", "location": f"{lake.folder}/{{schema}}/{{table}}", "every": "200ms",
            "map": [{"backend": "shop", "tables": {"items": {}, "notes": {"type": "log"}}}],
        },
    }  # fmt: skip

    def is_same() -> bool:
        return lake.rows("items") == ordered(database.execute("SELECT * FROM items"))

    with running(tmp_path, pipeline) as run:
        change(database, 3, 30)
        eventually(is_same, run=run, seconds=90)
        change(database, 4, 30)
        run.kill_and_wait()
    with running(tmp_path, pipeline) as run:
        change(database, 5, 30)
        database.execute("INSERT INTO notes VALUES ('a'), ('a')")
        eventually(is_same, run=run, seconds=90)
        eventually(lambda: len(lake.rows("notes")) == 2, run=run, seconds=30)
