"""`penstock run` keeps Delta tables, and goes on where it was killed."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer
from tests.mongo import Shop
from tests.pipeline.running import Run, eventually, running
from tests.pipeline.test_cosmos import ITEMS as ORDERS
from tests.pipeline.test_cosmos import writing as writing_orders
from tests.pipeline.test_dynamodb import PER_GENERATION, total, writing
from tests.servers import Database
from tests.sinks.delta import test_documents, test_items
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
        eventually(is_same, run=run)
        change(database, 4, 30)
        run.kill_and_wait()
    with running(tmp_path, pipeline) as run:
        change(database, 5, 30)
        database.execute("INSERT INTO notes VALUES ('a'), ('a')")
        eventually(is_same, run=run)
        eventually(lambda: len(lake.rows("notes")) == 2, run=run)


def lake_of(lake: Lake, tables: dict[str, Any], **backend: Any) -> dict[str, Any]:
    """A pipeline of the backend `shop`."""
    return {
        "backends": [{"name": "shop", **backend}],
        "sink": {
            "type": "delta", "location": f"{lake.folder}/{{schema}}/{{table}}", "every": "200ms",
            "map": [{"backend": "shop", "tables": tables}],
        },
        "checkpoint": {"interval": "1h"},
    }  # fmt: skip


@pytest.mark.spark
def test_documents_of_mongodb_are_in_a_lake_over_a_kill(shop: Shop, tmp_path: Path) -> None:
    found = test_documents.MongoLake(shop, tmp_path / "lake")
    users, orders, lake = shop.db.users, shop.db.orders, found.lake
    test_documents.change(users, 1, 30)
    orders.insert_one({"_id": 0})
    pipeline = lake_of(
        lake, {"users": {}, "orders": {"type": "log"}}, type="mongodb", connection=shop.url,
        database=shop.name,
    )  # fmt: skip
    done = Counter(READ=1)

    def is_same() -> bool:
        rows = lake.rows("orders", ["_operation"])
        have = Counter(kind for (kind,) in rows)
        return lake.documents("users") == found.documents() and have == done

    with running(tmp_path, pipeline) as run:
        eventually(is_same, run=run)
        test_documents.change(users, 2, 40)
        done += test_documents.change(orders, 3, 40)
        eventually(lambda: len(lake.rows("orders")) > 5, run=run)
        run.kill_and_wait()
    with running(tmp_path, pipeline) as run:
        test_documents.change(users, 4, 40)
        done += test_documents.change(orders, 5, 40)
        eventually(is_same, run=run)


@pytest.mark.spark
@pytest.mark.parametrize(
    "source_of",
    [test_items.dynamodb, pytest.param(test_items.cosmos, marks=pytest.mark.thorough)],
)
def test_items_are_loaded_while_they_change_over_a_kill(
    source_of: Callable[[], Any], tmp_path: Path
) -> None:
    """Partitions end meanwhile, and have children."""
    with source_of() as source, ThreadPoolExecutor(1) as pool:
        now, keys = dict[int, Any](), 900
        test_items.change(source, now, 1500, 1, keys)
        for _ in range(3):
            source.divide()
        lake = Lake(tmp_path / "lake", source.schema)
        # Parts of 64 rows, and some seconds for all.
        pipeline = lake_of(lake, {source.table: {}}, **source.backend) | {
            "snapshot": {"chunk_rows": 1, "row_rate": 150},
        }
        with running(tmp_path, pipeline) as run:
            changing = pool.submit(test_items.change, source, now, 300, 2, keys)
            eventually(lambda: lake.rows(source.table), run=run)
            source.divide()
            run.kill_and_wait()
            changing.result()

        def found() -> list[int]:
            rows = lake.rows(source.table, ["document"])
            return sorted(orjson.loads(text)["n"] for (text,) in rows)

        with running(tmp_path, pipeline) as run:
            test_items.change(source, now, 300, 3, keys)
            source.divide()
            test_items.change(source, now, 300, 4, keys)
            want = sorted(each["n"] for each in now.values())
            eventually(lambda: found() == want, run=run)


@pytest.mark.thorough  # of Cosmos DB below
@pytest.mark.spark
def test_a_log_of_dynamodb_has_each_record_of_shards_that_split_once(tmp_path: Path) -> None:
    with StreamsServer() as server:
        source, lake = server.stream("users"), Lake(tmp_path / "lake", "shop")
        pipeline = lake_of(
            lake, {"users": {"type": "log"}}, type="dynamodb", table="users", endpoint=server.url,
            region="eu-central-1", access_key="a", secret_key="b", poll="50ms",
        ) | {"snapshot": {"initial": False}}  # fmt: skip
        with writing(server, source) as writer:
            run = Run(tmp_path, pipeline)
            try:
                eventually(lambda: len(lake.rows("users")) > PER_GENERATION, run=run)
                run.kill_and_wait()
                run = Run(tmp_path, pipeline)
                writer.join(240)
                eventually(lambda: len(lake.rows("users")) >= total(server), run=run)
            finally:
                if run.process.poll() is None:
                    run.stop()
        found = Counter(orjson.loads(text)["n"] for (text,) in lake.rows("users", ["document"]))
        assert found == Counter(range(total(server)))


@pytest.mark.spark
def test_a_log_of_cosmos_has_each_item_of_ranges_that_split_once(tmp_path: Path) -> None:
    with CosmosServer() as server:
        orders, lake = server.container("shop", "orders"), Lake(tmp_path / "lake", "shop")
        pipeline = lake_of(
            lake, {"orders": {"type": "log"}}, type="cosmos", endpoint=server.url, key=server.key,
            database="shop", container="orders", start="beginning", page_items=20, poll="50ms",
        ) | {"snapshot": {"initial": False}}  # fmt: skip
        run = Run(tmp_path, pipeline)
        try:
            with writing_orders(orders) as writer:
                eventually(lambda: len(lake.rows("orders")) >= 100, run=run)
                run.kill_and_wait()
                for each in list(orders.ranges):
                    orders.split(range_id=each.id)
                writer.go_on()
                run = Run(tmp_path, pipeline)
                writer.join(240)
            eventually(lambda: len(lake.rows("orders")) >= ORDERS, run=run)
        finally:
            if run.process.poll() is None:
                run.stop()
        found = Counter(lake.rows("orders", ["id", "pk"]))
        assert found == Counter((f"i{n}", f"p{n % 97}") for n in range(ORDERS))
