"""The Spark session of the service, with the settings that were measured to matter.

A user who brings a session sets what docs/explanation/performance.md names; nothing here is needed
for correctness. `spark.conf` of the pipeline file overrides every line.
"""

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.microbatch.options import Mode
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.spark.datasource import register
from penstock.spark.session.forks import Forks
from penstock.spark.session.launch import is_local, make_home, with_slots

log = structlog.get_logger("penstock")

_STREAMING = "org.apache.spark.sql.execution.streaming"

SETTINGS: Mapping[str, str] = {
    # The default forks shell commands to set file permissions: 50 ms a trigger.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Loopback TCP between the JVM and Python idles 40 ms a job (delayed acknowledgements).
    "spark.python.unix.domain.socket.enabled": "true",
    # Pages of hundreds of KiB pass between the JVM and Python: fewer, larger reads.
    "spark.buffer.size": "1048576",
    "spark.sql.execution.pandas.udf.buffer.size": "1048576",
    # Rows to the sink's worker. To see whether a batch has reached so many bytes, Spark adds up all
    # columns for each row, a fifth of its work; `spark.max_bytes` bounds a micro-batch anyway. The
    # worker begins to publish with the first of these batches.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.driver.memory": "640m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A task that lost its Python worker is tried again by the query's restart, from the position.
    "spark.task.maxFailures": "1",
}

# The name of our own SPARK_HOME in the run folder.
_LEAN = "spark-home"

# A ticket is one row: interpreted. Spark would generate and compile code for it in every trigger,
# which looks for classes in all of its jars (half of the planning thread's time, by JFR).
_TICKETS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

# What little garbage there is needs no threads, and no heap that is a sixty-fourth of the machine's
# memory.
_JAVA = "-XX:+UseSerialGC -Xms64m"

# Tickets leave the JVM little to do but plan: optimizing that code for minutes costs a fifth
# of a core (measured) and never pays.
_TICKETS_JAVA = "-XX:TieredStopAtLevel=1"

# Rows go through compiled queries, where it does: but only what is called for every row, not what
# is called for every trigger. Compiled by Java's own thresholds, that costs as much as all the rest
# of the JVM does in the first half minute.
_ROWS_JAVA = (
    "-XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=50000"
    " -XX:Tier4CompileThreshold=400000 -XX:Tier4BackEdgeThreshold=1000000"
)

# What `SparkSession` says after `SparkContext` has given up on the master.
_STOPPED = "stopped SparkContext"
_NO_JVM = "JAVA_GATEWAY_EXITED"

# What py4j logs, with a traceback, when the JVM is gone.
_PY4J_FAILED = "Exception while sending command."

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
# Appended when it is complete. A JVM that maps a file that was cut short is killed (observed).
_END = b"complete"
# Seconds. A JVM writes an archive in some 13 s.
_PATIENCE = 300.0


class ClassArchive:
    """The classes that Spark loads, in the file at `path`: half of a cold start. (Java's class-data
    sharing.) A session that finds no file there makes it at its exit. Java starts without one that
    is damaged, or that another Java or other jars made."""

    def __init__(self, path: Path) -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.draft = None if path.exists() else path.with_name(f".{path.name}.{os.getpid()}")
        self._path = path

    def options(self) -> str:
        if self.draft:
            return f"{shlex.quote(f'-XX:ArchiveClassesAtExit={self.draft}')} {_QUIET}"
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(-len(_END), os.SEEK_END)
            if file.read() == _END:
                used = shlex.quote(f"-XX:SharedArchiveFile={self._path}")
                return f"{used} -Xshare:auto -XX:+VerifySharedSpaces {_QUIET}"
        log.warning("the class archive is not complete: remove the file", file=str(self._path))
        return ""

    def keep(self, jvm: "subprocess.Popen[bytes]") -> None:
        """Waits for the end of the JVM that makes the archive, and gives the file its name."""
        if self.draft is None:
            return
        try:
            if code := jvm.wait(_PATIENCE):
                raise OSError(f"Java ended with {code}")
            self.draft.chmod(0o644)
            with self.draft.open("ab") as file:
                file.write(_END)
            self.draft.replace(self._path)
        except (OSError, subprocess.TimeoutExpired) as error:
            with suppress(OSError):
                self.draft.unlink()
            log.warning("the class archive was not made", file=str(self._path), error=str(error))


# There is one session in a process, with one fork server and one class archive.
_forks: Forks | None = None
_archive: ClassArchive | None = None

# Bytes of the path of a folder for sockets: a socket's own may have 103 (on macOS; Linux has more),
# and its name, which is `/.`, a UUID and `.sock`, has 43 of them.
_SOCKETS = 103 - 43

# A micro-batch that stays open for an hour needs some workers for its start, and one for the rest.
# A fork ends with its work; Spark's daemons would keep eleven idle ones for the next batch, each
# with 70 MB, most of which it shares with the others.
_NO_DAEMON = {"spark.python.use.daemon": "false"}


