"""(b) From the commit in the database to the message being stored, at a steady rate."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.demo.servers import Nats, Postgres

from . import table
from .pipeline import STREAM, run_pipeline
from .stream import latencies, wait_for
from .usage import Usage

__all__ = ["Latency", "latency"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds over all messages after the warm-up; `late` is how far the writer itself fell
    behind its schedule at the worst, in seconds (if it is not small the rate was not reached)."""

    rate: int
    seconds: int
    messages: int
    p50: float
    p99: float
    max: float
    late: float
    peak_rss: int
    cpu: dict[str, float]


def latency(
    folder: Path,
    *,
    rate: int,
    seconds: int,
    per_transaction: int,
    warm_up: int,
    extra: dict[str, Any],
    version: int,
) -> Latency:
    """One run with fresh servers; the first `warm_up` seconds do not count."""
    with Postgres(version=version) as postgres, Nats() as nats, postgres.database() as database:
        table.create(database)
        database.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        with run_pipeline(folder, database, nats, slot="bench", extra=extra) as running:
            usage = Usage(service=running.pid, postgres=postgres.pid, nats=nats.pid)
            usage.start()
            table.write_backlog(database, rows=1000)
            wait_for(nats.url, STREAM, 1000, timeout=120, alive=lambda: None)
            writer = table.Writer(database, rate=rate, per_transaction=per_transaction)
            writer.start()
            time.sleep(warm_up)
            skip = 1000 + writer.rows
            usage.mark()
            time.sleep(seconds)
            writer.stop()
            wait_for(nats.url, STREAM, 1000 + writer.rows, timeout=120, alive=lambda: None)
            spent = usage.stop()
        found = sorted(latencies(nats.url, STREAM, skip=skip))
        return Latency(
            rate=rate,
            seconds=seconds,
            messages=len(found),
            p50=found[len(found) // 2],
            p99=found[len(found) * 99 // 100],
            max=found[-1],
            late=writer.late,
            peak_rss=usage.peak_rss,
            cpu={role: used * 1e6 / len(found) for role, used in spent.items()},
        )
