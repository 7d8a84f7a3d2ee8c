"""One command: measures drain, latency, scaling and memory; prints tables and writes JSON."""

import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from . import show
from .consolidate import consolidate, show_consolidation
from .deliveries import deliveries
from .delta import delta, show_commits
from .drain import Drain, drain, drain_source
from .idle import idle
from .iterate import iterate
from .lake import lake_figures
from .latency import Latency, Load, latency, latency_source
from .mirror import mirror
from .outage import outage
from .peer import parse_peer
from .snapshot import show_snapshots, snapshots
from .sources import SOURCES, open_source
from .spark import figures, show_figures
from .table import TEN, Shape
from .takeover import takeover
from .typed import typed_figures
from .variants import pipeline_keys

# In a file or a pipe, rich would fold tables to 80 columns.
console = Console(width=None if sys.stdout.isatty() else 120)

KINDS = (
    "all", "drain", "latency", "scaling", "outage", "takeover", "deliveries", "iterate", "snapshot",
    "mirror", "consolidate", "delta", "lake", "spark", "idle",
)  # fmt: skip
MOST_RECORDS = 20_000  # of `iterate`: more change nothing
MOST_MIRRORED = 200_000  # rows of `mirror`
TABLES, COLUMNS = (1, 10, 100, 1000), (5, 20, 100)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", type=click.Choice(KINDS), default="all")
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    default="postgres",
    show_default=True,
    help="Where changes come from; drain and latency know all.",
)
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of a backlog.")
@click.option(
    "--page", default=1000, show_default=True, help="Changes a page, with --source memory."
)
@click.option("--per-transaction", default=1000, show_default=True, help="Rows a transaction.")
@click.option(
    "--load",
    "loads",
    multiple=True,
    default=["10000x100"],
    show_default=True,
    help="RATExROWS: rows a second in transactions of so many; RATExROWS:async with "
    "PostgreSQL's synchronous_commit off; may be repeated. bench/NOTES.md has figures for "
    "10000x100, 10000x1 and 100x1.",
)
@click.option("--seconds", default=60, show_default=True, help="Of each load, and of the outage.")
@click.option(
    "--beside", default=0, help="With latency: rows of another table, whose snapshots are taken."
)
@click.option("--warm-up", default=10, show_default=True, help="Seconds that do not count.")
@click.option(
    "--runs",
    default=1,
    show_default=True,
    help="Drains or takeovers, all of which are printed; readers in turns.",
)
@click.option("--postgres", "version", default=16, show_default=True, help="PostgreSQL version.")
@click.option("--messages", help="sink.messages: change or batch.")
@click.option("--encoding", help="sink.encoding: msgpack, json or arrow.")
@click.option("--viewers", default=0, help="Dashboards that are open meanwhile.")
@click.option("--delivery", help="sink.delivery.")
@click.option("--trigger", help="spark.trigger: a duration or realtime.")
@click.option("--transform", help="SQL over the view `changes`: rows go through the JVM.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    help="Any other key of the pipeline file, as a.b=value; may be repeated.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    help="name=command: drains the same backlog first; "
    "{slot} {publication} {pg_url} {nats_url} {stream} {rows} are filled in.",
)
@click.option(
    "--timeline", is_flag=True, help="With drain: both curves, and when one of them stood still."
)
@click.option("--output", type=click.Path(path_type=Path), help="JSON file for the results.")
def main(what: str, output: Path | None, **options: Any) -> None:  # fmt: skip
    """Measures the shipped defaults on this machine: PostgreSQL, nats-server, Spark and all."""
    viewers = options.pop("viewers")
    named = ("messages", "encoding", "delivery", "trigger", "transform")
    try:
        extra = pipeline_keys(options["settings"], **{name: options[name] for name in named})
        extra |= {"viewers": viewers} if viewers else {}
        options["loads"] = [Load.parse(text) for text in options["loads"]]
        options["peers"] = [parse_peer(text) for text in options["peers"]]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    results: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "set": extra,
    }
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        results |= _measured(what, Path(folder), extra, options)
    output = output or Path("bench/results") / f"{results['at'].replace(':', '')}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {output}")


