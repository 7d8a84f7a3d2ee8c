"""The page's steps, on real servers; the pipeline of its file runs without Spark."""

import yaml

from tests.docs.pages import DOCS, blocks, statements
from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

PAGE = (DOCS / "how-to" / "history.md").read_text()


def test_the_steps_make_a_history(database: Database, postgres: Postgres) -> None:
    create, publish, insert, update, delete, history, current, moment, *own = statements(PAGE)
    pipeline = yaml.safe_load(blocks(PAGE, "yaml")[0])
    (backend,), (tables,) = pipeline["backends"], pipeline["sink"]["map"]
    assert (backend["name"], tables["backend"]) == ("shop", "shop")
    with postgres.database() as target:
        for statement in own:
            target.execute(statement)
        for statement in (create, publish):
            database.execute(statement)
        kinds = "sku, price::text, extract(year FROM kvsz_start) > 1900, kvsz_deleted"
        versions = history.replace("sku, price, kvsz_start, kvsz_end, kvsz_deleted", kinds)
        expected = [
            ("apple", "1.20", False, False), ("apple", "1.30", True, False),
            ("pear", "2.00", False, True),
        ]  # fmt: skip
        with Flow(database, target, tables["tables"], publication=backend["publication"]) as flow:
            flow.loaded()
            for statement in (insert, update, delete):
                database.execute(statement)
            until(lambda: flow.check() or target.execute(versions) == expected, 60,
                  problem=lambda: target.execute(versions))  # fmt: skip
        for query in (current, moment):
            assert [row[0] for row in target.execute(query)] == ["apple"]
