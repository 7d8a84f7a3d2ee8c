"""format("penstock") under real Spark: memory feed -> DataFrame -> memory sink."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from penstock.model.change import COLUMNS
from penstock.sinks.memory import MemorySinkSettings, stored
from penstock.spark import PenstockDataSource

CHANGES = 1_000


def source(spark: SparkSession, **options: Any) -> DataFrame:
    given = {"backend": "memory", "changes": CHANGES, "page": 64, "patience": "100ms", **options}
    reader = spark.readStream.format("penstock")
    return reader.options(**{key: str(value) for key, value in given.items()}).load()


def sink(frame: DataFrame, folder: Path, checkpoint: Path, **options: str) -> StreamingQuery:
    writer = frame.writeStream.format("penstock").option("sink", "memory")
    return (
        writer.option("folder", str(folder))
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .start()
    )


def wait(query: StreamingQuery, until: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def events(folder: Path) -> list[dict[str, Any]]:
    return stored(MemorySinkSettings(folder=str(folder)))


def test_its_columns_are_those_of_a_change_or_the_chosen_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert source(spark).columns == list(COLUMNS)
    frame = source(spark, columns="after, event_id")
    writer = frame.writeStream.option("path", str(tmp_path / "rows"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(60)
    found = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert {tuple(row.asDict()) for row in found} == {("event_id", "after")}
    assert len({row.event_id for row in found}) == CHANGES
    with pytest.raises(AnalysisException, match=r"no columns afther.*name some of .* after,"):
        source(spark, columns="event_id,afther")


def test_the_package_that_pyspark_discovers_offers_it() -> None:
    # PySpark imports top-level packages called pyspark_*, and takes their DefaultSource.
    import pyspark_penstock

    assert pyspark_penstock.__name__.startswith("pyspark_")
    assert pyspark_penstock.DefaultSource is PenstockDataSource
    assert PenstockDataSource.name() == "penstock"


@pytest.mark.parametrize(("mode", "images"), [("rows", "json"), ("realtime", "msgpack")])
def test_every_change_arrives_once_and_in_order(
    spark: SparkSession, tmp_path: Path, mode: str, images: str
) -> None:
    positions = {"positions": f"sqlite:///{tmp_path}/positions.db"} if mode == "realtime" else {}
    frame = source(spark, mode=mode, images=images, max_events=300, epoch="1s", **positions)
    query = sink(frame, tmp_path, tmp_path / "checkpoint")
    try:
        wait(query, lambda: len(events(tmp_path)) >= CHANGES)
    finally:
        query.stop()
    got = events(tmp_path)
    places = [(row["cursor"], row["ordinal"]) for row in got]
    assert len(got) == CHANGES
    assert places == sorted(places)
    assert [row["after"]["number"] for row in got if row["after"]] == [
        n for n in range(CHANGES) if n // 7 % 3 != 2
    ]


def test_plain_dataframe_operations_work_in_between(spark: SparkSession, tmp_path: Path) -> None:
    frame = (
        source(spark)
        .where(f.col("operation") == "INSERT")
        .withColumn("tenant", f.get_json_object("after", "$.text"))
    )
    query = sink(frame, tmp_path, tmp_path / "checkpoint")
    inserts = [n for n in range(CHANGES) if n // 7 % 3 == 0]
    try:
        wait(query, lambda: len(events(tmp_path)) >= len(inserts))
    finally:
        query.stop()
    assert [row["tenant"] for row in events(tmp_path)] == [f"change {n}" for n in inserts]


def test_a_query_goes_on_from_its_own_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    checkpoint = tmp_path / "checkpoint"
    query = sink(source(spark, changes=500), first, checkpoint)
    try:
        # Progress is reported when a batch is committed; and when there was none, of no rows.
        wait(query, lambda: sum(done.numInputRows for done in query.recentProgress) >= 500)
    finally:
        query.stop()
    query = sink(source(spark, changes=900), second, checkpoint)
    try:
        wait(query, lambda: len(events(second)) >= 400)
    finally:
        query.stop()
    ids = [row["event_id"] for row in [*events(first), *events(second)]]
    assert len(ids) == len(set(ids)) == 900


def test_partitions_of_a_feed_are_read_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    query = sink(source(spark, partitions=3), tmp_path, tmp_path / "checkpoint")
    try:
        wait(query, lambda: len(events(tmp_path)) >= 3 * CHANGES)
    finally:
        query.stop()
    for name in ("p0", "p1", "p2"):
        places = [(r["cursor"], r["ordinal"]) for r in events(tmp_path) if r["partition"] == name]
        assert len(places) == CHANGES
        assert places == sorted(places)


def test_an_unknown_option_and_a_dataframe_without_a_needed_column_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(AnalysisException, match=r"did you mean '?changes'?"):
        source(spark, chanes=1)
    with pytest.raises(StreamingQueryException, match="lacks the columns after"):
        sink(source(spark).drop("after"), tmp_path, tmp_path / "checkpoint").awaitTermination(60)


def test_spark_redacts_the_key_of_the_reports(spark: SparkSession) -> None:
    """In plans, in logs and on its pages."""
    options = {"reports.address": "tcp:host:1", "reports.token": "c0ffee"}
    known: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().conf()
    shown = conf.redactOptions(known.PythonUtils.toScalaMap(options)).toString()
    assert "tcp:host:1" in shown
    assert "c0ffee" not in shown
