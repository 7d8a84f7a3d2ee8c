"""(b) From the commit in the database to the message being stored, at a steady rate."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.demo.servers import Nats, Postgres

from . import table
from .pipeline import STREAM, run_pipeline
from .stream import latencies, messages_in, wait_for
from .usage import Usage

__all__ = ["Latency", "Load", "latency"]

# Seconds that a writer may be late and still have reached its rate.
_PUNCTUAL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`rate` rows a second, in transactions of `size` rows."""

    rate: int
    size: int

    @classmethod
    def parse(cls, text: str) -> "Load":
        """`10000x100`; raises ValueError."""
        rate, _, size = text.partition("x")
        load = cls(rate=int(rate), size=int(size or 1))
        if load.rate < 1 or load.size < 1:
            raise ValueError(f"a load is RATExROWS, not {text!r}")
        return load


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds over all changes after the warm-up; `late` is how far the writer itself fell
    behind its schedule at the worst, in seconds: unless `kept_up`, the rate was not reached."""

    rate: int
    size: int
    seconds: int
    changes: int
    p50: float
    p99: float
    max: float
    late: float
    kept_up: bool
    peak_pss: int
    peak_rss: int
    cpu: dict[str, float]


def latency(
    folder: Path,
    *,
    load: Load,
    seconds: int,
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
            wait_for(lambda: messages_in(nats.url, STREAM) > 0, timeout=120, alive=running.check)
            writer = table.Writer(database, rate=load.rate, per_transaction=load.size)
            writer.start(warm_up)
            writer.wait()
            since = time.time()
            usage.mark()
            writer.start(seconds)
            writer.wait()
            total = 1000 + writer.rows
            wait_for(
                lambda: messages_in(nats.url, STREAM) >= total or running.published() >= total,
                timeout=120,
                alive=running.check,
            )
            spent = usage.stop()
        found = sorted(latencies(nats.url, STREAM, since=since))
        return Latency(
            rate=load.rate,
            size=load.size,
            seconds=seconds,
            changes=len(found),
            p50=found[len(found) // 2],
            p99=found[len(found) * 99 // 100],
            max=found[-1],
            late=writer.late,
            kept_up=writer.late < _PUNCTUAL,
            peak_pss=usage.peak_pss,
            peak_rss=usage.peak_rss,
            cpu={role: used * 1e6 / len(found) for role, used in spent.items()},
        )
