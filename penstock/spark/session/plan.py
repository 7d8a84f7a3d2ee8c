"""What a Spark session is started with: the settings that were measured to matter.

A user who brings a session sets what docs/explanation/performance.md names; nothing here is needed
for correctness. `spark.conf` of the pipeline file overrides every line. Nothing here imports
PySpark: the JVM starts before that is done.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from penstock.spark.session.launch import is_local, with_slots

if TYPE_CHECKING:  # What reads a pipeline file takes longer to import than Java needs to begin.
    from penstock.config import Pipeline
    from penstock.microbatch.options import Mode

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

# A ticket is one row: interpreted. Spark would generate and compile code for it in every trigger,
# which looks for classes in all of its jars (half of the planning thread's time, by JFR).
_TICKETS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

# What little garbage there is needs no threads, and no heap that is a sixty-fourth of the machine's
# memory: 52 MB for what Spark keeps once it runs (with less, a start has a full collection), 20 for
# the rest. Counters for `jstat` would be sampled 20 times a second.
_JAVA = "-XX:+UseSerialGC -Xms72m -XX:NewSize=20m -XX:-UsePerfData"

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

# Bytes of the path of a folder for sockets: a socket's own may have 103 (on macOS; Linux has more),
# and its name, which is `/.`, a UUID and `.sock`, has 43 of them.
_SOCKETS = 103 - 43

# A micro-batch that stays open for an hour needs some workers for its start, and one for the rest.
# A fork ends with its work; Spark's daemons would keep eleven idle ones for the next batch, each
# with 70 MB, most of which it shares with the others.
_NO_DAEMON = {"spark.python.use.daemon": "false"}


# Backends that find task slots where they are added while a local session runs. With more of them,
# micro-batches are short and take turns.
_ROOM = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """A session; `folder` takes Spark's scratch files. A local one runs at least `slots` tasks at a
    time, and all its queries are of this `mode`. Its workers are forks of a `fork_server` that has
    imported `plugins` (`feeds/NAME`, `sinks/NAME`); with False, or with a Python of the user's,
    Spark starts Python itself. `class_archive`: its file; or whether there is one in the cache."""

    name: str
    master: str
    folder: Path
    mode: "Mode"
    slots: int
    conf: Mapping[str, str] = field(default_factory=dict)
    plugins: Sequence[str] = ()
    fork_server: bool = True
    class_archive: bool | Path = False

    @property
    def is_local(self) -> bool:
        return is_local(self.master)

    def settings(self, *, forks: bool, java: str = "") -> dict[str, str]:
        """Spark's. `forks`: workers are; `java`: more options of the JVM."""
        found = {
            **SETTINGS,
            **(_TICKETS if self.mode != "rows" else {}),
            **(_local(self.folder) if self.is_local else {}),
            **(_NO_DAEMON if forks and self.mode == "realtime" else {}),
            "spark.local.dir": str(self.folder / "spark"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.driver.extraJavaOptions": java_options(self.mode),
            "spark.app.name": f"penstock-{self.name}",
            "spark.master": with_slots(self.master, self.slots),
            **self.conf,
        }
        found["spark.driver.extraJavaOptions"] += f" {java}" if java else ""
        return found


# What a pipeline file leaves out has.
_NAME, _POSITIONS = "penstock", "sqlite:"
# Keys of a pipeline file that may make its plan another one than `guessed` makes.
_DECISIVE = {"spark", "transform", "share"}
_VARIABLE = "${"


def guessed(text: str, run: Path) -> SessionPlan | None:
    """The plan of the session of a pipeline file with this text, which is not validated: so it may
    be wrong, and `plan_of` decides. None where the file has more than the usual keys."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    if not isinstance(data, dict) or data.keys() & _DECISIVE:
        return None
    backends, sink = data.get("backends"), data.get("sink")
    if not isinstance(backends, list) or not isinstance(sink, dict):
        return None
    types: list[Any] = [each.get("type") for each in (*backends, sink) if isinstance(each, dict)]
    name, positions = data.get("name", _NAME), data.get("positions", _POSITIONS)
    texts = [name, positions, *types]
    if len(types) <= len(backends) or not all(isinstance(each, str) for each in texts):
        return None
    if any(_VARIABLE in each for each in texts) or isinstance(sink.get("map"), str):
        return None
    *feeds, target = types
    return SessionPlan(
        name=name, master="local[*]", folder=run, mode="realtime", slots=len(feeds),
        plugins=_named_plugins(feeds, target, positions), class_archive=True,
    )  # fmt: skip


def plan_of(pipeline: "Pipeline", run: Path) -> SessionPlan:
    """The session of the service; `run` takes scratch files."""
    settings = pipeline.spark
    return SessionPlan(
        name=pipeline.name,
        master=settings.master,
        folder=run,
        mode=mode(pipeline),
        slots=room(pipeline),  # an open micro-batch keeps its task slot
        conf=settings.conf,
        plugins=_plugins(pipeline),
        fork_server=settings.fork_server,
        class_archive=settings.class_archive,
    )


def mode(pipeline: "Pipeline") -> "Mode":
    """`realtime`: tickets in open micro-batches; `rows` for a transform, or a timed trigger."""
    return "realtime" if pipeline.is_open else "rows"


def room(pipeline: "Pipeline") -> int:
    """For how many queries there are task slots."""
    found = len(pipeline.backends)
    # A local session's are counted once, when it starts.
    may_grow = pipeline.has_live_map and is_local(pipeline.spark.master)
    return max(found, _ROOM) if may_grow else found


def _plugins(pipeline: "Pipeline") -> list[str]:
    feeds = [backend.type for backend in pipeline.backends]
    if pipeline.has_live_map:
        feeds.append("postgres")  # what the map may get
    return _named_plugins(feeds, pipeline.sink.type, pipeline.positions)


def _named_plugins(feeds: Sequence[str], sink: str, positions: str) -> list[str]:
    store, _, _ = positions.partition(":")
    return [*(f"feeds/{each}" for each in sorted({*feeds})), f"sinks/{sink}", f"stores/{store}"]


def _local(folder: Path) -> Mapping[str, str]:
    """Loopback (a cluster's driver must be reachable from its executors), and the sockets between
    the JVM and Python in the run folder, if its path is short enough: a killed run's go with it."""
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    sockets = folder / "sockets"
    if len(os.fsencode(sockets)) > _SOCKETS:
        return loopback
    sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {**loopback, "spark.python.unix.domain.socket.dir": str(sockets)}


def java_options(mode: "Mode") -> str:
    """What the JVM of a session of this mode is started with, unless `spark.conf` overrides it."""
    log4j = files("penstock.spark") / "log4j2.properties"
    compiler = _ROWS_JAVA if mode == "rows" else _TICKETS_JAVA
    return f"-Dlog4j2.configurationFile=file:{log4j} {_JAVA} {compiler}"
