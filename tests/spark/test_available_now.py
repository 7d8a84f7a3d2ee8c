"""trigger(availableNow=True) under real Spark, over PostgreSQL: it takes all, and ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.sinks.memory import MemorySinkSettings, stored
from tests.microbatch.sources import Table, Written, table_in, writing
from tests.pipeline.running import SHORT_LIVED, environment
from tests.servers import Database
from tests.waiting import until

pytestmark = pytest.mark.spark

# A driver of its own, which is killed while it runs.
_DRIVER = """
import json, sys
from pyspark.sql import SparkSession
import penstock
given = json.loads(sys.argv[1])
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
penstock.register(spark)
frame = spark.readStream.format("penstock").options(**given["source"]).load()
writer = frame.writeStream.format("penstock").options(**given["sink"])
writer.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.fixture
def table(database: Database) -> Iterator[Table]:
    with table_in(database) as made:
        yield made


def source(spark: SparkSession, table: Written, **options: str) -> DataFrame:
    reader = spark.readStream.format("penstock")
    return reader.options(**{**table.options, **options}).load()


def sink_options(folder: Path) -> dict[str, str]:
    return {
        "sink": "memory", "folder": str(folder), "checkpointLocation": str(folder / "checkpoint")
    }  # fmt: skip


def run(frame: DataFrame, folder: Path, **trigger: Any) -> list[Any]:
    """The progress of a run to its end."""
    writer = frame.writeStream.format("penstock").options(**sink_options(folder))
    query = writer.trigger(**trigger).start()
    assert query.awaitTermination(300), "it does not end"
    return list(query.recentProgress)


def run_killed(options: dict[str, str], folder: Path) -> None:
    """A run of another driver, which is killed in the middle."""
    given = json.dumps({"source": options, "sink": sink_options(folder)})
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, given],
        env=environment(PYSPARK_PYTHON=sys.executable, JDK_JAVA_OPTIONS=SHORT_LIVED),
        start_new_session=True,
    )
    until(lambda: len(numbers(folder)) >= 2_000)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def numbers(folder: Path) -> list[int]:
    return [int(row["document_id"]) for row in stored(MemorySinkSettings(folder=str(folder)))]


def test_each_run_takes_all_that_is_there_and_its_progress_has_the_backlog(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    frame = source(spark, table)
    run(frame, tmp_path, availableNow=True)
    table.write(5_000)
    progress = run(frame, tmp_path, availableNow=True)
    assert numbers(tmp_path) == list(range(1, 5_001))
    assert sum(each.numInputRows for each in progress) == 5_000
    assert len(progress) > 4
    newest = [each.sources[0].latestOffset for each in progress]
    assert '"lag_bytes"' in newest[0]
    assert '"lag_seconds"' in newest[0]
    assert '"end"' in newest[0]
    run(frame, tmp_path, availableNow=True)
    assert len(numbers(tmp_path)) == 5_000


def test_runs_over_other_sources_take_each_change_once(
    spark: SparkSession, other: Written, tmp_path: Path
) -> None:
    """With one that writes while a run reads, and a partition that splits between two runs."""

    def found() -> list[int]:
        rows = stored(MemorySinkSettings(folder=str(tmp_path)))
        return sorted(other.found(rows))

    frame = source(spark, other)
    run(frame, tmp_path, availableNow=True)
    other.write(450)
    with writing(lambda: other.write(1)):
        progress = run(frame, tmp_path, availableNow=True)
    assert sum(each.numInputRows > 0 for each in progress) >= 3
    got = found()
    assert got[:450] == list(range(1, 451))
    assert len(got) == len(set(got))
    other.split()
    other.write(150)
    run(frame, tmp_path, availableNow=True)
    assert found() == list(range(1, next(other.numbers)))


@pytest.mark.thorough
def test_a_driver_that_is_killed_in_the_middle_is_gone_on_with(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    frame = source(spark, table)
    run(frame, tmp_path, availableNow=True)
    table.write(8_000)
    run_killed(table.options, tmp_path)
    table.write(500)
    run(frame, tmp_path, availableNow=True)
    assert numbers(tmp_path) == list(range(1, 8_501))


def test_one_micro_batch_of_all_is_refused_and_what_to_use_is_named(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match="availableNow=True"):
        run(source(spark, table), tmp_path, once=True)


def test_rows_of_before_come_first_also_over_a_driver_that_is_killed(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    table.write(8_000)
    run_killed({**table.options, "snapshot": "initial"}, tmp_path)
    table.write(500)
    run(source(spark, table, snapshot="initial"), tmp_path, availableNow=True)
    table.write(500)
    run(source(spark, table, snapshot="initial"), tmp_path, availableNow=True)
    found = stored(MemorySinkSettings(folder=str(tmp_path)))
    places = {row["document_id"]: row["operation"] for row in found}
    assert sorted(map(int, places)) == list(range(1, 9_001))
    assert all(places[str(number)] == "READ" for number in range(1, 8_001))
    assert all(places[str(number)] == "INSERT" for number in range(8_501, 9_001))
