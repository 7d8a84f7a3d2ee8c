"""One streaming query for each backend: source -> transforms -> sink, and why one ended.

With a query of its own, a backend can fail, wait and restart without the others. The query's
checkpoint is deleted with the run: a start resumes from the bookmarks in the positions store.
"""

import re
import shutil
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path

import orjson
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.config import Backend, Pipeline, Spark, options_from_settings
from penstock.microbatch.late import CARRIER, stub_schema
from penstock.microbatch.options import Listening, feed_options
from penstock.microbatch.run_folder import query_name
from penstock.model.change import COLUMNS, IMAGES, Images, schema
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.process.plugins import plugin
from penstock.spark.queries.columns import no_changes, unread, with_unread
from penstock.spark.session.launch import is_local
from penstock.spark.session.plan import mode

# Python workers' exceptions reach the driver as text inside a traceback inside a Java exception.
_ERROR = re.compile(r"(penstock(?:\.\w+)*)\.(\w+): (.+)")


def images(pipeline: Pipeline, late: Collection[str] = ()) -> Images:
    """How images are encoded between decoder and sink: as the sink stores them, if no transform
    reads them. Lines never pass a transform: it may drop the row that describes them."""
    wanted = pipeline.sink.images
    around = wanted != "text" and set(IMAGES).issubset(late)
    return wanted if around or mode(pipeline) != "rows" else "json"


def start_query(
    spark: SparkSession,
    pipeline: Pipeline,
    backend: Backend,
    *,
    run: Path,
    attempt: int,
    number: int = 0,
    reports: Mapping[str, str],
) -> StreamingQuery:
    """Starts a backend's query; returns at once. No other one that runs has its `number`, from 0.
    `reports` are the options that say where tasks on other hosts report to."""
    late = _late(spark, pipeline)
    has_side = _has_side_channel(spark, pipeline)
    side = _side_channel(run, backend, attempt, late) if has_side else {}
    source = (
        _source(pipeline, backend, run) | _pages(spark, pipeline, number) | dict(reports) | side
    )
    source["query"] = query_name(backend.name, attempt)
    source |= _bounds(pipeline, late) | {"images": images(pipeline, late)}
    frame = spark.readStream.format("penstock").options(**source).load()
    if late:
        read = stub_schema(schema(), late).names
        frame = transformed(spark, pipeline, with_unread(frame)).select(*read)
    else:
        frame = transformed(spark, pipeline, frame)
    shutil.rmtree(run / f"checkpoint-{backend.name}-{attempt - 1}", ignore_errors=True)
    checkpoint = run / f"checkpoint-{backend.name}-{attempt}"
    trigger = pipeline.spark.trigger
    milliseconds = 0 if trigger == "realtime" else round(trigger * 1000)
    return (
        frame.writeStream.format("penstock")
        .options(**_sink(pipeline, run) | _policy(pipeline, backend) | dict(reports) | side)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{milliseconds} milliseconds")
        .queryName(backend.name)
        .start()
    )


# The text of an error of ours, and its code.
_CODED = re.compile(r"(.*?)(?: \[([a-z0-9._-]+)\])?", re.DOTALL)


def failure(query_error: Exception | None) -> PenstockError:
    """Why a query ended, as one of our errors; anything we did not raise is Unavailable: the
    query is started again from the stored position (a worker or a task died)."""
    if query_error is None:
        return Unavailable("the Spark query ended without an error", "spark")
    text = str(query_error)
    for module, name, message in reversed(_ERROR.findall(text)):
        if (kind := _kind(module, name)) is not None:
            told = _CODED.fullmatch(message.strip())
            assert told is not None  # it takes any text
            error = kind(told[1], "spark")
            error.code = told[2] or error.code
            return error
    return Unavailable(f"the Spark query failed: {_first_line(text)}", "spark.query-failed")


def _kind(module: str, name: str) -> type[PenstockError] | None:
    """The error's class, or the nearest above it that says what to do; None if it is not ours."""
    try:
        found = getattr(import_module(module), name, None)
    except ImportError:
        return None
    if not isinstance(found, type) or not issubclass(found, PenstockError):
        return None
    return next(kind for kind in found.__mro__ if kind.__module__ == PenstockError.__module__)


def _source(pipeline: Pipeline, backend: Backend, run: Path) -> dict[str, str]:
    return feed_options(backend.settings) | {
        "backend": backend.type,
        "mode": mode(pipeline),
        "epoch": f"{pipeline.spark.epoch}s",
        "buffer": str(pipeline.spark.buffer),
        "pipeline": pipeline.name,
        "positions": pipeline.positions,
        "checkpoint.interval": f"{pipeline.checkpoint.interval}s",
        "checkpoint.event_count": str(pipeline.checkpoint.event_count),
        "runtime": str(run),
        "on_error": backend.on_error,
        **({} if backend.max_gap is None else {"max_gap": f"{backend.max_gap}s"}),
        "hash_partitions": str(pipeline.hash_partitions(backend)),
        **_target(pipeline, backend),
    }


