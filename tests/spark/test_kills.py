"""Kills in the middle of queries, under each trigger: nothing is lost, and nothing comes twice by
the checkpoint. Executors of a standalone cluster, the driver, and the process that reads."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg
import pyarrow.parquet as pq
import pytest

from penstock.model.errors import Unavailable
from tests.cluster import Cluster
from tests.microbatch.sources import Table, Written, is_read
from tests.pipeline.running import SHORT_LIVED
from tests.servers import Database
from tests.slots import drop_slots
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

ROWS, MORE, EVENTS = 4_000, 500, 500
# On a busy machine, of a Python that Spark started: to be started again.
SLOW = "Python worker failed to connect back"
TRIGGERS = [
    pytest.param({}, marks=pytest.mark.thorough),
    pytest.param({"processingTime": "200 milliseconds"}, marks=pytest.mark.thorough),
    {"availableNow": True},
]

# A job of a user's into Parquet, whose list of files is exactly once by the checkpoint.
_JOB = """
import json, sys
from pyspark.sql import SparkSession
import penstock
given = json.loads(sys.argv[1])
builder = SparkSession.builder.master(given["master"])
for key, value in given["conf"].items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
penstock.register(spark)
frame = spark.readStream.format("penstock").options(**given["source"]).load()
writer = frame.select("document_id").writeStream.format("parquet").options(**given["sink"])
if given["trigger"]:
    writer = writer.trigger(**given["trigger"])
writer.start().awaitTermination()
"""


@pytest.fixture
def table(database: Database) -> Iterator[Table]:
    """With a backlog."""
    made = Table(database)
    database.execute("CREATE PUBLICATION runs FOR TABLE t")
    database.execute("SELECT pg_create_logical_replication_slot('runs', 'pgoutput')")
    made.write(ROWS)
    yield made
    until(lambda: not is_read(database) and dropped(database))


def dropped(database: Database) -> bool:
    """A killed reader's last connection may take the slot once more."""
    try:
        drop_slots(database)
    except psycopg.errors.ObjectInUse:
        return False
    return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        with Cluster() as found:
            found.scale(2)
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


class Job:
    """A driver of its own; `folder` is where its lake and its checkpoint are."""

    def __init__(
        self, folder: Path, table: Written, trigger: dict[str, Any], master: str = "local[2]"
    ) -> None:
        self._folder, self._table, self._trigger, self._master = folder, table, trigger, master
        self.rows, self.has_end = ROWS, "availableNow" in trigger

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()

    def start(self) -> None:
        conf = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
        if not self._master.startswith("local"):
            conf |= {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
        given = {
            "master": self._master, "conf": conf, "trigger": self._trigger,
            "source": {**self._table.options, "max_events": str(EVENTS)},
            "sink": {
                "path": str(self._folder / "lake"),
                "checkpointLocation": str(self._folder / "checkpoint"),
            },
        }  # fmt: skip
        self._folder.mkdir(exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._logged = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _JOB, json.dumps(given)], stdout=log, stderr=log,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable,
                     "JDK_JAVA_OPTIONS": SHORT_LIVED},
                start_new_session=True,
            )  # fmt: skip

    def wait_for(self, done: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if self._process.poll() is not None and SLOW in self._log:
                self.start()
            assert self._process.poll() is None or done(), self._log[-3000:]
            assert time.monotonic() < deadline, self._log[-3000:]
            time.sleep(0.01)

    def end(self) -> None:
        """Waits for the end of a query that has one."""
        while self._process.wait(300) != 0:
            assert SLOW in self._log, self._log[-3000:]
            self.start()

    @property
    def _log(self) -> str:
        """Since the last start."""
        return (self._folder / "log").read_text(errors="replace")[self._logged :]

    def reach(self, log: str, more: int = 2) -> None:
        """Until so many micro-batches more are in this log of the checkpoint: in `offsets` one that
        was planned and runs, in `commits` one that is done."""
        before = self._newest(log)
        self.wait_for(lambda: self._newest(log) >= before + more)

    def _newest(self, log: str) -> int:
        names = [each.name for each in self._folder.glob(f"checkpoint/{log}/[0-9]*")]
        return max(map(int, names), default=-1)

    def kill(self) -> None:
        """The driver, with all that it started here."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()

    def kill_the_reader(self) -> None:
        """The Python process that reads the source; the query fails, and the job with it."""
        mine = {each.pid for each in psutil.Process(self._process.pid).children(recursive=True)}
        (reader,) = [
            each
            for each in psutil.process_iter(["cmdline"])
            if each.pid in mine and "streaming_source_runner" in str(each.info["cmdline"])
        ]
        reader.kill()
        assert self._process.wait(120) != 0

    def write_more(self) -> None:
        """A query with an end reads that with its next start."""
        self._table.write(MORE)
        self.rows += MORE

    def finish(self) -> None:
        """A query without an end is killed when all rows are there."""
        if self.has_end:
            self.end()
        else:
            self.wait_for(lambda: len(self.ids) >= self.rows)
            self.kill()
        assert self.ids == list(range(1, self.rows + 1))

    @property
    def ids(self) -> list[int]:
        """What readers of the lake see: what its log of committed files names."""
        logs = self._folder.glob("lake/_spark_metadata/[0-9]*")
        lines = [line for log in logs for line in log.read_text().splitlines()[1:]]
        files = {json.loads(line)["path"].removeprefix("file://") for line in lines}
        read = [pq.ParquetFile(file).read().to_pylist() for file in files]
        return sorted(self._table.found([row for rows in read for row in rows]))


def goes_on_over_a_killed_reader(job: Job) -> None:
    """A job whose driver was killed, to the end of all changes."""
    job.start()
    job.reach("commits")
    job.kill_the_reader()
    assert 0 < len(job.ids) < ROWS
    job.write_more()
    job.start()
    job.finish()


@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
def test_a_killed_driver_and_a_killed_reader(
    table: Table, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    with Job(tmp_path, table, trigger) as job:
        job.reach("offsets")
        job.kill()
        goes_on_over_a_killed_reader(job)


@pytest.mark.thorough  # of PostgreSQL above
@pytest.mark.parametrize("trigger", [{}, {"availableNow": True}], ids=str)
def test_a_killed_driver_and_a_killed_reader_of_other_sources(
    other: Written, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    with Job(tmp_path, other, {"availableNow": True}) as first:
        first.end()  # its checkpoint has the place from which changes are read
    other.write(ROWS // 2)
    with Job(tmp_path, other, trigger) as job:
        job.reach("offsets")
        job.kill()
        other.split()
        other.write(ROWS // 2)
        goes_on_over_a_killed_reader(job)


@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
def test_killed_executors(
    cluster: Cluster, table: Table, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    with Job(tmp_path, table, trigger, cluster.url) as job:
        for _ in range(2):
            job.reach("offsets")
            cluster.executors()[0].kill()
        assert len(job.ids) < ROWS
        if not job.has_end:
            job.write_more()
        job.finish()
