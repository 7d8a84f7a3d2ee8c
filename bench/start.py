"""From a cold start of the service to the first event that is stored, and the CPU it takes.

`python -m bench.start`: one row is in the slot's log; each run has its own servers and state.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.servers import Nats, Postgres

from . import table
from .pipeline import STREAM, run_pipeline
from .stream import messages_in, stored, wait_for
from .usage import OURS, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds to the first event, and CPU seconds by role until then."""

    seconds: float
    cpu: Mapping[str, float]


def start(folder: Path, *, version: int) -> Start:
    """One cold start; `folder` is empty."""
    with Postgres(version=version) as postgres, Nats() as nats, postgres.database() as database:
        table.create(database)
        database.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        table.write_backlog(database, rows=1)
        with run_pipeline(folder, table.backend(database, "bench"), nats, extra={}) as running:
            usage = Usage(service=running.pid, source=postgres.pid, nats=nats.pid, find_every=0.0)
            usage.start()
            wait_for(lambda: messages_in(nats.url, STREAM) > 0, timeout=120, alive=running.check)
            cpu = {role: used.total for role, used in usage.stop().items()}
            _, first, _ = stored(nats.url, STREAM)
    return Start(seconds=first - running.started, cpu=cpu)


@click.command()
@click.option("--runs", default=3, show_default=True, help="All are printed.")
@click.option("--postgres", "version", default=16, show_default=True, help="PostgreSQL version.")
def main(runs: int, version: int) -> None:
    """Measures cold starts of the shipped defaults."""
    shown = Table("first event, s", *(f"CPU of {role}, s" for role in OURS), "all, s")
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            found = start(Path(folder), version=version)
        ours = [found.cpu.get(role, 0.0) for role in OURS]
        shown.add_row(*(f"{number:.1f}" for number in (found.seconds, *ours, sum(ours))))
    Console().print(shown)


if __name__ == "__main__":
    main()