def _measured(
    what: str, folder: Path, extra: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    def fresh() -> Path:
        return Path(tempfile.mkdtemp(dir=folder))

    def drained(shape: Shape, peers: Any = (), *, timeline: bool = False) -> Drain:
        return drain(
            fresh(), rows=options["rows"], per_transaction=options["per_transaction"],
            extra=extra, version=options["version"], shape=shape, peers=peers,
            timeline=timeline,
        )  # fmt: skip

    def drained_source() -> Drain:
        rows = options["rows"]
        with open_source(options["source"], rows, options["page"]) as source:
            return drain_source(fresh(), source, rows=rows, extra=extra)

    def waited(load: Load) -> Latency:
        times = {"seconds": options["seconds"], "warm_up": options["warm_up"]}
        if not other:
            return latency(
                fresh(), load=load, extra=extra, version=options["version"],
                beside=options["beside"], **times,
            )  # fmt: skip
        rows = 1000 + load.rate * (options["seconds"] + options["warm_up"]) + 2 * load.size
        with open_source(options["source"], rows) as source:
            return latency_source(fresh(), source, load=load, extra=extra, **times)

    other = options["source"] != "postgres"
    results: dict[str, Any] = {}
    if what in ("all", "drain"):
        drains = [
            drained_source()
            if other
            else drained(TEN, options["peers"], timeline=options["timeline"])
            for _ in range(options["runs"])
        ]
        for one in drains:
            show.show_drain(console, one)
        results["drain"] = [_plain(one) for one in drains]
    if what in ("all", "latency"):
        results["latency"] = []
        for load in options["loads"]:
            measured = waited(load)
            show.show_latency(console, measured)
            results["latency"].append(asdict(measured))
    if what == "scaling":
        shapes = [Shape(tables=n) for n in TABLES] + [Shape(columns=n) for n in COLUMNS]
        drains = [drained(shape) for shape in shapes]
        show.show_scaling(console, drains)
        results["scaling"] = [_plain(one) for one in drains]
    if what == "outage":
        gone = outage(
            fresh(), load=options["loads"][0], seconds=options["seconds"], extra=extra,
            version=options["version"],
        )  # fmt: skip
        show.show_outage(console, gone)
        results["outage"] = asdict(gone)
    if what == "takeover":
        ways = ("warm", "cold") * options["runs"]
        taken = [
            takeover(fresh(), standby=way, extra=extra, version=options["version"]) for way in ways
        ]
        show.show_takeovers(console, taken)
        results["takeover"] = [asdict(one) for one in taken]
    if what == "idle":
        times = {"seconds": options["seconds"], "warm_up": options["warm_up"]}
        processes = idle(fresh(), extra=extra, version=options["version"], **times)
        show.show_idle(console, processes)
        results["idle"] = [asdict(one) for one in processes]
    if what == "deliveries":
        rows = deliveries(seconds=options["seconds"] / 12, runs=options["runs"])
        show.show_deliveries(console, rows)
        results["deliveries"] = [asdict(row) for row in rows]
    if what == "iterate":
        read = iterate(records=min(options["rows"], MOST_RECORDS), runs=options["runs"])
        show.show_iteration(console, read)
        results["iterate"] = {**asdict(read), "ratio": read.ratio}
    if what == "snapshot":
        taken_snapshots = snapshots(
            rows=options["rows"], runs=options["runs"], version=options["version"]
        )
        show_snapshots(console, taken_snapshots)
        results["snapshot"] = [asdict(one) for one in taken_snapshots]
    if what == "mirror":
        rates = mirror(
            fresh(), rows=min(options["rows"], MOST_MIRRORED), version=options["version"]
        )
        for one in rates:
            show.show_mirror(console, one)
        results["mirror"] = [asdict(one) for one in rates]
    if what == "consolidate":
        consolidated = list(consolidate(
            fresh(), rows=options["rows"], seconds=options["seconds"],
            warm_up=options["warm_up"], version=options["version"],
        ))  # fmt: skip
        show_consolidation(console, consolidated)
        results["consolidate"] = [asdict(one) for one in consolidated]
    if what == "delta":
        committed = delta(fresh(), rows=options["rows"])
        show_commits(console, committed)
        results["delta"] = [{**asdict(one), "ratio": one.ratio} for one in committed]
    if what == "lake":
        found = list(lake_figures(
            fresh(), rows=options["rows"], seconds=options["seconds"],
            warm_up=options["warm_up"], version=options["version"],
        ))  # fmt: skip
        show_figures(console, found, "a Delta table")
        results["lake"] = [asdict(one) for one in found]
    if what == "spark":
        sizes = {"rows": options["rows"], "version": options["version"]}
        jobs = [*typed_figures(fresh(), **sizes), *figures(fresh(), **sizes)]
        show_figures(console, jobs)
        results["spark"] = [asdict(one) for one in jobs]
    return results


def _plain(one: Drain) -> dict[str, Any]:
    return {**asdict(one), "ratio": one.ratio, "own_cpu": one.own_cpu}


if __name__ == "__main__":
    main()
