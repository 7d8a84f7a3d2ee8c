"""(b) From the commit in the database to the message being stored, at a steady rate."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import Nats, Postgres

from . import table
from .episodes import Episode, episodes
from .pipeline import STREAM, run_pipeline
from .sources import PacedWriter, Source
from .stream import latencies, messages_in, wait_for
from .usage import Cpu, Usage

# Seconds that a writer may be late and still have reached its rate.
_PUNCTUAL = 0.1
# Seconds: while the kernel counts a process's shared memory, the process cannot allocate.
_SELDOM = 10.0
# How often the server writes asynchronous commits to its log's files, from where they are sent to
# us; its default is 200 ms, and every commit would wait for that.
_FLUSH = "5ms"
# Bytes of the log: what a row and what a commit takes at most, and a file of it.
_ROW, _COMMIT, _FILE = 350, 400, 16 * 2**20
_BESIDE = "bench_beside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`rate` rows a second, in transactions of `size` rows; `asynchronous`: with PostgreSQL's
    synchronous_commit off, where a commit does not wait for the disk."""

    rate: int
    size: int
    asynchronous: bool = False

    @classmethod
    def parse(cls, text: str) -> "Load":
        """`10000x100`, `10000x1:async`; raises ValueError."""
        amount, _, how = text.partition(":")
        rate, _, size = amount.partition("x")
        load = cls(rate=int(rate), size=int(size or 1), asynchronous=how == "async")
        if load.rate < 1 or load.size < 1 or how not in ("", "async"):
            raise ValueError(f"a load is RATExROWS or RATExROWS:async, not {text!r}")
        return load


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds over all changes after the warm-up, from the commit to JetStream's store;
    `captured` until penstock had the change, by the same names; `episodes` are when it was slow,
    counted from `began`, in seconds since 1970;
    `late` is how far the writer itself fell behind its schedule at the worst, in seconds: unless
    `kept_up`, the rate was not reached. `snapshots`: of another table, that were taken
    meanwhile."""

    rate: int
    size: int
    began: float
    seconds: int
    changes: int
    p50: float
    p99: float
    max: float
    captured: dict[str, float]
    episodes: Sequence[Episode]
    late: float
    kept_up: bool
    peak_pss: int
    peak_rss: int
    cpu: dict[str, float]
    snapshots: int = 0


def latency(
    folder: Path,
    *,
    load: Load,
    seconds: int,
    warm_up: int,
    extra: dict[str, Any],
    version: int,
    beside: int = 0,
) -> Latency:
    """One run with fresh servers; the first `warm_up` seconds do not count. `beside`: rows of
    another table, of which snapshots are taken all the time, one after the other."""
    files = 5 + round((warm_up + seconds) * load.rate * (_ROW + _COMMIT / load.size) / _FILE)
    settings = {"min_wal_size": f"{files * _FILE // 2**20}MB"}
    if load.asynchronous:
        settings["wal_writer_delay"] = _FLUSH
    with (
        Postgres(version=version, settings=settings) as postgres,
        Nats() as nats,
        postgres.database() as database,
    ):
        _fill_log(postgres, files)
        table.create(database)
        if beside:
            table.write_backlog(database, rows=beside)
            database.execute(
                f"CREATE TABLE {_BESIDE} (LIKE bench INCLUDING ALL);"
                f"INSERT INTO {_BESIDE} TABLE bench; TRUNCATE bench;"
                f"ALTER PUBLICATION {table.PUBLICATION} ADD TABLE {_BESIDE}"
            )
        database.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        with run_pipeline(folder, table.backend(database, "bench"), nats, extra=extra) as running:
            usage = Usage(
                service=running.pid, source=postgres.pid, nats=nats.pid, pss_every=_SELDOM
            )
            usage.start()
            table.write_backlog(database, rows=1000)
            wait_for(lambda: messages_in(nats.url, STREAM) > 0, timeout=120, alive=running.check)
            writer = table.Writer(
                database, rate=load.rate, per_transaction=load.size, asynchronous=load.asynchronous
            )
            writer.start(warm_up)
            writer.wait()
            since = time.time()
            usage.mark()
            with ThreadPoolExecutor(1) as asking:
                taken = asking.submit(_take_snapshots, folder, since + seconds if beside else 0.0)
                writer.start(seconds)
                writer.wait()
            total = 1000 + writer.rows
            wait_for(
                lambda: messages_in(nats.url, STREAM) >= total or running.published() >= total,
                timeout=120,
                alive=running.check,
            )
            spent = usage.stop()
        return _latency(nats.url, load, since, seconds, writer.late, usage, spent, taken.result())


def _take_snapshots(folder: Path, until: float) -> int:
    """Takes snapshots of the other table, one after the other, until that moment (seconds since
    1970); how many."""
    # Nice: whoever asks is not a part of the pipeline.
    command = ["nice", "-n", "19", sys.executable, "-m", "penstock", "snapshot"]
    taken = 0
    while time.time() < until:
        subprocess.run(
            [*command, f"{folder}/pipeline.yaml", _BESIDE], check=True, stdout=subprocess.DEVNULL
        )
        taken += 1
    return taken


def latency_source(
    folder: Path, source: Source, *, load: Load, seconds: int, warm_up: int, extra: dict[str, Any]
) -> Latency:
    """As `latency`, of another source than PostgreSQL, whose server runs."""
    with Nats() as nats, run_pipeline(folder, source.backend, nats, extra=extra) as running:
        usage = Usage(service=running.pid, source=source.pid, nats=nats.pid, pss_every=_SELDOM)
        usage.start()
        source.write(1000)
        wait_for(lambda: messages_in(nats.url, STREAM) > 0, timeout=120, alive=running.check)
        writer = PacedWriter(source, rate=load.rate, size=load.size)
        writer.write(warm_up)
        since, writer.late = time.time(), 0.0
        usage.mark()
        writer.write(seconds)
        total = 1000 + writer.rows
        wait_for(
            lambda: messages_in(nats.url, STREAM) >= total or running.published() >= total,
            timeout=120,
            alive=running.check,
        )
        spent = usage.stop()
        return _latency(nats.url, load, since, seconds, writer.late, usage, spent)


def _latency(
    url: str, load: Load, since: float, seconds: int, late: float, usage: Usage,
    spent: Mapping[str, Cpu], snapshots: int = 0,
) -> Latency:  # fmt: skip
    found = latencies(url, STREAM, since=since)
    return Latency(
        rate=load.rate,
        size=load.size,
        began=since,
        seconds=seconds,
        changes=len(found),
        **percentiles([times.stored for times in found]),
        captured=percentiles([times.captured for times in found]),
        episodes=episodes(found),
        late=late,
        kept_up=late < _PUNCTUAL,
        peak_pss=usage.peak_pss,
        peak_rss=usage.peak_rss,
        cpu={role: used.total * 1e6 / len(found) for role, used in spent.items()},
        snapshots=snapshots,
    )


def percentiles(found: list[float]) -> dict[str, float]:
    """By the names of `Latency`."""
    found = sorted(found)
    return {"p50": found[len(found) // 2], "p99": found[len(found) * 99 // 100], "max": found[-1]}


def _fill_log(postgres: Postgres, files: int) -> None:
    """Leaves `files` old files of the log to be used again, as on a server that has run for a time:
    a commit that needs a new file waits 50 to 80 ms."""
    for _ in range(files):
        postgres.execute("SELECT pg_logical_emit_message(true, 'bench', 'file')")
        postgres.execute("SELECT pg_switch_wal()")
    postgres.execute("CHECKPOINT")
