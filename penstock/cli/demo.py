"""`penstock demo`: the main job on embedded servers, with a verdict."""

import signal
import sys
from typing import Any

import click
from rich.console import Console

from penstock.cli.options import json_option, print_json
from penstock.demo.sources import SOURCES
from penstock.model.errors import SettingsError


def _source(context: click.Context, option: click.Parameter, value: str) -> str:
    if value == "cosmos":
        raise SettingsError(
            "there is no demo of Cosmos DB",
            "cli",
            hint="read a container of your own: docs/how-to/cosmos.md",
        )
    found: str = click.Choice(SOURCES).convert(value, option, context)
    return found


@click.command("demo")
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=30, show_default=True,
    help="How long the shop writes.",
)  # fmt: skip
@click.option(
    "--rate", type=click.FloatRange(min=1), default=500, show_default=True,
    help="Row changes a second.",
)  # fmt: skip
@click.option(
    "--source", metavar=f"[{'|'.join(SOURCES)}]", callback=_source, default="postgres",
    show_default=True, help="The database that the shop writes to.",
)  # fmt: skip
@click.option(
    "--keep", is_flag=True, help="Keep the servers running afterwards, and print how to connect."
)
@click.option(
    "--consolidate", is_flag=True,
    help="Two shops flow into one PostgreSQL, without NATS; `penstock verify` is the verdict.",
)  # fmt: skip
@click.option(
    "--lake", is_flag=True,
    help="Two shops flow into Delta tables, which DuckDB reads; `penstock verify` is the verdict.",
)  # fmt: skip
@click.option("--quiet", is_flag=True, help="Print the verdict only.")
@json_option("The verdict as an object; all else on stderr.")
def command(*, consolidate: bool, lake: bool, as_json: bool, **given: Any) -> None:
    """Run a database, Spark and NATS on this machine, and verify the changes that arrive.

    A small shop writes to a real PostgreSQL (or another --source). `penstock run` publishes every
    change to a real nats-server. A consumer keeps a copy of the tables from the stream alone. In
    the end every committed change must have arrived exactly once and in order per key, and the copy
    must equal the tables row by row. Then the exit code is 0, else 1 with the differences.
    """
    from penstock.demo.consolidate import Lake
    from penstock.demo.consolidate import run as run_consolidation
    from penstock.demo.run import Options, run

    options = Options(**given)
    if consolidate and lake:
        raise click.UsageError("--consolidate and --lake are two demos: leave one out")
    if (consolidate or lake) and options.source != "postgres":
        raise click.UsageError("--consolidate and --lake take no other --source")
    # Terminated is ended in order: the servers must not outlive us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = print_json if as_json else lambda _: None
    try:
        console = Console(stderr=as_json)
        if lake:
            sys.exit(run_consolidation(options, console, report, Lake))
        played = run_consolidation if consolidate else run
        sys.exit(played(options, console, report))
    except KeyboardInterrupt:
        sys.exit(130)
