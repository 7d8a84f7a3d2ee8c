"""A query over generated changes that keeps Spark warm on standby. Its sink discards them.

It starts every kind of Python worker that the pipeline's own queries need, imports their modules
there, and makes the JVM load its classes. It runs on slowly, because Spark ends workers after a
minute without work. It reads no source and writes to no server.
"""

import time
from contextlib import suppress
from pathlib import Path

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.config import Pipeline
from penstock.spark.queries.query import failure, images
from penstock.spark.queries.supervised import talking_to_java
from penstock.spark.session.plan import mode

# Seconds between two of its micro-batches, and before it is tried again when it failed.
PACE = 20
# Seconds that the pipeline's own queries wait for one of its batches.
PATIENCE = 5.0

log = structlog.get_logger("penstock")


class Warming:
    """`keep` is called a few times a second on standby, then `end` once; and so on."""

    def __init__(self, pipeline: Pipeline, run: Path) -> None:
        self._pipeline, self._run = pipeline, run
        self._query: StreamingQuery | None = None
        self._warm = False
        self._at = 0.0

    def keep(self, session: SparkSession) -> None:
        """Starts the query if it does not run, and logs when Spark is warm. A failure is logged and
        tried again later. Raises EngineLost when the JVM died."""
        try:
            with talking_to_java():
                if self._query is None:
                    if time.monotonic() >= self._at:
                        self._query = _start(session, self._pipeline, self._run)
                elif not self._query.isActive:
                    self._failed(self._query.exception())
                elif not self._warm and self._query.lastProgress is not None:
                    self._warm = True
                    log.info("spark is warm")
        except (PySparkException, Py4JJavaError) as error:
            self._failed(error)

    def _failed(self, error: Exception | None) -> None:
        self._query, self._warm = None, False
        self._at = time.monotonic() + PACE
        log.warning("spark is not kept warm; trying again", error=str(failure(error)))

    def end(self) -> None:
        """Stops the query, before the pipeline's own queries start. Raises nothing."""
        query, self._query, self._warm = self._query, None, False
        if query is None:
            return
        with suppress(PySparkException, Py4JError, OSError):
            # Spark kills the workers of a query that is stopped in the middle of a batch.
            deadline = time.monotonic() + PATIENCE
            while query.status["isTriggerActive"] and time.monotonic() < deadline:
                time.sleep(0.05)
            query.stop()


def _start(spark: SparkSession, pipeline: Pipeline, run: Path) -> StreamingQuery:
    """Returns at once. Each micro-batch has one generated change, or a few."""
    source = {
        "backend": "memory",
        "mode": mode(pipeline),
        "images": images(pipeline),
        "changes": str(10**9),
        "page": "1",
        "latency": "100ms",
        "positions": "memory:",
        "epoch": "200ms",
        "max_events": "1",
        "buffer": "1KiB",
        "preload": ",".join(sorted({backend.type for backend in pipeline.backends})),
    }
    sink = {"sink": "memory", "keep": "false", "preload": pipeline.sink.type}
    return (
        spark.readStream.format("penstock")
        .options(**source)
        .load()
        .writeStream.format("penstock")
        .options(**sink)
        .option("checkpointLocation", str(run / "checkpoint of warming"))
        .trigger(processingTime=f"{PACE} seconds")
        .queryName("warming")
        .start()
    )
