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
from penstock.change import Images
from penstock.config import Backend, Pipeline, options_from_settings
from penstock.errors import PenstockError, SettingsError, Unavailable
from penstock.spark.options import Mode
from penstock.spark.session.session import is_local

__all__ = ["failure", "images", "mode", "start_query"]

# Python workers' exceptions reach the driver as text inside a traceback inside a Java exception.
_ERROR = re.compile(r"penstock\.errors\.(\w+): (.+)")


def mode(pipeline: Pipeline) -> Mode:
    """How changes go through Spark: as rows if a transform must see them, else as tickets; these
    stay open while changes come, unless somebody wants micro-batches (an interval as trigger)."""
    spark = pipeline.spark
    if pipeline.transform or spark.mode == "rows":
        return "rows"
    is_open = spark.trigger == "realtime" or (spark.trigger == 0 and spark.mode == "auto")
    return "realtime" if is_open else "packed"


def images(pipeline: Pipeline) -> Images:
    """How images are encoded on their way: as the sink wants them, if no transform sees them."""
    packed = getattr(pipeline.sink.settings, "encoding", "json") in ("msgpack", "arrow")
    return "msgpack" if packed and mode(pipeline) != "rows" else "json"


def start_query(
    spark: SparkSession, pipeline: Pipeline, backend: Backend, *, run: Path, attempt: int
) -> StreamingQuery:
    """Starts a backend's query; returns at once."""
    slots = spark.sparkContext.defaultParallelism
    source = _source(pipeline, backend, run, slots) | _outlet(spark)
    frame = spark.readStream.format("penstock").options(**source).load()
    for step in pipeline.transform:
        frame = _transformed(spark, frame, step.sql)
    checkpoint = run / f"checkpoint-{backend.name}-{attempt}"
    trigger = pipeline.spark.trigger
    milliseconds = 0 if trigger == "realtime" else round(trigger * 1000)
    return (
        frame.writeStream.format("penstock")
        .options(**_sink(pipeline, run) | _policy(pipeline, backend))
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
        return Unavailable(f"the Spark query failed: {_first_line(text)}")
    name, message = found[-1]
    kind: Any = getattr(penstock.errors, name, Unavailable)
    error: PenstockError = kind(message.strip())
    return error


def _source(pipeline: Pipeline, backend: Backend, run: Path, slots: int) -> dict[str, str]:
    return options_from_settings(backend.settings) | {
        "backend": backend.type,
        "mode": mode(pipeline),
        "images": images(pipeline),
        "epoch": f"{pipeline.spark.epoch}s",
        "slots": str(slots // len(pipeline.backends)),
        "max_events": str(pipeline.spark.max_events),
        "max_bytes": str(pipeline.spark.max_bytes),
        "buffer": str(pipeline.spark.buffer),
        "pipeline": pipeline.name,
        "positions": pipeline.positions,
        "checkpoint.interval": f"{pipeline.checkpoint.interval}s",
        "checkpoint.event_count": str(pipeline.checkpoint.event_count),
        "runtime": str(run),
        "on_error": backend.on_error,
    }


def _outlet(spark: SparkSession) -> dict[str, str]:
    """On a cluster, executors reach the planner where they reach the driver."""
    context = spark.sparkContext
    if is_local(str(context.master)):
        return {}
    return {"outlet": context.getConf().get("spark.driver.host", "") or ""}


def _policy(pipeline: Pipeline, backend: Backend) -> dict[str, str]:
    """What the sink does with poison, if it can do anything but stop."""
    known = "on_error" in type(pipeline.sink.settings).model_fields
    return {"on_error": backend.on_error} if known else {}


def _sink(pipeline: Pipeline, run: Path) -> dict[str, str]:
    options = options_from_settings(pipeline.sink.settings)
    return options | {"sink": pipeline.sink.type, "runtime": str(run)}


def _transformed(spark: SparkSession, frame: DataFrame, sql: str) -> DataFrame:
    frame.createOrReplaceTempView("changes")
    try:
        return spark.sql(sql)
    except PySparkException as error:
        raise SettingsError(
            f"transform: {_first_line(str(error))}", hint=f"in the statement: {sql}"
        ) from error


def _first_line(text: str) -> str:
    """The first that says something: Spark begins a syntax error with an empty one."""
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "it ended")