def open_session(
    name: str,
    *,
    master: str,
    folder: Path,
    mode: Mode,
    slots: int,
    conf: Mapping[str, str],
    plugins: Sequence[str] = (),
    fork_server: bool = True,
    class_archive: Path | None = None,
) -> SparkSession:
    """A new session (and JVM); `folder` takes Spark's scratch files. A local one runs at least
    `slots` tasks at a time, and all its queries are of this `mode`. Needs Java 17 or newer. A local
    one's workers are forks of a `fork_server` that has imported `plugins` (`feeds/NAME`,
    `sinks/NAME`); with False, or with a Python of the user's, Spark starts Python itself.
    Raises Unavailable without a connection to the master, SettingsError for what else keeps Spark
    from starting."""
    global _forks, _archive
    # Workers run in this environment, not in whatever `python3` is on the PATH.
    places = {"PYSPARK_PYTHON": sys.executable}
    local = is_local(master)
    users = "PYSPARK_PYTHON" in os.environ or "spark.pyspark.python" in conf
    if local and fork_server and not users:
        with suppress(OSError):
            _forks = Forks(folder, plugins)
            places["PYSPARK_PYTHON"] = str(_forks.python)
    settings = {
        **SETTINGS,
        **(_TICKETS if mode != "rows" else {}),
        **(_local(folder) if local else {}),
        **(_NO_DAEMON if _forks is not None and mode == "realtime" else {}),
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": java_options(mode),
        **conf,
    }
    _archive = ClassArchive(class_archive) if class_archive else None
    if _archive is not None:
        settings["spark.driver.extraJavaOptions"] += f" {_archive.options()}"
    if local and "SPARK_HOME" not in os.environ:
        places["SPARK_HOME"] = str(make_home(folder / _LEAN, settings))
    builder = SparkSession.builder.appName(f"penstock-{name}")
    builder = builder.master(with_slots(master, slots))
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _environment(places):
            spark = builder.getOrCreate()
    except (Py4JError, PySparkException, OSError) as error:
        refusal = _not_started(error, master)  # asks the JVM for the error's text
        if _archive is not None:
            kill_jvm()  # makes no archive of half a start
        _close_jvm()
        raise refusal from None
    # PySpark's auto-discovery lists folders, and does not see an editable installation.
    register(spark)
    return spark


def make_active(spark: SparkSession) -> None:
    """For this thread, when another one opened the session: Spark looks up Python's data sources
    in the thread's active session, and not in the default one."""
    java: Any = spark._jvm
    SparkSession._get_j_spark_session_class(java).setActiveSession(spark._jsparkSession)


def _local(folder: Path) -> Mapping[str, str]:
    """Loopback (a cluster's driver must be reachable from its executors), and the sockets between
    the JVM and Python in the run folder, if its path is short enough: a killed run's go with it."""
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    sockets = folder / "sockets"
    if len(os.fsencode(sockets)) > _SOCKETS:
        return loopback
    sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {**loopback, "spark.python.unix.domain.socket.dir": str(sockets)}


def java_options(mode: Mode) -> str:
    """What the JVM of a session of this mode is started with, unless `spark.conf` overrides it."""
    log4j = files("penstock.spark") / "log4j2.properties"
    compiler = _ROWS_JAVA if mode == "rows" else _TICKETS_JAVA
    return f"-Dlog4j2.configurationFile=file:{log4j} {_JAVA} {compiler}"


@contextmanager
def _environment(places: Mapping[str, str]) -> Iterator[None]:
    """Sets what is not set, while the JVM starts: nothing else that this process starts gets it."""
    fresh = {key: value for key, value in places.items() if key not in os.environ}
    os.environ.update(fresh)
    try:
        yield
    finally:
        for key in fresh:
            del os.environ[key]


def close_session(spark: SparkSession) -> None:
    """Stops Spark and its JVM; a JVM that is already gone is no error."""
    with suppress(Py4JError, OSError):
        spark.stop()
    gateway = SparkContext._gateway
    _close_jvm()
    if gateway is not None and _archive is not None:
        _archive.keep(gateway.proc)


def kill_jvm() -> None:
    """Ends a JVM whose session another thread is opening: that fails. Does nothing while the JVM's
    process is not known yet. py4j's traceback about that is not logged."""
    if (gateway := SparkContext._gateway) is not None:
        logging.getLogger().addFilter(lambda record: record.msg != _PY4J_FAILED)
        gateway.proc.kill()


def _close_jvm() -> None:
    global _forks
    if (gateway := SparkContext._gateway) is not None:
        with suppress(Py4JError, OSError):
            gateway.shutdown()
        # The JVM ends when its standard input does; a later session starts a new one.
        gateway.proc.stdin.close()
        SparkContext._gateway = SparkContext._jvm = None
    if _forks is not None:
        _forks.close()
        _forks = None


def _not_started(error: Exception, master: str) -> PenstockError:
    """What PySpark or py4j raised while a session was opened, as an error of ours: `Unavailable` if
    a master that answers later would help. Spark's own answer is a trace of Java's."""
    text = str(error)
    if _STOPPED in text and not is_local(master):
        return Unavailable(
            f"the Spark master {master} cannot be reached, or refused the application",
            "spark.master-unreachable",
            hint="start it, or correct `spark.master` in the pipeline file;"
            " Spark's warnings in the log name every attempt",
        )
    if _NO_JVM in text:
        return SettingsError(
            f"Spark's JVM ended at its start, with the master {master}",
            "spark.not-started",
            hint="the log before this line says why: often `spark.master` is misspelled"
            " (local[*], spark://HOST:PORT, yarn, k8s://URL), or `spark.conf` asks for too much",
        )
    return SettingsError(
        f"Spark did not start with the master {master}: {_reason(text)}",
        "spark.not-started",
        hint="correct `spark.master` or `spark.conf` in the pipeline file",
    )


def _reason(text: str) -> str:
    """The line with Java's exception, without its class."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return found.rpartition("Exception: ")[2][:300]
