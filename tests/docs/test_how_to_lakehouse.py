"""The page's steps, on a real server; the pipeline of its file runs without Spark."""

from pathlib import Path

import yaml

from tests.docs.pages import DOCS, blocks, section, statements
from tests.servers import Database
from tests.sinks.delta.lake import Lake
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

PAGE = (DOCS / "how-to" / "lakehouse.md").read_text()


def test_the_steps_make_a_lake(database: Database, tmp_path: Path) -> None:
    pipeline = yaml.safe_load(blocks(PAGE, "yaml")[0])
    (tables,) = pipeline["sink"]["map"]
    lake = Lake(tmp_path / "lake")
    for statement in statements(PAGE):
        database.execute(statement)
    with Flow(database, lake.folder, tables["tables"]) as flow:
        flow.loaded()
        database.execute("INSERT INTO events VALUES (now(), 'opened')")
        database.execute("UPDATE orders SET total = total * 2")
        until(lambda: flow.check() or len(lake.rows("events")) == 1, 60)
        until(lambda: flow.check() or [str(row[2]) for row in lake.rows("orders")]
              == ["25.00", "14.00"], 60, problem=lambda: lake.rows("orders"))  # fmt: skip
    read = blocks(PAGE, "python")[1].replace("/data/lake", str(lake.folder))
    found: dict[str, object] = {}
    exec(read, found)
    assert getattr(found["orders"], "num_rows", 0) == 2


def test_some_rows_are_chosen_and_columns_computed(database: Database, tmp_path: Path) -> None:
    tables = yaml.safe_load(blocks(section(PAGE, "Some rows, and computed columns"), "yaml")[0])
    lake = Lake(tmp_path / "lake")
    for statement in statements(PAGE):
        database.execute(statement)
    with Flow(database, lake.folder, tables["tables"]) as flow:
        flow.loaded()
        assert lake.rows("orders", ["id", "customer", "cents"]) == [(1, "ANN", 1250)]
        database.execute("UPDATE orders SET total = 20.01 - total")
        until(lambda: flow.check() or lake.rows("orders", ["customer", "cents"])
              == [("BOB", 1301)], 60, problem=lambda: lake.rows("orders"))  # fmt: skip
