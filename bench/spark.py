"""Spark jobs of a user's beside `penstock run` with a transform, on the same backlog and machine.

`Figure` is a line of the table; what measures typed rows or batches adds its own to `figures`. The
jobs run in a process of their own, as `python -m bench.spark JSON`, with Spark's defaults but for
what docs/reference/spark.md names.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.servers import Database, Nats, Postgres

from . import table
from .pipeline import STREAM, run_pipeline
from .stream import messages_in, stored, wait_for
from .usage import OURS, Usage

_TRANSFORM = {"transform": [{"sql": "SELECT * FROM changes"}]}
# Of a user's job.
SESSION = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.session.timeZone": "UTC",
}
JOB, SERVICE = "bench_job", "bench_service"  # slots
_SINKS = ("parquet", "noop", "parquet_chosen", "noop_chosen")
# What a job needs of a change to keep a table of its rows.
COLUMNS = "event_id,operation,collection,key,after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one way gave: `value` in `unit`; `wanted` is the least or the most, in words."""

    name: str
    value: float
    unit: str
    wanted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """`seconds` from the begin of the first micro-batch with changes (of a service: from the first
    message stored) to the end of the last; `ends_after`: from there to the end of the query. CPU in
    microseconds a change, by role."""

    rows: int
    seconds: float
    ends_after: float = 0.0
    batches: int = 0
    cpu: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Changes a second."""
        return self.rows / self.seconds

    @property
    def own_cpu(self) -> float:
        """Of our processes together."""
        return sum(self.cpu.get(role, 0.0) for role in OURS)


def figures(folder: Path, *, rows: int, version: int) -> Iterator[Figure]:
    """AvailableNow into Parquet and into nothing (`noop`), with all columns of a change and with
    some, beside `penstock run` with a transform. Raises RuntimeError when a change is missing or
    there twice."""
    with Postgres(version=version) as postgres, Nats() as nats, postgres.database() as database:
        table.create(database)
        ways: dict[str, Callable[[], Drained]] = {
            "penstock run, a transform": lambda: _service(folder, postgres, database, nats, rows),
            "AvailableNow, Parquet": lambda: _job(folder, postgres, database, nats, "parquet"),
            "AvailableNow, noop": lambda: _job(folder, postgres, database, nats, "noop"),
            "AvailableNow, chosen columns, Parquet": lambda: _job(
                folder, postgres, database, nats, "parquet", columns=COLUMNS
            ),
            "AvailableNow, chosen columns, noop": lambda: _job(
                folder, postgres, database, nats, "noop", columns=COLUMNS
            ),
        }
        for slot in (SERVICE, *(f"{JOB}_{sink}" for sink in _SINKS)):
            database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        table.write_backlog(database, rows=rows)
        database.execute("CHECKPOINT")
        found: dict[str, Drained] = {}
        for name, way in ways.items():
            found[name] = one = way()
            if one.rows != rows:
                raise RuntimeError(f"{name}: {rows} rows were written, {one.rows} changes came")
            yield Figure(name=name, value=one.rate, unit="changes/s")
            yield Figure(name=f"{name}: CPU of ours", value=one.own_cpu, unit="us a change")
            for role, used in sorted(one.cpu.items()):
                yield Figure(name=f"{name}: CPU of {role}", value=used, unit="us a change")
        service, *jobs = found.items()
        for name, one in jobs:
            ratio = one.rate / service[1].rate
            yield Figure(name=f"{name} / service", value=ratio, unit="", wanted=">= 0.9")
            yield Figure(name=f"{name}: batches", value=one.batches, unit="")
            yield Figure(
                name=f"{name}: ends after its last change", value=one.ends_after, unit="s",
                wanted="<= 5",
            )  # fmt: skip


def show_figures(console: Console, found: list[Figure], title: str = "Spark jobs") -> None:
    """One line each."""
    shown = Table(title=title, title_justify="left")
    for name in ("figure", "value", "unit", "wanted"):
        shown.add_column(name, justify="right" if name == "value" else "left")
    for one in found:
        shown.add_row(one.name, f"{one.value:,.2f}", one.unit, one.wanted)
    console.print(shown)


def job(given: Mapping[str, Any]) -> None:
    """In a process of its own: prints one line of JSON. `given`: `source` and `sink` options, the
    sink's `format`, and settings of the session (`conf`)."""
    from pyspark.sql import SparkSession

    import penstock
    from penstock.spark.session.plan import java_options

    builder = SparkSession.builder.master("local[2]")
    java = {"spark.driver.extraJavaOptions": java_options("rows")}
    for key, value in {**SESSION, **java, **given["conf"]}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    penstock.register(spark)
    frame = spark.readStream.format("penstock").options(**given["source"]).load()
    writer = frame.writeStream.format(given["format"]).options(**given["sink"])
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    ended = time.time()
    full = [each for each in query.recentProgress if each.numInputRows]
    seconds = [each.durationMs["triggerExecution"] / 1e3 for each in full]
    begun = [datetime.fromisoformat(each.timestamp).timestamp() for each in full]
    last = begun[-1] + seconds[-1]
    print(json.dumps({
        "rows": sum(each.numInputRows for each in full), "seconds": last - begun[0],
        "ends_after": ended - last, "batches": len(full),
    }))  # fmt: skip
    for each in full[-2:]:
        print(each.durationMs, file=sys.stderr)


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def _job(
    folder: Path,
    postgres: Postgres,
    database: Database,
    nats: Nats,
    sink: str,
    columns: str = "",
    **conf: str,
) -> Drained:
    name = f"{sink}_chosen" if columns else sink
    backend = table.backend(database, f"{JOB}_{name}")
    source = {("backend" if key == "type" else key): value for key, value in backend.items()}
    source |= {"columns": columns} if columns else {}
    options = {"checkpointLocation": str(folder / f"checkpoint-{name}")}
    if sink == "parquet":
        options["path"] = str(folder / name)
    conf = {"spark.sql.streaming.numRecentProgressUpdates": "100000", **conf}
    given = {"source": source, "sink": options, "format": sink, "conf": conf}
    command = [sys.executable, "-m", "bench.spark", json.dumps(given)]
    with (folder / f"{sink}.log").open("wb") as log:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        usage = Usage(service=process.pid, source=postgres.pid, nats=nats.pid)
        usage.start()
        usage.mark()
        answer, _ = process.communicate()
        spent = usage.stop()
    if process.returncode:
        raise RuntimeError(f"the job ended:\n{(folder / f'{sink}.log').read_text()[-3000:]}")
    found = json.loads(answer.splitlines()[-1])
    cpu = {role: used.total * 1e6 / found["rows"] for role, used in spent.items()}
    return Drained(**found, cpu=cpu)


def _service(
    folder: Path, postgres: Postgres, database: Database, nats: Nats, rows: int
) -> Drained:
    with run_pipeline(folder, table.backend(database, SERVICE), nats, extra=_TRANSFORM) as running:
        usage = Usage(service=running.pid, source=postgres.pid, nats=nats.pid)
        usage.start()
        usage.mark()
        wait_for(
            lambda: messages_in(nats.url, STREAM) >= rows or running.published() >= rows,
            timeout=1200, alive=running.check, every=0.5,
        )  # fmt: skip
        spent = usage.stop()
        count, first, last = stored(nats.url, STREAM)
    cpu = {role: used.total * 1e6 / rows for role, used in spent.items()}
    return Drained(rows=count, seconds=last - first, cpu=cpu)


if __name__ == "__main__":
    job(json.loads(sys.argv[1]))
