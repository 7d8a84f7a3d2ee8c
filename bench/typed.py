"""Typed rows of a user's Spark job beside JSON images, and `spark.read` of a table beside COPY.

Each way runs twice in a session of its own (`python -m bench.typed JSON`), and the second run
counts: what a JVM and Python's imports cost is not in it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.servers import Database, Postgres

from . import table
from .spark import SESSION, Figure

_TABLE = "public.bench"
_FROM_JSON = (
    "from_json(after, 'id BIGINT, name STRING, note STRING, quantity INT, active BOOLEAN,"
    " price DECIMAL(12,4), ratio DOUBLE, changed TIMESTAMP, detail STRING, tags ARRAY<STRING>')"
    " AS made"
)
# What a job takes of each change, and of that.
_WAYS: Mapping[str, tuple[dict[str, str], list[list[str]]]] = {
    "JSON images": ({}, [["operation", "cursor", "after"]]),
    "JSON images, from_json": (
        {}, [["operation", "cursor", _FROM_JSON], ["operation", "cursor", "made.*"]],
    ),
    "typed rows": ({"table": _TABLE}, [["*"]]),
}  # fmt: skip


def typed_figures(folder: Path, *, rows: int, version: int) -> Iterator[Figure]:
    """CPU of the job's JVM and Python for a change, into nothing (`noop`); and the rate of a batch.
    Raises RuntimeError when a row is missing or there twice."""
    with Postgres(version=version) as postgres, postgres.database() as database:
        table.create(database)
        slots = [f"typed_{number}_{turn}" for number in range(len(_WAYS)) for turn in (0, 1)]
        for slot in slots:
            database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        table.write_backlog(database, rows=rows)
        database.execute("CHECKPOINT; ANALYZE")
        found = {}
        for number, (name, (options, columns)) in enumerate(_WAYS.items()):
            runs = [
                {"source": {**_source(database, f"typed_{number}_{turn}"), **options},
                 "checkpoint": str(folder / f"typed-{number}-{turn}")}
                for turn in (0, 1)
            ]  # fmt: skip
            found[name] = one = _run({"runs": runs, "columns": columns}, folder, rows)
            for role in ("jvm", "python"):
                yield Figure(name=f"{name}: CPU of {role}", value=one[role], unit="us a change")
        total = {name: one["jvm"] + one["python"] for name, one in found.items()}
        for other in ("JSON images, from_json", "JSON images"):
            ratio = total["typed rows"] / total[other]
            yield Figure(name=f"typed rows / {other}", value=ratio, unit="", wanted="<= 0.7")
        batch = {"source": {**_source(database, "none"), "table": _TABLE}}
        one = _run({"runs": [batch, batch], "columns": [["*"]]}, folder, rows)
        copied = rows / min(_copy(database) for _ in range(3))
        yield Figure(name="spark.read, two tasks", value=rows / one["seconds"], unit="rows/s")
        yield Figure(name="COPY TO STDOUT", value=copied, unit="rows/s")
        yield Figure(
            name="spark.read / COPY", value=rows / one["seconds"] / copied, unit="", wanted=">= 0.8"
        )
        for role in ("jvm", "python"):
            yield Figure(name=f"spark.read: CPU of {role}", value=one[role], unit="us a row")


def _source(database: Database, slot: str) -> dict[str, str]:
    backend = table.backend(database, slot)
    return {("backend" if key == "type" else key): str(value) for key, value in backend.items()}


def _copy(database: Database) -> float:
    """Seconds of one COPY, read by a plain client."""
    began = time.monotonic()
    with (
        psycopg.connect(database.url) as connection,
        connection.cursor().copy(f"COPY {_TABLE} TO STDOUT") as copy,
    ):
        for _ in copy:
            pass
    return time.monotonic() - began


def _run(given: Mapping[str, Any], folder: Path, rows: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.typed", json.dumps(given)]
    with (folder / "typed.log").open("ab") as log:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=log, env=environment, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the job ended:\n{(folder / 'typed.log').read_text()[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found["rows"] != rows:
        raise RuntimeError(f"{rows} rows were written, {found['rows']} came")
    return {**found, "jvm": found["jvm"] * 1e6 / rows, "python": found["python"] * 1e6 / rows}


def _cpu() -> dict[str, float]:
    """Seconds of the JVM, and of all Python processes below it, also of those that have ended."""
    spent = {"jvm": 0.0, "python": 0.0}
    for each in psutil.Process().children(recursive=True):
        times = each.cpu_times()
        is_java = each.name() == "java"
        spent["jvm" if is_java else "python"] += times.user + times.system
        spent["python"] += times.children_user + times.children_system
    return spent


def job(given: Mapping[str, Any]) -> None:
    """In a process of its own: prints one line of JSON, of the last of its runs."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import count
    from pyspark.sql.observation import Observation

    import penstock

    builder = SparkSession.builder.master("local[2]")
    for key, value in SESSION.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    penstock.register(spark)
    rows, seconds, spent = 0, 0.0, {"jvm": 0.0, "python": 0.0}
    for run in given["runs"]:
        before, began = _cpu(), time.monotonic()
        if "checkpoint" in run:
            frame = spark.readStream.format("penstock").options(**run["source"]).load()
            for columns in given["columns"]:
                frame = frame.selectExpr(*columns)
            writer = frame.writeStream.format("noop")
            writer = writer.option("checkpointLocation", run["checkpoint"])
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            rows = sum(each.numInputRows for each in query.recentProgress)
        else:
            seen = Observation()
            frame = spark.read.format("penstock").options(**run["source"]).load()
            frame = frame.observe(seen, count("*").alias("rows"))
            frame.write.format("noop").mode("overwrite").save()
            rows = seen.get["rows"]
        seconds = time.monotonic() - began
        spent = {role: used - before[role] for role, used in _cpu().items()}
    print(json.dumps({"rows": rows, "seconds": seconds, **spent}))


if __name__ == "__main__":
    job(json.loads(sys.argv[1]))
