"""What the design rests on, observed: PySpark's Python Data Source API as it behaves.

A failure here means that Spark changed, and that docs/explanation/architecture.md must be read
again.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    InputPartition,
    WriterCommitMessage,
)

pytestmark = pytest.mark.spark


def note(folder: str, what: str, **more: Any) -> None:
    line = json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **more})
    with Path(folder, "log").open("a") as log:
        log.write(line + "\n")


class Recorder(DataSource):
    """Counts up to `limit`, one row a batch, and notes who is called, where and when."""

    @classmethod
    def name(cls) -> str:
        return "recorder"

    def schema(self) -> str:
        return "n long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return Reader(dict(self.options))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return Writer(dict(self.options))


class Reader(DataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.folder, self.limit = options["folder"], int(options["limit"])
        note(self.folder, "reader made")

    def initialOffset(self) -> dict[str, int]:
        note(self.folder, "initialOffset")
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        note(self.folder, "latestOffset", start=start["n"])
        return {"n": min(start["n"] + 1, self.limit)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        note(self.folder, "partitions", start=start["n"], end=end["n"])
        return [InputPartition(n) for n in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        note(self.folder, "read", n=partition.value)
        yield pa.record_batch([pa.array([partition.value])], names=["n"])

    def commit(self, end: dict[str, int]) -> None:
        note(self.folder, "source commit", end=end["n"])


class Writer(DataSourceStreamArrowWriter):
    def __init__(self, options: dict[str, str]) -> None:
        self.folder, self.fail = options["folder"], options.get("fail", "")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            n = batch.column(0)[0].as_py()
            note(self.folder, "write", n=n)
            if str(n) == self.fail:
                raise RuntimeError("told to fail")
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        note(self.folder, "sink commit", batch=batchId)


def run(spark: SparkSession, folder: Path, *, seconds: float, **options: Any) -> list[Any]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(Recorder)
    given = {"folder": str(folder), "limit": "3", **options}
    query = (
        spark.readStream.format("recorder")
        .options(**given)
        .load()
        .writeStream.format("recorder")
        .options(**given)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    deadline = time.monotonic() + 180
    while query.isActive and not _settled(folder, seconds) and time.monotonic() < deadline:
        time.sleep(0.1)
    if query.isActive:
        query.stop()
    return log(folder)


def log(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def _settled(folder: Path, seconds: float) -> bool:
    """Whether everything was written `seconds` ago, and the source was asked again since."""
    path = folder / "log"
    lines = log(folder) if path.exists() else []
    done = [line["at"] for line in lines if line["what"] == "sink commit"]
    idle = [line for line in lines if line["what"] == "latestOffset" and line["start"] == 3]
    return len(done) >= 3 and time.time() - done[-1] >= seconds and (not seconds or len(idle) >= 5)


def pids(calls: list[Any], *what: str) -> set[int]:
    return {call["pid"] for call in calls if call["what"] in what}


def test_who_is_called_where_and_when(spark: SparkSession, tmp_path: Path) -> None:
    calls = run(spark, tmp_path, seconds=1.5)
    planner = pids(calls, "latestOffset", "partitions", "initialOffset", "source commit")
    assert len(planner) == 1
    assert not planner & pids(calls, "read", "write"), "tasks are other processes"
    assert not planner & pids(calls, "sink commit"), "so is the sink's commit"
    readers = pids(calls, "reader made") - pids(calls, "latestOffset")
    assert readers, "readers are made in processes that never plan, too"
    idle = [call for call in calls if call["what"] == "latestOffset" and call["start"] == 3]
    assert len(idle) >= 5, "the source is asked on every trigger, idle or not"
    committed = 0
    for call in calls:
        committed += call["what"] == "sink commit"
        if call["what"] == "latestOffset":
            assert call["start"] <= committed, "what it starts at is committed to the sink"
    ends = [call["end"] for call in calls if call["what"] == "source commit"]
    assert max(ends, default=0) < 3, "the source's commit lags, and does not come while idle"


def test_after_a_crash_partitions_may_come_before_anything_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(spark, tmp_path, seconds=0, fail="1")
    before = len(log(tmp_path))
    assert [call["n"] for call in log(tmp_path) if call["what"] == "write"] == [0, 1]
    again = run(spark, tmp_path, seconds=0)[before:]
    planned = [c for c in again if c["what"] in ("latestOffset", "partitions", "initialOffset")]
    assert (planned[0]["what"], planned[0]["start"], planned[0]["end"]) == ("partitions", 1, 2)
    assert [call["n"] for call in again if call["what"] == "write"] == [1, 2]


def test_the_hook_for_daemons_is_for_tasks_only(spark: SparkSession) -> None:
    """Hence the launcher: `spark.python.daemon.module` is ignored by whatever plans a query."""
    conf = spark._jsc.sc().conf()
    conf.set("spark.python.daemon.module", "there_is_no_such_module")
    try:
        frame = spark.readStream.format("penstock").options(backend="memory", changes="1").load()
        assert "event_id" in frame.columns
        with pytest.raises(Py4JJavaError, match="there_is_no_such_module"):
            spark.range(1).rdd.count()
    finally:
        conf.remove("spark.python.daemon.module")
    assert spark.range(1).rdd.count() == 1


class Numbers(DataSource):
    """0 to 3, and of these the one that a filter wants."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: Any) -> DataSourceReader:
        return NumbersReader()


class NumbersReader(DataSourceReader):
    only: Any = None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for each in filters:
            if isinstance(each, EqualTo):
                self.only = each.value
            yield each

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.only)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(n,) for n in range(4) if partition.value in (None, n)])


def test_rows_of_a_pushed_filter_are_given_to_other_uses_of_a_dataframe(
    spark: SparkSession,
) -> None:
    """Why `spark.read` of penstock takes no filters: they would change results."""
    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", True)
    try:
        frame = spark.read.format("numbers").load()
        assert [each["n"] for each in frame.where("n = 1").collect()] == [1]
        assert [each["n"] for each in frame.collect()] == [1]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_batch_is_planned_once_for_all_uses_of_a_dataframe(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(Planned)
    frame = spark.read.format("planned").option("folder", str(tmp_path)).load()
    assert [frame.count(), frame.where("n > 0").count(), len(frame.collect())] == [2, 1, 2]
    assert frame.join(frame, "n").count() == 2
    assert len((tmp_path / "log").read_text().splitlines()) == 1


class Planned(DataSource):
    """Notes when it is planned."""

    @classmethod
    def name(cls) -> str:
        return "planned"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: Any) -> DataSourceReader:
        return PlannedReader(self.options["folder"])


class PlannedReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def partitions(self) -> list[InputPartition]:
        note(self.folder, "planned")
        return [InputPartition(n) for n in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(partition.value,)])
