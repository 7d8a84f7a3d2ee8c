"""`penstock gaps`: what a pipeline's partitions have lost, and that one of them is mended."""

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import file_argument, json_list, load_deployment, print_list, state_option
from penstock.config import Deployment
from penstock.leases import open_store
from penstock.leases.gaps import Gaps
from penstock.model.errors import SettingsError
from penstock.service.actions import mend


@click.command("gaps")
@file_argument
@click.argument("action", type=click.Choice(["list", "mend"]), default="list")
@click.argument("partition", metavar="[BACKEND/PARTITION]", required=False)
@json_list
@state_option
def command(
    *, file: Path, action: str, partition: str | None, as_json: bool, state: Path | None
) -> None:
    """Show the changes that the pipeline in FILE has lost, or mark gaps as mended.

    A partition that lost changes is stale until you load its tables anew at the destination and run
    `mend`. The pipeline may run meanwhile.

    \b
    penstock gaps FILE
    penstock gaps FILE mend BACKEND/PARTITION
    """
    if (action == "mend") != (partition is not None):
        raise click.UsageError("write `mend BACKEND/PARTITION`, or nothing to list the gaps")
    rows = _rows(load_deployment(file, state), partition)
    head = ("backend", "partition", "stale", "cause", "after", "until", "at")
    cells = [
        (
            row["backend"], row["partition"], "yes" if row["stale"] else "no", gap["cause"],
            gap["from"] or "the beginning", gap["to"] or "unknown", gap["at"],
        )
        for row in rows
        for gap in row["gaps"]
    ]  # fmt: skip
    print_list(rows, as_json=as_json, none="nothing was ever lost", head=head, cells=cells)


def _rows(pipeline: Deployment, mended: str | None) -> list[dict[str, Any]]:
    if pipeline.positions.startswith("memory:"):
        raise SettingsError(
            "gaps are kept with the positions, which are in memory: ask /status while it runs",
            "cli",
            hint="write positions: sqlite:///FILE to keep them",
        )
    if mended is not None:
        mend(pipeline, mended)
    with closing(open_store(pipeline.positions)) as store:
        return [
            {"backend": name.partition("/")[0], "partition": name.partition("/")[2], **row}
            for name, row in Gaps(store, pipeline.name).rows().items()
        ]
