"""One streaming query for each backend: source -> transforms -> sink, and why one ended.

A query of its own lets one backend fail, wait and restart without the others. Its checkpoint is
thrown away with the run: positions are in the lease store, and a start resumes from there.
"""

import re
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock.errors
from penstock.config import Backend, Pipeline, options_from_settings
from penstock.errors import PenstockError, SettingsError, Unavailable

__all__ = ["failure", "is_packed", "start_query"]

# Python workers' exceptions reach the driver as text inside a traceback inside a Java exception.
_ERROR = re.compile(r"penstock\.errors\.(\w+): (.+)")


def is_packed(pipeline: Pipeline) -> bool:
    """Whether pages go to the sink undecoded: always, unless a transform must see rows."""
    if pipeline.spark.mode == "auto":
        return not pipeline.transform
    if pipeline.spark.mode == "packed" and pipeline.transform:
        raise SettingsError(
            "spark.mode: packed pages can't be transformed", hint="use mode: auto or rows"
        )
    return pipeline.spark.mode == "packed"


def start_query(
    spark: SparkSession, pipeline: Pipeline, backend: Backend, *, run: Path, attempt: int
) -> StreamingQuery:
    """Starts a backend's query; returns at once."""
    frame = spark.readStream.format("penstock").options(**_source(pipeline, backend, run)).load()
    for step in pipeline.transform:
        frame = _transformed(spark, frame, step.sql)
    checkpoint = run / f"checkpoint-{backend.name}-{attempt}"
    milliseconds = round(pipeline.spark.trigger * 1000)
    return (
        frame.writeStream.format("penstock")
        .options(**_sink(pipeline, run))
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{milliseconds} milliseconds")
        .queryName(backend.name)
        .start()
    )


def failure(query_error: Exception | None) -> PenstockError:
    """Why a query ended, as one of our errors; anything we did not raise is Unavailable: the
    query is started again from the stored position (a worker or a task died)."""
    text = str(query_error)
    found = _ERROR.findall(text)
    if not found:
        first = next((line for line in text.splitlines() if line.strip()), "it ended")
        return Unavailable(f"the Spark query failed: {first.strip()[:300]}")
    name, message = found[-1]
    kind: Any = getattr(penstock.errors, name, Unavailable)
    error: PenstockError = kind(message.strip())
    return error


def _source(pipeline: Pipeline, backend: Backend, run: Path) -> dict[str, str]:
    return options_from_settings(backend.settings) | {
        "backend": backend.type,
        "mode": "packed" if is_packed(pipeline) else "rows",
        "images": "msgpack" if is_packed(pipeline) and _wants_msgpack(pipeline) else "json",
        "max_events": str(pipeline.spark.max_events),
        "max_bytes": str(pipeline.spark.max_bytes),
        "buffer": str(pipeline.spark.buffer),
        "pipeline": pipeline.name,
        "positions": pipeline.positions,
        "checkpoint.interval": f"{pipeline.checkpoint.interval}s",
        "checkpoint.event_count": str(pipeline.checkpoint.event_count),
        "runtime": str(run),
    }


def _wants_msgpack(pipeline: Pipeline) -> bool:
    return getattr(pipeline.sink.settings, "encoding", "json") == "msgpack"


def _sink(pipeline: Pipeline, run: Path) -> dict[str, str]:
    options = options_from_settings(pipeline.sink.settings)
    return options | {"sink": pipeline.sink.type, "runtime": str(run)}


def _transformed(spark: SparkSession, frame: DataFrame, sql: str) -> DataFrame:
    frame.createOrReplaceTempView("changes")
    try:
        return spark.sql(sql)
    except PySparkException as error:
        first = str(error).splitlines()[0]
        raise SettingsError(f"transform: {first}", hint=f"in the statement: {sql}") from error