def _target(pipeline: Pipeline, backend: Backend) -> dict[str, str]:
    """The sink, if the reader stores the schemas of its tables there."""
    if pipeline.sink.server() is None:
        return {}
    secret = orjson.dumps(options_from_settings(pipeline.sink.settings)).decode()
    prefix = backend.name if len(pipeline.backends) > 1 else ""
    return {"target.sink": pipeline.sink.type, "target.secret": secret, "target.prefix": prefix}


def _bounds(pipeline: Pipeline, late: Collection[str]) -> dict[str, str]:
    """The bounds of a micro-batch. Nothing is written between two of them: stubs take little of the
    JVM's memory, so their micro-batches are twice as large unless the pipeline file bounds them."""
    spark = pipeline.spark
    found = {"max_events": spark.max_events, "max_bytes": spark.max_bytes}
    return {
        name: str(bound * 2 if late and name not in spark.model_fields_set else bound)
        for name, bound in found.items()
    }


def _pages(spark: SparkSession, pipeline: Pipeline, number: int) -> dict[str, str]:
    """On a cluster: where executors get a backend's pages."""
    if (first := listening(spark, pipeline.spark)) is None:
        return {}
    # The first port is the board's.
    port = first.port + 1 + number if first.port else 0
    return {"pages.host": first.host, "pages.bind": first.bind, "pages.port": str(port)}


def _policy(pipeline: Pipeline, backend: Backend) -> dict[str, str]:
    """What a sink gets of the backend, as far as it has the settings."""
    policy = {
        "on_error": backend.on_error,
        "initial": str(pipeline.snapshot.initial is not False).lower(),
        "connector": plugin("feeds", backend.type).connector or backend.type,
    }
    known = type(pipeline.sink.settings).model_fields
    return {name: text for name, text in policy.items() if name in known}


def _sink(pipeline: Pipeline, run: Path) -> dict[str, str]:
    options = options_from_settings(pipeline.sink.settings)
    return options | {"sink": pipeline.sink.type, "runtime": str(run)}


def _late(spark: SparkSession, pipeline: Pipeline) -> frozenset[str]:
    """The columns that can go around the JVM. On a cluster none: its hosts share no folder."""
    if not _has_side_channel(spark, pipeline):
        return frozenset()
    source = no_changes(spark)
    made = transformed(spark, pipeline, source)
    if any(made.columns.count(name) != 1 for name in COLUMNS):
        return frozenset()  # the sink says what is wrong with that
    late = unread(source, made)
    # A statement that lists its columns drops the carrier: then no column can be late.
    return late - {CARRIER} if CARRIER in late else frozenset()


def _has_side_channel(spark: SparkSession, pipeline: Pipeline) -> bool:
    """Whether changes that cannot be decoded, and late columns, go around the JVM."""
    return mode(pipeline) == "rows" and is_local(str(spark.sparkContext.master))


def _side_channel(
    run: Path, backend: Backend, attempt: int, late: Collection[str]
) -> dict[str, str]:
    """A folder for what goes around the JVM, and which columns; a failed attempt's is removed."""
    shutil.rmtree(run / f"side-channel-{backend.name}-{attempt - 1}", ignore_errors=True)
    folder = {"side_channel": str(run / f"side-channel-{backend.name}-{attempt}")}
    return folder | ({"late": ",".join(sorted(late))} if late else {})


def transformed(spark: SparkSession, pipeline: Pipeline, frame: DataFrame) -> DataFrame:
    """What the pipeline's statements make of changes. Raises SettingsError."""
    for step in pipeline.transform:
        frame.createOrReplaceTempView("changes")
        try:
            frame = spark.sql(step.sql)
        except PySparkException as error:
            raise SettingsError(
                f"transform: {_first_line(str(error))}",
                "spark.transform-invalid",
                hint=f"in the statement: {step.sql}",
            ) from error
    return frame


def _first_line(text: str) -> str:
    """The first line that is not empty: Spark begins a syntax error with an empty one."""
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "it ended")


def task_slots(spark: SparkSession) -> int:
    """How many tasks may run at a time now: 0 before the first executor has registered, -1 when
    Spark was stopped: a cluster's master may end an application. (`defaultParallelism` is 2 without
    executors, and ignores `spark.task.cpus`.)"""
    context = spark.sparkContext._jsc.sc()
    if context.isStopped():
        return -1
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def listening(spark: SparkSession, settings: Spark) -> Listening | None:
    """Where executors reach the first of penstock's own servers: the driver's host, and the first
    of their ports. None where tasks run in the driver's JVM."""
    context = spark.sparkContext
    if is_local(str(context.master)):
        return None
    conf = context.getConf()
    return Listening(
        host=conf.get("spark.driver.host", "") or "",
        bind=settings.bind or conf.get("spark.driver.bindAddress", "") or "",
        port=settings.port,
    )
