"""A program of a user's: `client.py URL CASES OPTIONS FOLDER`, each as JSON. Prints results."""

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQueryListener

URL, NAMES, OPTIONS, FOLDER = map(json.loads, sys.argv[1:])
spark = SparkSession.builder.remote(URL).getOrCreate()
folder = Path()  # of a case


def changes(**more: str) -> DataFrame:
    return spark.readStream.format("penstock").options(**OPTIONS, **more).load()


def ended(writer: DataStreamWriter, **trigger: Any) -> Any:
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(**trigger or {"availableNow": True}).start()
    assert query.awaitTermination(200)
    return query


def parquet() -> Any:
    query = ended(changes().writeStream.format("parquet").option("path", str(folder / "lake")))
    rows = spark.read.parquet(str(folder / "lake")).select("document_id").collect()
    progress = query.recentProgress
    return {
        "ids": sorted(int(row.document_id) for row in rows),
        "rows": sum(each.numInputRows for each in progress),
        "latest": progress[0].sources[0].latestOffset if progress else None,
    }


def registered() -> Any:
    import penstock

    penstock.register(spark)
    return changes().columns


def sink() -> Any:
    ended(changes().writeStream.format("penstock").options(sink="memory", folder=str(folder)))
    return None


def processing_time() -> Any:
    writer = changes().writeStream.format("parquet").option("path", str(folder / "lake"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    while sum(each.numInputRows for each in query.recentProgress) < 500:
        assert query.isActive, query.exception()
        time.sleep(0.2)
    query.stop()
    return spark.read.parquet(str(folder / "lake")).count()


def for_each_batch() -> Any:
    into = str(folder / "lake")

    def write(frame: DataFrame, number: int) -> None:
        frame.withColumn("batch", frame.ordinal * 0 + number).write.mode("append").parquet(into)

    ended(changes().writeStream.foreachBatch(write))
    return spark.read.parquet(into).count()


def listener() -> Any:
    found: list[Any] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            found.append(event.progress.numInputRows)

        def onQueryTerminated(self, event: Any) -> None:
            found.append("terminated")

    listener = Listener()
    spark.streams.addListener(listener)
    ended(changes().writeStream.format("noop"))
    while "terminated" not in found:
        time.sleep(0.1)
    spark.streams.removeListener(listener)
    return sum(found[: found.index("terminated")])


def sql() -> Any:
    changes().createOrReplaceTempView("changes")
    frame = spark.sql("SELECT document_id FROM changes WHERE operation = 'INSERT'")
    ended(frame.writeStream.format("parquet").option("path", str(folder / "lake")))
    return spark.read.parquet(str(folder / "lake")).count()


def errors() -> Any:
    found = []
    for refused in (
        lambda: changes(chanes="1").columns,
        lambda: ended(changes().writeStream.format("noop"), once=True),
    ):
        try:
            refused()
        except Exception as error:
            found.append(str(error))
    return found


CASES: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        parquet, registered, sink, processing_time, for_each_batch, listener, sql, errors
    )
}  # fmt: skip
results = {}
for name in NAMES:
    folder = Path(FOLDER) / name
    if name != "parquet":  # of a client that failed
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    results[name] = CASES[name]()
print(json.dumps(results))
