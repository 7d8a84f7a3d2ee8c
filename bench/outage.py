"""Memory while the broker is down and the source is written to."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import Nats, Postgres

from . import table
from .latency import Load
from .pipeline import STREAM, run_pipeline
from .stream import changes_in, messages_in, wait_for
from .usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Peak memory of ours in bytes; `recovery` is seconds from the broker's return until all that
    was written meanwhile is stored."""

    seconds: int
    rate: int
    changes: int
    peak_pss: int
    peak_rss: int
    recovery: float


def outage(
    folder: Path, *, load: Load, seconds: int, extra: dict[str, Any], version: int
) -> Outage:
    """Kills the broker for `seconds` under load. Raises RuntimeError unless every change is there
    once afterwards."""
    with Postgres(version=version) as postgres, Nats() as nats, postgres.database() as database:
        table.create(database)
        database.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        with run_pipeline(folder, table.backend(database, "bench"), nats, extra=extra) as running:
            table.write_backlog(database, rows=1000)
            wait_for(lambda: messages_in(nats.url, STREAM) > 0, timeout=120, alive=running.check)
            usage = Usage(service=running.pid, source=postgres.pid, nats=nats.pid)
            usage.start()
            writer = table.Writer(
                database, rate=load.rate, per_transaction=load.size, asynchronous=load.asynchronous
            )
            writer.start(seconds)
            nats.kill()
            writer.wait()
            nats.start()
            back = time.monotonic()
            total = 1000 + writer.rows
            wait_for(
                lambda: messages_in(nats.url, STREAM) >= total or running.published() >= total,
                timeout=600,
                alive=running.check,
            )
            recovery = time.monotonic() - back
            usage.stop()
        found = changes_in(nats.url, STREAM)
        if found != total:
            raise RuntimeError(f"{total} rows were written, {found} changes are in the stream")
        return Outage(
            seconds=seconds,
            rate=load.rate,
            changes=found,
            peak_pss=usage.peak_pss,
            peak_rss=usage.peak_rss,
            recovery=recovery,
        )
