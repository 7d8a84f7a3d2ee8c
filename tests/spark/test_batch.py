"""spark.read over PostgreSQL under real Spark: the rows that SQL has, at one point."""

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructType

from penstock.model.errors import SettingsError
from penstock.spark import PenstockDataSource
from penstock.typed.columns import META
from tests.pipeline.running import SHORT_LIVED, environment
from tests.servers import Database
from tests.slots import drop_slots
from tests.typed.test_lines import ALL, MISFITS
from tests.waiting import until
from tests.wire.kinds import LIVE_SETUP


def reader(spark: SparkSession, database: Database, **options: str) -> Any:
    given = {"backend": "postgres", "connection": database.url, "table": "public.t", **options}
    return spark.read.format("penstock").options(**given)


@pytest.fixture
def table(database: Database) -> Database:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(12,2))")
    database.execute("INSERT INTO t SELECT g, 'v' || g, g / 4.0 FROM generate_series(1, 20000) g")
    return database


def own(frame: DataFrame) -> DataFrame:
    return frame.drop(*META)


def test_rows_are_those_that_sql_has_in_several_ranges(
    spark: SparkSession, table: Database
) -> None:
    frame = reader(spark, table, range_size="128KiB").load()
    assert frame.rdd.getNumPartitions() > 3
    assert [each.asDict() for each in own(frame).orderBy("id").collect()] == [
        {"id": id_, "v": v, "n": n}
        for id_, v, n in table.execute("SELECT id, v, n FROM t ORDER BY id")
    ]
    (told,) = frame.select("_operation", "_sequence").distinct().collect()
    assert told["_operation"] == "READ"
    assert told["_sequence"] > "00000000/00000000"


def test_all_uses_of_a_dataframe_are_of_one_point_while_it_is_written_to(
    spark: SparkSession, database: Database
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, amount bigint)")
    database.execute("INSERT INTO t SELECT g, 100 FROM generate_series(1, 20000) g")
    stop = threading.Event()

    def move() -> None:
        while not stop.wait(0.001):
            low = "1 + (random() * 9000)::int"
            database.execute(
                f"WITH a AS (SELECT {low} AS id) UPDATE t SET amount = t.amount"
                " + CASE WHEN t.id = a.id THEN 7 ELSE -7 END FROM a"
                " WHERE t.id IN (a.id, a.id + 10000)"
            )

    thread = threading.Thread(target=move)
    thread.start()
    try:
        frame = reader(spark, database, range_size="64KiB").load()
        first = own(frame).orderBy("id").collect()
        assert frame.rdd.getNumPartitions() > 5
        assert sum(each["amount"] for each in first) == 2_000_000
        assert own(frame).orderBy("id").collect() == first
        joined = frame.alias("a").join(frame.alias("b"), "id")
        assert joined.where("a.amount <> b.amount").count() == 0
        assert frame.select("_sequence").union(frame.select("_sequence")).distinct().count() == 1
    finally:
        stop.set()
        thread.join()
    now = own(reader(spark, database).load()).orderBy("id").collect()
    assert now != first
    assert [(each["id"], each["amount"]) for each in now] == database.execute(
        "SELECT id, amount FROM t ORDER BY id"
    )


def test_values_of_all_kinds_are_those_that_sql_has(
    spark: SparkSession, database: Database
) -> None:
    fit = [each for each in ALL if each.name not in MISFITS]
    database.execute(LIVE_SETUP)
    columns = ", ".join(f"{each.name} {each.type}" for each in fit)
    values = ", ".join(f"({each.sql})::{each.type}" for each in fit)
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    database.execute(f"INSERT INTO t SELECT 1, {values}; INSERT INTO t (id) VALUES (2)")
    frame = reader(spark, database).load()
    row, nothing = frame.orderBy("id").collect()
    assert {*own(frame).columns} == {"id", *(each.name for each in fit)}
    assert [name for name, value in nothing.asDict().items() if value is not None] == [
        "id", "_operation", "_sequence"
    ]  # fmt: skip
    found = row.asDict()
    names = [name for name, kind in frame.dtypes if kind == "string" and not name.startswith("_")]
    texts = ", ".join(f"format('%s', {name})" for name in names)
    pinned = "SET timezone TO 'UTC'; SET intervalstyle TO iso_8601; SET search_path TO pg_catalog;"
    (wanted,) = database.execute(f"{pinned} SET lc_monetary TO 'C'; SELECT {texts} FROM public.t"
                                 " WHERE id = 1")  # fmt: skip
    assert {name: found[name] for name in names} == dict(zip(names, wanted, strict=True))
    assert found["int8"] == 9223372036854775807
    assert str(found["numeric_scale"]) == "12.5000"
    assert found["bytea"] == b"\x00\xff\x10"
    assert found["ints"] == [1, None, -3]
    assert found["timestamp"] == datetime.datetime(2026, 1, 2, 3, 4, 5, 600000)
    (told,) = frame.where("id = 1").select(
        f.unix_micros("timestamptz").alias("at"), "date", f.isnan("float8_nan").alias("nan")
    ).collect()  # fmt: skip
    assert told["at"] == 1767315845678901
    assert told["date"] == datetime.date(2026, 2, 28)
    assert told["nan"]


