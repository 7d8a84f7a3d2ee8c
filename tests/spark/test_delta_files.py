"""Spark reads Delta tables of ours by their files, as the page says: its library for Delta does not
fit this version."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.docs.pages import DOCS, blocks
from tests.servers import Database
from tests.sinks.delta.lake import Lake, ordered, same
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

pytestmark = pytest.mark.spark

(STEP,) = (
    each
    for each in blocks((DOCS / "how-to" / "lakehouse.md").read_text(), "python")
    if "basePath" in each
)


def by_spark(spark: SparkSession, lake: Lake, name: str) -> Any:
    found: dict[str, Any] = {"spark": spark}
    exec(STEP.replace("/data/lake/public/orders", str(lake.folder / "public" / name)), found)
    return found["orders"]


@pytest.mark.parametrize("sink", [{}, {"buckets": 3}, {"partition_by": ["day", "place"]}], ids=str)
def test_rows_are_those_of_the_source(
    spark: SparkSession, database: Database, tmp_path: Path, sink: dict[str, Any]
) -> None:
    lake, names = Lake(tmp_path / "a lake"), "id, day, at, n, place, texts, bytes"
    database.execute(
        "CREATE TABLE items (id bigint PRIMARY KEY, day date, at timestamp, n numeric(12,2),"
        " place text, texts text[], bytes bytea)"
    )
    insert = (
        "INSERT INTO items SELECT g, date '2026-01-01' + g % 3, '2026-01-01 01:02:03.000004',"
        " g / 4.0, 'a / b=' || g % 3, ARRAY['a', NULL], '\\x00ff' FROM generate_series({}, {}) g"
    )
    database.execute(insert.format(1, 50))
    with Flow(database, lake.folder, {"items": None}, sink=sink) as flow:
        flow.loaded()
        database.execute(insert.format(51, 60))
        database.execute("UPDATE items SET n = 7 WHERE id % 7 = 0; DELETE FROM items WHERE id = 3")
        database.execute("INSERT INTO items (id) VALUES (1000)")
        same(flow, database, lake, "items", names)
        database.execute("ALTER TABLE items ADD more timestamptz")
        database.execute("UPDATE items SET more = '2026-02-03 04:05:06+00' WHERE id = 60")
        same(flow, database, lake, "items", f"{names}, more")
    frame = by_spark(spark, lake, "items")
    rows = ordered(tuple(row) for row in frame.selectExpr(*names.split(", ")).collect())
    assert rows == ordered(database.execute(f"SELECT {names} FROM items"))
    assert frame.where("more IS NOT NULL").selectExpr("id", "cast(more AS string)").collect() == [
        (60, "2026-02-03 04:05:06")
    ]


def test_a_log_is_read_by_its_days(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    sink = {"partition_by": ["_day"]}
    with Flow(database, lake.folder, {"items": {"type": "log"}}, sink=sink) as flow:
        flow.loaded()
        database.execute("INSERT INTO items VALUES (1, 'one'); UPDATE items SET id = 2")
        until(lambda: flow.check() or len(lake.rows("items")) == 2, 60)
    frame = by_spark(spark, lake, "items").orderBy("_sequence")
    shown = frame.where("_day >= date '2026-01-01'").select("_operation", "id", "_key_before.id")
    assert [tuple(row) for row in shown.collect()] == [("INSERT", 1, None), ("UPDATE", 2, 1)]
