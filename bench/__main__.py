"""One command: measures drain, latency, CPU and memory; prints tables and writes JSON."""

import json
import os
import platform
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from .deliveries import Row, deliveries
from .drain import Drain, drain
from .latency import Latency, latency
from .usage import OURS

console = Console()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", type=click.Choice(["all", "drain", "latency", "deliveries"]), default="all")
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of the backlog.")
@click.option("--per-transaction", default=1000, show_default=True, help="Rows a transaction.")
@click.option("--rate", default=10_000, show_default=True, help="Rows a second for the latency.")
@click.option("--batch", default=100, show_default=True, help="Rows a transaction at that rate.")
@click.option("--seconds", default=60, show_default=True, help="How long the latency is measured.")
@click.option("--warm-up", default=10, show_default=True, help="Seconds that do not count.")
@click.option("--runs", default=1, show_default=True, help="Drains, of which all are printed.")
@click.option("--postgres", "version", default=16, show_default=True, help="PostgreSQL version.")
@click.option("--set", "extra", default="{}", help="YAML merged into the pipeline file.")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file for the results.")
def main(
    what: str,
    rows: int,
    per_transaction: int,
    rate: int,
    batch: int,
    seconds: int,
    warm_up: int,
    runs: int,
    version: int,
    extra: str,
    output: Path | None,
) -> None:
    """Measures the shipped defaults on this machine: PostgreSQL, nats-server, Spark and all."""
    merged = yaml.safe_load(extra)
    results: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "set": merged,
    }
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        if what in ("all", "drain"):
            drains = [
                drain(
                    Path(tempfile.mkdtemp(dir=folder)),
                    rows=rows,
                    per_transaction=per_transaction,
                    extra=merged,
                    version=version,
                )
                for _ in range(runs)
            ]
            for one in drains:
                _show_drain(one)
            results["drain"] = [
                {**asdict(one), "ratio": one.ratio, "own_cpu": one.own_cpu} for one in drains
            ]
        if what in ("all", "latency"):
            measured = latency(
                Path(tempfile.mkdtemp(dir=folder)),
                rate=rate,
                seconds=seconds,
                per_transaction=batch,
                warm_up=warm_up,
                extra=merged,
                version=version,
            )
            _show_latency(measured)
            results["latency"] = asdict(measured)
        if what == "deliveries":
            rows_of_it = deliveries(seconds=seconds / 12, runs=runs)
            _show_deliveries(rows_of_it)
            results["deliveries"] = [asdict(row) for row in rows_of_it]
    output = output or Path("bench/results") / f"{results['at'].replace(':', '')}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {output}")


def _show_drain(one: Drain) -> None:
    table = Table(title=f"draining {one.rows:,} rows", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("events/s", f"{one.events_per_second:,.0f}")
    table.add_row("pg_recvlogical into a file, rows/s", f"{one.recvlogical_per_second:,.0f}")
    table.add_row("ratio", f"{one.ratio:.2f}")
    table.add_row("start to the first event, s", f"{one.first_event:.1f}")
    table.add_row("peak memory of ours (PSS), MB", f"{one.peak_rss / 1e6:,.0f}")
    _cpu_rows(table, one.cpu)
    console.print(table)


def _show_latency(one: Latency) -> None:
    title = f"commit to stored, {one.rate:,} rows/s for {one.seconds} s ({one.messages:,} messages)"
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in (("p50", one.p50), ("p99", one.p99), ("max", one.max)):
        table.add_row(f"{name}, ms", f"{value:.1f}")
    table.add_row("the writer was late by at most, s", f"{one.late:.2f}")
    table.add_row("peak memory of ours (PSS), MB", f"{one.peak_rss / 1e6:,.0f}")
    _cpu_rows(table, one.cpu)
    console.print(table)


def _show_deliveries(rows: list[Row]) -> None:
    table = Table(title="deliveries: the sink alone", title_justify="left")
    for name in ("delivery", "servers", "sync"):
        table.add_column(name)
    for name in ("events/s", "client us", "server us", "p50 ms", "p99 ms", "behind"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.delivery, str(row.servers), row.sync, f"{row.events_per_second:,.0f}",
            f"{row.client_cpu:.1f}", f"{row.server_cpu:.1f}", f"{row.p50:.1f}", f"{row.p99:.1f}",
            str(row.behind),
        )  # fmt: skip
    console.print(table)


def _cpu_rows(table: Table, cpu: dict[str, float]) -> None:
    for role, microseconds in sorted(cpu.items()):
        table.add_row(f"CPU of {role}, us an event", f"{microseconds:.2f}")
    ours = sum(cpu.get(role, 0.0) for role in OURS)
    table.add_row("CPU of ours together, us an event", f"{ours:.2f}")


if __name__ == "__main__":
    main()
