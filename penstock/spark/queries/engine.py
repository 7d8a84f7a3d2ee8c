"""The Spark session of the service: opened when it is first needed, kept warm, closed once."""

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.config import Pipeline
from penstock.config.parts import PipelinePart
from penstock.microbatch.run_folder import write_task_slots
from penstock.model.change import COLUMNS, OPTIONAL
from penstock.model.errors import SettingsError, Unavailable
from penstock.native import describe
from penstock.ops.board import Board
from penstock.ops.telemetry import wanted
from penstock.process.connections import Server
from penstock.spark.queries.columns import no_changes, other_step
from penstock.spark.queries.query import listening, start_query, task_slots, transformed
from penstock.spark.queries.supervised import EngineLost, Supervised, talking_to_java
from penstock.spark.queries.warming import Warming
from penstock.spark.session.jvm import Jvm
from penstock.spark.session.launch import is_local
from penstock.spark.session.plan import plan_of, room
from penstock.spark.session.session import close_session, kill_jvm, make_active, open_session

log = structlog.get_logger("penstock")


# Seconds between two looks at whether the service stops, while Spark starts: a master that cannot
# be reached takes a minute.
POLL = 0.2


class Engine(PipelinePart):
    """Holds the session and its JVM, which may have been `started` before; `run` takes scratch
    files. `is_stopping` ends a start."""

    def __init__(
        self,
        pipeline: Pipeline,
        run: Path,
        is_stopping: Callable[[], bool] = lambda: False,
        started: Jvm | None = None,
    ) -> None:
        self._pipeline, self._run, self._is_stopping = pipeline, run, is_stopping
        self._started = started
        self._spark: SparkSession | None = None
        self._warming = Warming(pipeline, run)
        self._reports = {"reports.spans": "true"} if "traces" in wanted() else {}
        self._slots = -1
        # By backend. One that was changed has another query afterwards.
        self.queries: dict[str, Supervised] = {}
        self._numbers: dict[str, int] = {}
        # Of queries that were ended: files of the run folder are named by them.
        self._restarts: dict[str, int] = {}
        for backend in pipeline.backends:
            self._add(backend.name)

    def close(self) -> None:
        self._drop()
        spark, self._spark = self._spark, None
        if spark is not None:
            close_session(spark)

    @property
    def is_open(self) -> bool:
        return self._spark is not None

    def open(self) -> SparkSession:
        """The session; takes seconds the first time. Raises what `open_session` does, and
        EngineLost when the service is stopped meanwhile."""
        if self._spark is None:
            plan = plan_of(self._pipeline, self._run)
            if self._started is not None and self._started.plan != plan:
                self._drop()  # another instance ran the pipeline, and its map was edited
            started, self._started = self._started, None
            # In the main thread, a SparkContext would replace the service's SIGINT handler.
            with ThreadPoolExecutor(1, "spark") as aside:
                opening = aside.submit(open_session, plan, started)
                spark = self._opened(opening)
            make_active(spark)
            self._spark = spark
            log.info(
                "spark is ready",
                version=self._spark.version,
                master=plan.master,
                native=describe(),
            )
        return self._spark

    def _drop(self) -> None:
        started, self._started = self._started, None
        if started is not None:
            started.drop()

    def _opened(self, opening: "Future[SparkSession]") -> SparkSession:
        while not wait([opening], POLL).done:
            if self._is_stopping():
                kill_jvm()  # nothing runs in it yet
        if self._is_stopping() and opening.exception() is not None:
            raise EngineLost("the service was stopped while Spark started", "spark")
        return opening.result()

    def statements(self) -> "SparkStatements":
        with talking_to_java():
            return SparkStatements(self.open(), self._pipeline)

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        self._pipeline, self._slots = pipeline, -1
        for name in changed:
            if (query := self.queries.pop(name, None)) is not None:
                self._restarts[name] = query.restarts + 1
                del self._numbers[name]
        for backend in pipeline.backends:
            if backend.name not in self.queries:
                self._add(backend.name)

    def _add(self, name: str) -> None:
        used = self._numbers.values()
        number = self._numbers[name] = next(each for each in count() if each not in used)

        def start(attempt: int) -> StreamingQuery:
            pipeline = self._pipeline
            (backend,) = (each for each in pipeline.backends if each.name == name)
            return start_query(
                self.open(),
                pipeline,
                backend,
                run=self._run,
                attempt=attempt,
                number=number,
                reports=self._reports,
            )

        self.queries[name] = Supervised(name, start, self._restarts.get(name, 0))

    @contextmanager
    def reporting(self, board: Board) -> Iterator[None]:
        """On a cluster: tasks report to `board` over TCP. Raises what `Server.open` does."""
        if (where := listening(self.open(), self._pipeline.spark)) is None:
            yield
            return
        server = Server(f"tcp:{where.host}", board.serve, bind=where.bind, port=where.port)
        server.open()
        self._reports |= {"reports.address": server.address, "reports.token": server.key.hex()}
        try:
            yield
        finally:
            server.close()

    def tick(self, now: float) -> None:
        """Writes into the run folder how many tasks of each query may run now: readers plan by it,
        and executors come and go. Raises EngineLost when the cluster has ended the application."""
        with talking_to_java():
            context = self.open().sparkContext
            if self._slots > 0 and is_local(str(context.master)):
                context._jsc.isLocal()  # its task slots stay; but the JVM may be gone
                return
            slots = task_slots(self.open())
        if slots < 0:
            raise EngineLost("Spark was stopped: the cluster has ended the application", "spark")
        if slots != self._slots:
            self._slots = slots
            write_task_slots(self._run, slots // max(1, room(self._pipeline)))
            log.info("task slots", slots=slots, backends=len(self._pipeline.backends))

    def wait(self) -> None:
        """On standby, a few times a second: keeps Spark warm with `spark.standby: warm`, else ends
        a JVM that was started."""
        if self._pipeline.spark.standby == "warm":
            self._warming.keep(self.open())
        else:
            self._drop()

    def own(self) -> SparkSession:
        """The session, for the pipeline's own queries."""
        spark = self.open()
        self._warming.end()
        return spark


class SparkStatements:
    """The implementation of `snapshots.statements.RowTransform`. It has a session of its own: the
    view `changes` of the other is that of the queries."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark, self._pipeline = spark.newSession(), pipeline
        self._lock = threading.Lock()  # over the view
        texts = "\0".join(step.sql for step in pipeline.transform)
        self.identity = hashlib.sha256(texts.encode()).hexdigest()[:16]
        # Columns that a change needs, and that none of the statements' rows has.
        self.lacks: Sequence[str] = ()
        self.refusal = self._refused()

    def _refused(self) -> str:
        try:
            made = transformed(self._spark, self._pipeline, no_changes(self._spark))
        except SettingsError as error:
            return f"is refused ({error.message})"
        missing = [name for name in COLUMNS if made.columns.count(name) != 1]
        self.lacks = [name for name in missing if name not in OPTIONAL]
        if self.lacks:
            return f"lacks the columns {', '.join(self.lacks)}"
        if other := other_step(made):
            return f"does more than choose rows and compute columns of each ({other})"
        return ""

    def made(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        """See `RowTransform`."""
        try:
            with self._lock:
                rows = self._spark.createDataFrame(pa.Table.from_batches([batch]))
                made = transformed(self._spark, self._pipeline, rows).select(*columns)
            return made.toArrow()
        except PySparkException as error:  # whose message may have values
            if condition := error.getCondition():
                raise SettingsError(
                    f"transform fails on rows of a snapshot: {condition}",
                    "spark",
                    hint="correct its statements; the changes of such rows fail, too",
                ) from None
            raise Unavailable(
                "Spark failed to run transform on rows of a snapshot", "spark"
            ) from None
        except Py4JError:
            raise Unavailable(
                "Spark does not run transform on rows of a snapshot", "spark"
            ) from None
