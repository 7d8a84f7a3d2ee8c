"""`penstock positions`: where a pipeline has got to, as its store has it."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from penstock.cli.run import state_option
from penstock.config import Pipeline, load_pipeline
from penstock.errors import SettingsError
from penstock.leases import Lease
from penstock.leases.open import open_store

__all__ = ["command", "stored"]


@click.command("positions")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
@state_option
def command(*, file: Path, as_json: bool, state: Path | None) -> None:
    """Show the stored positions of the pipeline in FILE.

    Everything up to a place is durable in the sink, and a start resumes after it.
    """
    rows = stored(load_pipeline(file, overrides={"state": str(state)} if state else {}))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo("no positions are stored yet")
    else:
        _table(rows)


def stored(pipeline: Pipeline) -> list[dict[str, Any]]:
    """One row for each backend and partition, by name; raises Unavailable, SettingsError."""
    if pipeline.positions.startswith("memory:"):
        raise SettingsError(
            "positions in memory are gone when the pipeline ends",
            hint="write positions: sqlite:///FILE to keep them",
        )
    store = open_store(pipeline.positions)
    try:
        return [_row(lease, f"{pipeline.name}/") for lease in store.list(f"{pipeline.name}/")]
    finally:
        store.close()


def _row(lease: Lease, prefix: str) -> dict[str, Any]:
    backend, _, partition = lease.name.removeprefix(prefix).partition("/")
    try:
        place = json.loads(lease.continuation)["place"] or ""
    except (ValueError, KeyError, TypeError):
        place = None  # written by something else; shown as unreadable
    return {
        "backend": backend,
        "partition": partition,
        "place": place,
        "owner": lease.owner,
        "revision": lease.revision,
    }


def _table(rows: list[dict[str, Any]]) -> None:
    table = Table("backend", "partition", "place", "revision", box=None)
    for row in rows:
        place = row["place"] or ("unreadable" if row["place"] is None else "nothing yet")
        table.add_row(row["backend"], row["partition"], place, str(row["revision"]))
    Console(soft_wrap=True).print(table)
