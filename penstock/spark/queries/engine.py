"""The Spark session of the service: opened when it is first needed, kept warm, closed once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.config import Backend, Pipeline
from penstock.native import describe
from penstock.spark.queries.query import mode, start_query
from penstock.spark.queries.supervised import Supervised
from penstock.spark.queries.warming import Warming
from penstock.spark.session.session import close_session, make_active, open_session

__all__ = ["Engine"]

log = structlog.get_logger("penstock")


class Engine:
    """Holds the session and its JVM. `run` takes Spark's scratch files."""

    def __init__(self, pipeline: Pipeline, run: Path) -> None:
        self._pipeline = pipeline
        self._run = run
        self._spark: SparkSession | None = None
        self._warming = Warming(pipeline, run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._spark is not None:
            close_session(self._spark)

    def open(self) -> SparkSession:
        """The session; takes seconds the first time."""
        if self._spark is None:
            settings = self._pipeline.spark
            # Not in the main thread: there a SparkContext would put a SIGINT handler of its own in
            # place of the service's.
            with ThreadPoolExecutor(1, "spark") as aside:
                opening = aside.submit(
                    open_session,
                    self._pipeline.name,
                    master=settings.master,
                    folder=self._run,
                    mode=mode(self._pipeline),
                    # An open micro-batch keeps its slot.
                    slots=len(self._pipeline.backends),
                    conf=settings.conf,
                    plugins=_plugins(self._pipeline),
                    fork_server=settings.fork_server,
                )
                spark = opening.result()
            make_active(spark)
            self._spark = spark
            log.info(
                "spark is ready",
                version=self._spark.version,
                master=settings.master,
                native=describe(),
            )
        return self._spark

    def query(self, backend: Backend) -> Supervised:
        """The backend's query, not started yet."""

        def start(attempt: int) -> StreamingQuery:
            return start_query(self.open(), self._pipeline, backend, run=self._run, attempt=attempt)

        return Supervised(backend.name, start)

    def wait(self) -> None:
        """Called a few times a second while another instance runs the pipeline: has Spark ready
        if the pipeline file asks for that."""
        if self._pipeline.spark.standby == "warm":
            self._warming.keep(self.open)

    def own(self) -> SparkSession:
        """The session, for the pipeline's own queries."""
        spark = self.open()
        self._warming.end()
        return spark


def _plugins(pipeline: Pipeline) -> list[str]:
    feeds = {f"feeds/{backend.type}" for backend in pipeline.backends}
    return [*sorted(feeds), f"sinks/{pipeline.sink.type}"]