def test_a_users_schema_reads_its_columns_alone(spark: SparkSession, table: Database) -> None:
    table.execute("ALTER TABLE t ADD COLUMN forever date DEFAULT 'infinity'")
    frame = reader(spark, table).schema("n decimal(20,4), _sequence string, id bigint").load()
    row = frame.where("id = 3").first()
    assert row is not None
    assert (row["n"], row["id"]) == (Decimal("0.7500"), 3)
    with pytest.raises(PythonException, match=r"public\.t .*column forever "):
        reader(spark, table).load().collect()
    with_text = reader(spark, table).schema("forever string").load()
    assert [each["forever"] for each in with_text.distinct().collect()] == ["infinity"]
    with pytest.raises(AnalysisException, match="no column nothing"):
        reader(spark, table).schema("nothing int").load().collect()


def test_a_schema_without_columns_of_the_table_has_its_rows(
    spark: SparkSession, table: Database
) -> None:
    assert reader(spark, table).schema("_operation string").load().count() == 20_000


def test_a_condition_is_the_sources(spark: SparkSession, table: Database) -> None:
    frame = reader(spark, table, where="v LIKE 'v1%' AND id <= 15").load()
    assert [each["id"] for each in frame.orderBy("id").collect()] == [1, *range(10, 16)]
    with pytest.raises(AnalysisException, match="correct `where`"):
        reader(spark, table, where="id = 1; DELETE FROM t").load().collect()
    with pytest.raises(AnalysisException, match="correct `where`"):
        reader(spark, table, where="nothing = 1").load().collect()


# By table: its SQL, and how many rows it has.
SHAPES = {
    "empty": ("CREATE TABLE empty (id int PRIMARY KEY, v text)", 0),
    "empty_keyless": ("CREATE TABLE empty_keyless (v text)", 0),
    "keyless": (
        "CREATE TABLE keyless (id int, v text);"
        "INSERT INTO keyless SELECT g % 10, repeat('x', 100) FROM generate_series(1, 9000) g",
        9000,
    ),
    "two_columns": (
        "CREATE TABLE two_columns (a int, b text, PRIMARY KEY (b, a));"
        "INSERT INTO two_columns SELECT g, g % 7 FROM generate_series(1, 9000) g",
        9000,
    ),
    "partitioned": (
        "CREATE TABLE partitioned (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF partitioned FOR VALUES FROM (0) TO (5000);"
        "CREATE TABLE t2 PARTITION OF partitioned FOR VALUES FROM (5000) TO (10000);"
        "INSERT INTO partitioned SELECT g, repeat('x', 100) FROM generate_series(1, 9000) g",
        9000,
    ),
}


def test_each_row_comes_once(spark: SparkSession, database: Database) -> None:
    for name, (made, rows) in SHAPES.items():
        database.execute(made)
        frame = own(reader(spark, database, table=f"public.{name}", range_size="64KiB").load())
        found = sorted(map(tuple, frame.collect()), key=repr)
        assert len(found) == rows, name
        assert found == sorted(database.execute(f"SELECT * FROM {name}"), key=repr), name
        assert frame.rdd.getNumPartitions() > 1 or not rows, name


def test_a_publications_filter_and_columns_hold(spark: SparkSession, table: Database) -> None:
    table.execute("CREATE PUBLICATION p FOR TABLE t (id, v) WHERE (id < 10)")
    frame = reader(spark, table, publication="p").load()
    assert own(frame).columns == ["id", "v"]
    assert frame.count() == 9


def test_what_is_no_table_is_an_error_at_load(spark: SparkSession, table: Database) -> None:
    given = {"backend": "postgres", "connection": table.url}
    with pytest.raises(AnalysisException, match=r"spark\.table-missing"):
        spark.read.format("penstock").options(**given).load().collect()
    table.execute("CREATE VIEW seen AS SELECT * FROM t")
    for name in ("public.nothing", "public.seen", "elsewhere.t"):
        with pytest.raises(AnalysisException, match=f"there is no table {name}"):
            reader(spark, table, table=name).load()


def test_a_role_without_rights_is_told_what_it_lacks(spark: SparkSession, table: Database) -> None:
    table.execute("CREATE ROLE reads LOGIN REPLICATION; CREATE ROLE plain LOGIN")
    table.execute("GRANT SELECT ON t TO plain")
    try:
        for role, wanted in [("reads", "GRANT SELECT"), ("plain", "REPLICATION")]:
            url = table.url.replace("postgres@", f"{role}@")
            with pytest.raises(AnalysisException, match=wanted):
                reader(spark, table, connection=url).load().collect()
    finally:
        table.execute("REVOKE ALL ON t FROM plain; DROP ROLE reads; DROP ROLE plain")


