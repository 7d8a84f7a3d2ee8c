"""From the start of the service to the first event that is stored: step by step, and the CPU.

`python -m bench.start`: one row is in the slot's log; each run has its own servers and state. The
first run finds no class archive; when it has made one, the next runs use it.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.servers import Nats, Postgres

from . import table
from .pipeline import STREAM, run_pipeline
from .stream import messages_in, stored, wait_for
from .usage import OURS, Usage

# What the log says of a step, and what the step is called.
_LOGGED = {
    "ops server listens": "the service listens",
    "beginning": "the backend has begun",
    "spark is ready": "Spark is ready",
}
# What begins with the first process of a role.
_BEGUN = {
    "workers": "the fork server begins",
    "jvm": "the JVM begins",
    "reader": "the reader begins",
}
_LINE = re.compile(r'timestamp=(\S+) level=\S+ event="([^":]+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds from the start of the process to each step, the first event's last, and CPU seconds
    by role until then."""

    steps: Mapping[str, float]
    cpu: Mapping[str, float]


def logged(log: str) -> dict[str, float]:
    """When each step was logged first, in seconds of the epoch."""
    found: dict[str, float] = {}
    for time, event in _LINE.findall(log):
        if event in _LOGGED:
            found.setdefault(_LOGGED[event], datetime.fromisoformat(time).timestamp())
    return found


def start(folder: Path, *, version: int, cache: Path, make: bool) -> Start:
    """One start; `folder` is empty. `make`: it runs on until there is an archive in `cache`."""
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
            log = running.log.read_text()
            if make:
                wait_for(lambda: any(cache.glob("*/*.jsa")), timeout=600, alive=running.check)
    # The kernel counts from a boot that it knows to the second: processes compare with each other.
    at = {name: usage.begun[role] - usage.begun["service"] for role, name in _BEGUN.items()}
    known = {**logged(log), "the first event is stored": first}
    at |= {name: moment - running.started for name, moment in known.items()}
    return Start(steps=dict(sorted(at.items(), key=lambda step: step[1])), cpu=cpu)


@click.command()
@click.option("--runs", default=3, show_default=True, help="With a class archive; all are printed.")
@click.option("--first/--no-first", default=True, help="Before them, one that makes the archive.")
@click.option("--postgres", "version", default=16, show_default=True, help="PostgreSQL version.")
def main(runs: int, first: bool, version: int) -> None:
    """Measures starts of the shipped defaults."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        found = []
        for number in range(runs + first):
            with tempfile.TemporaryDirectory() as folder:
                make = first and number == 0
                place = Path(folder)
                found.append(start(place, version=version, cache=Path(cache), make=make))
    names = [f"run {number}, s" for number in range(len(found))]
    shown = Table("step", *names)
    for name in found[-1].steps:
        shown.add_row(name, *(f"{each.steps.get(name, 0.0):.2f}" for each in found))
    for role in OURS:
        shown.add_row(f"CPU of {role}", *(f"{each.cpu.get(role, 0.0):.2f}" for each in found))
    sums = (sum(each.cpu.get(role, 0.0) for role in OURS) for each in found)
    shown.add_row("CPU of all", *(f"{each:.2f}" for each in sums))
    Console(width=None if sys.stdout.isatty() else 120).print(shown)


if __name__ == "__main__":
    main()
