"""`penstock run` into a Delta table, and what a user would write instead: a Spark job with the
trigger AvailableNow, whose `foreachBatch` merges by deltalake. Then how soon rows are visible.

The job runs in a process of its own, as `python -m bench.lake JSON`. Seconds count from the start
of a way's process to its last commit, so how it starts counts. Afterwards both tables have the
rows of the source, or there is no result.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.servers import Database, Postgres

from . import table
from .latency import percentiles
from .pipeline import run_file
from .spark import SESSION, Figure
from .stream import wait_for

_OURS, _THEIRS = "bench_lake", "bench_lake_job"  # slots
_EVERY = 5  # seconds
_RATE, _SIZE = 1000, 10  # rows a second, and of a transaction, while it is measured how soon
_GB = 1 << 30


def lake_figures(
    folder: Path, *, rows: int, seconds: int, warm_up: int, version: int
) -> Iterator[Figure]:
    """All figures, one after the other. Raises RuntimeError where a table lacks rows."""
    settings = {"track_commit_timestamp": True, "max_wal_size": "4GB"}
    with Postgres(version=version, settings=settings) as postgres, postgres.database() as database:
        table.create(database)
        for slot in (_OURS, _THEIRS):
            database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        table.write_backlog(database, rows=rows)
        database.execute("CHECKPOINT")
        theirs, peak = _job(folder, database)
        _compare(database, folder / "job")
        yield Figure(name="foreachBatch and deltalake", value=rows / theirs, unit="changes/s")
        yield Figure(name="its peak memory, PSS", value=peak / _GB, unit="GiB")
        yield from _ours(folder, database, rows, theirs, seconds, warm_up)


def _ours(
    folder: Path, database: Database, rows: int, theirs: float, seconds: int, warm_up: int
) -> Iterator[Figure]:
    location = folder / "ours" / "bench"
    file = {
        "backends": [{"name": "shop", **table.backend(database, _OURS)}],
        "sink": {
            "type": "delta", "location": f"{folder / 'ours'}/{{table}}", "every": f"{_EVERY}s",
            "map": [{"backend": "shop", "tables": {"bench": {}}}],
        },
        "snapshot": {"initial": False},
    }  # fmt: skip
    begun = time.time()
    with run_file(folder, file) as running, _peak(running.pid) as peak:
        wait_for(lambda: _last(location) >= rows, timeout=1800, alive=running.check, every=0.1)
        ours, drained = _commits(location)[-1][0] - begun, peak[0]
        yield Figure(name="penstock run", value=rows / ours, unit="changes/s")
        yield Figure(name="penstock run / foreachBatch", value=theirs / ours, unit="")
        yield Figure(name="its peak memory, PSS", value=drained / _GB, unit="GiB")
        writer = table.Writer(database, rate=_RATE, per_transaction=_SIZE)
        for length in (warm_up, seconds):
            since = database.execute("SELECT max(id) FROM bench")[0][0]
            writer.start(length)
            writer.wait()
        last = database.execute("SELECT max(id) FROM bench")[0][0]
        wait_for(lambda: _last(location) >= last, timeout=300, alive=running.check, every=0.1)
        found = percentiles(_delays(database, location, since))
        for name in ("p50", "p99"):
            wanted = f"<= {1.5 * _EVERY}" if name == "p99" else ""
            of = f"visible after its commit, every {_EVERY} s: {name}"
            yield Figure(name=of, value=found[name], unit="s", wanted=wanted)
        yield Figure(name="the writer was late by", value=writer.late, unit="s")
    _compare(database, location)


def _delays(database: Database, location: Path, since: int) -> list[float]:
    commits = _commits(location)
    found, number = [], 0
    for id, at in database.execute(
        "SELECT id, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM bench"
        f" WHERE id > {since} ORDER BY id"
    ):
        while commits[number][1] < id:
            number += 1
        found.append(commits[number][0] - at)
    return found


def _commits(location: Path) -> list[tuple[float, int]]:
    """Of each version: when its entry of the log was written, and the highest id that it has."""
    found = []
    for version in range(1, DeltaTable(location).version() + 1):
        entry = location / "_delta_log" / f"{version:020}.json"
        found.append((entry.stat().st_mtime, _highest(DeltaTable(location, version))))
    return found


def _last(location: Path) -> int:
    try:
        return _highest(DeltaTable(location))
    except TableNotFoundError:
        return 0


def _highest(found: DeltaTable) -> int:
    actions = pa.table(found.get_add_actions(flatten=True))
    return pc.max(actions.column("max.id")).as_py() or 0 if len(actions) else 0


def _compare(database: Database, location: Path) -> None:
    wanted = database.execute("SELECT count(*), sum(id * quantity)::bigint FROM bench")[0]
    rows = DeltaTable(location).to_pyarrow_dataset().to_table(columns=["id", "quantity"])
    products = pc.multiply(rows.column("id"), rows.column("quantity").cast(pa.int64()))
    if wanted != (len(rows), pc.sum(products).as_py()):
        raise RuntimeError(f"the table at {location} does not equal its source")


@contextmanager
def _peak(pid: int) -> Iterator[list[int]]:
    """The highest sum of what the processes of a tree have so far (proportional set size)."""
    found, over = [0], threading.Event()

    def watch() -> None:
        root = psutil.Process(pid)
        while not over.wait(0.5):
            total = 0
            with suppress(psutil.Error):
                for each in (root, *root.children(recursive=True)):
                    with suppress(psutil.Error):
                        total += each.memory_full_info().pss
            found[0] = max(found[0], total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield found
    over.set()
    thread.join()


def _job(folder: Path, database: Database) -> tuple[float, int]:
    """Seconds to the last commit, and the peak of memory."""
    backend = table.backend(database, _THEIRS)
    source = {("backend" if key == "type" else key): value for key, value in backend.items()}
    given = {
        "source": {**source, "table": "public.bench"}, "location": str(folder / "job"),
        "checkpoint": str(folder / "checkpoint"),
    }  # fmt: skip
    log, begun = folder / "job.log", time.time()
    with log.open("wb") as output:
        command = [sys.executable, "-m", "bench.lake", json.dumps(given)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        with _peak(process.pid) as peak:
            code = process.wait()
    if code:
        raise RuntimeError(f"the job ended:\n{log.read_text()[-3000:]}")
    return _commits(folder / "job")[-1][0] - begun, peak[0]


def job(given: Mapping[str, Any]) -> None:
    """What a user would write: the last change of each key, merged; no change of a key."""
    from pyspark.sql import DataFrame, SparkSession

    import penstock
    from penstock.spark.session.plan import java_options

    builder = SparkSession.builder.master("local[2]")
    for key, value in {**SESSION, "spark.driver.extraJavaOptions": java_options("rows")}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    penstock.register(spark)
    frame = spark.readStream.format("penstock").options(**given["source"]).load()
    own = [name for name in frame.columns if not name.startswith("_")]

    def merge(batch: DataFrame, number: int) -> None:
        rows = batch.select(*own, "_operation", "_sequence").toArrow()
        if not len(rows):
            return
        rows = rows.sort_by("_sequence").append_column("n", pa.array(range(len(rows))))
        last = rows.group_by("id").aggregate([("n", "max")]).column("n_max")
        rows = rows.take(last).drop_columns(["n", "_sequence"])
        schema = rows.drop_columns(["_operation"]).schema
        found = DeltaTable.create(given["location"], schema, mode="ignore")
        merger = found.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        names = {name: f"s.{name}" for name in own}
        merger = merger.when_matched_delete("s._operation = 'DELETE'")
        merger = merger.when_matched_update(names)
        merger.when_not_matched_insert(names, "s._operation <> 'DELETE'").execute()

    writer = frame.writeStream.foreachBatch(merge).option("checkpointLocation", given["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    job(json.loads(sys.argv[1]))