def test_a_table_whose_columns_have_our_names_is_refused(
    spark: SparkSession, table: Database
) -> None:
    table.execute("ALTER TABLE t ADD COLUMN _sequence int")
    with pytest.raises(AnalysisException, match="has a column _sequence"):
        reader(spark, table).load()


def test_a_dataframe_of_long_ago_says_what_to_do(spark: SparkSession, table: Database) -> None:
    frame = reader(spark, table, hold="1s").load()
    assert frame.count() == 20_000
    until(lambda: not table.execute("SELECT 1 FROM pg_locks WHERE relation = 't'::regclass"))
    with pytest.raises(PythonException, match="make the DataFrame anew") as caught:
        frame.count()
    assert "spark.snapshot-ended" in str(caught.value)


def test_a_type_that_no_column_has_is_refused_before_anything_is_read() -> None:
    given = {"backend": "postgres", "connection": "postgresql://127.0.0.1:1/no", "table": "t"}
    schema = StructType().add("n", StructType().add("a", IntegerType()))
    with pytest.raises(SettingsError, match="column n of the schema has the type struct"):
        PenstockDataSource(given).reader(schema)


def test_the_columns_of_documents_are_known_without_asking_their_source() -> None:
    given = {"backend": "dynamodb", "table": "users", "endpoint": "http://127.0.0.1:1"}
    assert "after" in PenstockDataSource(given).schema().names


def test_a_stream_takes_no_condition(table: Database) -> None:
    given = {"backend": "postgres", "connection": table.url, "table": "t", "where": "id < 5"}
    with pytest.raises(SettingsError, match=r"where is for spark\.read"):
        PenstockDataSource(given).streamReader(StructType())


def test_what_does_not_fit_is_null_and_told_where_that_is_wanted(
    spark: SparkSession, table: Database
) -> None:
    table.execute("UPDATE t SET n = 'NaN' WHERE id = 7")
    with pytest.raises(PythonException, match=r"public\.t .*column n "):
        reader(spark, table).load().collect()
    frame = reader(spark, table, on_misfit="PERMISSIVE").load()
    assert [tuple(row) for row in frame.where("n IS NULL").select("id", "_rest").collect()] == [
        (7, {"n": "NaN"})
    ]
    assert frame.where("_rest IS NOT NULL").count() == 1


def test_a_stream_goes_on_from_the_point_of_the_rows(
    spark: SparkSession, table: Database, tmp_path: Path
) -> None:
    given = {
        "backend": "postgres", "connection": table.url, "table": "public.t", "slot": "lake",
        "publication": "lake", "create_publication": "true", "patience": "100ms",
    }  # fmt: skip
    lake = str(tmp_path / "lake")

    def run() -> None:
        changes = spark.readStream.format("penstock").options(**given).load()
        writer = changes.writeStream.format("parquet").option("path", lake)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    try:
        run()  # makes the slot
        table.execute("UPDATE t SET v = 'before' WHERE id % 2 = 0; DELETE FROM t WHERE id = 3")
        rows = spark.read.format("penstock").options(**given).load().orderBy("id").collect()
        table.execute("UPDATE t SET v = 'after' WHERE id % 3 = 0; DELETE FROM t WHERE id = 4")
        table.execute("INSERT INTO t VALUES (90000, 'new')")
        run()
        (point,) = {each["_sequence"] for each in rows}
        changes = spark.read.parquet(lake).orderBy("_sequence").collect()
        later = [each for each in changes if each["_sequence"] > point]
        assert 0 < len(later) < len(changes)
        folded = {each["id"]: (each["v"], each["n"]) for each in rows}
        for each in later:
            folded.pop(each["id"], None)
            if each["_operation"] != "DELETE":
                folded[each["id"]] = each["v"], each["n"]
        wanted = table.execute("SELECT id, v, n FROM t")
        assert folded == {id_: (v, n) for id_, v, n in wanted}
    finally:
        drop_slots(table)


# A driver of its own, which is gone before its holder.
_DRIVER = """
import json, sys
from pyspark.sql import SparkSession
import penstock
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
penstock.register(spark)
frame = spark.read.format("penstock").options(**json.loads(sys.argv[1])).load()
print(frame.count(), flush=True)
sys.stdin.read()
"""


@pytest.mark.spark
@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_the_holder_ends_with_spark(table: Database, kill: bool) -> None:
    given = {"backend": "postgres", "connection": table.url, "table": "t"}
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, json.dumps(given)],
        env=environment(PYSPARK_PYTHON=sys.executable, JDK_JAVA_OPTIONS=SHORT_LIVED),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as driver:  # fmt: skip
        assert driver.stdout is not None
        assert driver.stdout.readline().strip().endswith(b"20000")
        assert table.execute("SELECT 1 FROM pg_locks WHERE relation = 't'::regclass")
        if kill:
            os.killpg(driver.pid, signal.SIGKILL)
    until(lambda: not table.execute("SELECT 1 FROM pg_locks WHERE relation = 't'::regclass"))
