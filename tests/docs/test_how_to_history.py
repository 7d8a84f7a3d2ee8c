"""The page's steps, on real servers."""

from pathlib import Path

import yaml

from tests.docs.pages import DOCS, blocks, statements
from tests.pipeline.running import eventually, running
from tests.servers import Database, Postgres

PAGE = (DOCS / "how-to" / "history.md").read_text()


def test_the_steps_make_a_history(database: Database, postgres: Postgres, tmp_path: Path) -> None:
    create, publish, insert, update, delete, history, current, moment, *own = statements(PAGE)
    with postgres.database() as target:
        for statement in own:
            target.execute(statement)
        for statement in (create, publish):
            database.execute(statement)
        pipeline = yaml.safe_load(blocks(PAGE, "yaml")[0])
        pipeline["backends"][0] |= {"connection": database.url, "slot": f"slot_{database.name}"}
        pipeline["sink"]["connection"] = target.url
        with running(tmp_path, pipeline) as run:
            eventually(lambda: run.get("/ready")[0] == 200, run=run)
            for statement in (insert, update, delete):
                database.execute(statement)
            made = "SELECT to_regclass('prices_history') IS NOT NULL"
            eventually(lambda: target.execute(made) == [(True,)], run=run)
            kinds = "sku, price::text, extract(year FROM kvsz_start) > 1900, kvsz_deleted"
            versions = history.replace("sku, price, kvsz_start, kvsz_end, kvsz_deleted", kinds)
            expected = [
                ("apple", "1.20", False, False), ("apple", "1.30", True, False),
                ("pear", "2.00", False, True),
            ]  # fmt: skip
            eventually(lambda: target.execute(versions) == expected, run=run)
            for query in (current, moment):
                assert [row[0] for row in target.execute(query)] == ["apple"]
