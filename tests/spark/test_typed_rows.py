"""Typed rows of a table under real Spark."""

import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.servers import Database
from tests.slots import drop_slots

pytestmark = pytest.mark.spark

_TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE orders (
    id int PRIMARY KEY, price numeric(12,2), at timestamptz, local timestamp, day date,
    raw bytea, tags text[], doc jsonb, mood mood, flag bool, large text
);
ALTER TABLE orders ALTER large SET STORAGE EXTERNAL
"""
_ROW = (
    "({}, 12.50, '2026-01-02 03:04:05.678901+02', '2026-01-02 03:04:05', '2026-02-28',"
    " '\\x00ff', '{{a,NULL}}', '{{\"a\": 1}}', 'ok', true, repeat('x', 5000))"
)


@pytest.fixture
def orders(database: Database) -> Iterator[Database]:
    database.execute(_TABLE)
    yield database
    drop_slots(database)


def frame(spark: SparkSession, database: Database, schema: str = "", **more: str) -> DataFrame:
    reader = spark.readStream.format("penstock").options(
        backend="postgres", connection=database.url, publication="typed",
        create_publication="true", patience="100ms",
        **{"slot": "typed", "table": "public.orders", **more},
    )  # fmt: skip
    return (reader.schema(schema) if schema else reader).load()


def run(spark: SparkSession, changes: DataFrame, folder: Path) -> list[Any]:
    """All rows of the lake, after a run to its end."""
    writer = changes.writeStream.format("parquet").option("path", str(folder / "lake"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(300), "it does not end"
    return spark.read.parquet(str(folder / "lake")).orderBy("_sequence").collect()


def newest(rows: list[Any]) -> dict[int, dict[str, Any]]:
    """By key, as a consumer makes it of them; values that were not sent stay."""
    found: dict[int, dict[str, Any]] = {}
    for row in (each.asDict(recursive=True) for each in rows):
        key_before = row["_key_before"]
        before = found.pop((key_before or row)["id"], {})
        if row["_operation"] != "DELETE":
            own = {name: value for name, value in row.items() if name[0] != "_"}
            kept = {name: before.get(name) for name in row["_unsent"] or ()}
            found[row["id"]] = own | kept
    return found


def test_rows_have_the_tables_columns_and_their_fold_is_the_table(
    spark: SparkSession, orders: Database, tmp_path: Path
) -> None:
    execute = orders.execute
    execute(f"INSERT INTO orders VALUES {_ROW.format(1)}, {_ROW.format(2)}")
    changes = frame(spark, orders, snapshot="initial")
    assert changes.dtypes == [
        ("id", "int"), ("price", "decimal(12,2)"), ("at", "timestamp"), ("local", "timestamp_ntz"),
        ("day", "date"), ("raw", "binary"), ("tags", "array<string>"), ("doc", "string"),
        ("mood", "string"), ("flag", "boolean"), ("large", "string"), ("_operation", "string"),
        ("_sequence", "string"), ("_committed_at", "timestamp"), ("_unsent", "array<string>"),
        ("_key_before", "struct<id:int>"), ("_rest", "map<string,string>"),
    ]  # fmt: skip
    rows = run(spark, changes, tmp_path)
    assert [row["_operation"] for row in rows] == ["READ", "READ"]
    assert rows[0].asDict() | {"at": None} == {
        "id": 1, "price": decimal.Decimal("12.50"), "at": None,
        "local": datetime.datetime(2026, 1, 2, 3, 4, 5), "day": datetime.date(2026, 2, 28),
        "raw": bytearray(b"\x00\xff"), "tags": ["a", None], "doc": '{"a": 1}', "mood": "ok",
        "flag": True, "large": "x" * 5000, "_operation": "READ",
        "_sequence": rows[0]["_sequence"], "_committed_at": rows[0]["_committed_at"],
        "_unsent": [], "_key_before": None, "_rest": None,
    }  # fmt: skip
    execute(f"INSERT INTO orders VALUES {_ROW.format(3)}")
    execute("UPDATE orders SET id = 7, flag = NULL WHERE id = 1")
    execute("DELETE FROM orders WHERE id = 2")
    execute("ALTER TABLE orders ADD note text DEFAULT 'n'")
    execute("UPDATE orders SET note = 'new' WHERE id = 3")
    rows = run(spark, frame(spark, orders, snapshot="initial"), tmp_path)
    assert [row["_operation"] for row in rows[2:]] == ["INSERT", "UPDATE", "DELETE", "UPDATE"]
    # With that DataFrame it is a column; the files of before do not have it.
    assert rows[5]["_unsent"] == ["large"]
    found = newest(rows)
    assert sorted(found) == [3, 7]
    assert found[7]["flag"] is None
    assert found[7]["large"] == "x" * 5000
    assert found[3]["price"] == decimal.Decimal("12.50")


def test_a_column_that_comes_while_a_query_runs_is_in_rest(
    spark: SparkSession, orders: Database, tmp_path: Path
) -> None:
    changes = frame(spark, orders)
    strict = frame(spark, orders, on_schema_change="fail", slot="strict")
    for each, folder in ((changes, tmp_path / "a"), (strict, tmp_path / "b")):
        run_empty(each, folder)
    orders.execute("ALTER TABLE orders ADD note text")
    orders.execute("INSERT INTO orders (id, note) VALUES (1, 'new')")
    (row,) = run(spark, changes, tmp_path / "a")
    assert row["_rest"] == {"note": "new"}
    with pytest.raises(StreamingQueryException, match=r"new note.*on_schema_change"):
        run(spark, strict, tmp_path / "b")


def run_empty(changes: DataFrame, folder: Path) -> None:
    writer = changes.writeStream.format("parquet").option("path", str(folder / "lake"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(300)


def test_a_schema_of_the_users(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    schema = "price DECIMAL(20,4), id BIGINT, _operation STRING, _sequence STRING"
    changes = frame(spark, orders, schema)
    run_empty(changes, tmp_path)
    orders.execute("INSERT INTO orders (id, price) VALUES (1, 1.5)")
    (row,) = run(spark, changes, tmp_path)
    assert (row["price"], row["id"], row["_operation"]) == (decimal.Decimal("1.5"), 1, "INSERT")
    with pytest.raises(StreamingQueryException, match="no column prise"):
        run(spark, frame(spark, orders, schema + ", prise INT"), tmp_path / "wrong")


def test_what_can_not_be_is_said(spark: SparkSession, orders: Database) -> None:
    with pytest.raises(AnalysisException, match=r"there is no table public\.order"):
        frame(spark, orders, table="public.order")
    with pytest.raises(AnalysisException, match="leave tables out"):
        frame(spark, orders, tables="public.other")
