"""`penstock reload`: a table of a sink that keeps tables is loaded anew from its source."""

from pathlib import Path

import click

from penstock.cli.options import file_argument
from penstock.config import load_pipeline
from penstock.model.errors import SettingsError
from penstock.sinks import LoadsTables


@click.command("reload")
@file_argument
@click.argument("table")
@click.option("--sid", help="Of this source alone: its sid, or its slot where it has none.")
def command(*, file: Path, table: str, sid: str | None) -> None:
    """Load TABLE (`table` or `schema.table` of the source) anew.

    Rows of the source that are in the target are deleted, and read again by the pipeline, at once
    if it runs; changes meanwhile are kept, and applied then. Other tables go on. An `append` keeps
    its rows, and a `history` its versions, which end where the row is gone.
    """
    pipeline = load_pipeline(file)
    sink: object = pipeline.sink.sink()
    if not isinstance(sink, LoadsTables):
        raise SettingsError(
            f"the sink {pipeline.sink.type} keeps no tables",
            hint="penstock snapshot FILE TABLE takes its rows",
        )
    for name in sink.reload(table, sid):
        click.echo(f"{name} is loaded anew")
