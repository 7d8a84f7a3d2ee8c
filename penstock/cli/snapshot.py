"""`penstock snapshot`: asks the running service for snapshots, and watches them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.cli.options import columns, file_argument, json_option, overrides, say, state_option
from penstock.config import Pipeline, load_pipeline
from penstock.model.errors import Unavailable
from penstock.snapshots.asking import cancel_snapshot, init_stream, request_snapshot
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.options import SnapshotOptions
from penstock.snapshots.records import Records, RunRecord

_EVERY = 0.3  # seconds
_SILENT = 60.0  # seconds without a change of a record until the service counts as gone


@click.command("snapshot")
@file_argument
@click.argument("words", metavar="[list | cancel ID | TABLE...]", nargs=-1)
@click.option("--no-wait", is_flag=True, help="Return when the snapshots are accepted.")
@json_option("JSON, one line for each snapshot.")
@click.option("--where", metavar="SQL", help="Only rows that meet a condition.")
@click.option("--columns", metavar="NAME,...", help="Only these columns; they must have the key.")
@click.option("--chunk-rows", type=click.IntRange(min=1), help="Most rows of a chunk.")
@click.option("--chunk-bytes", metavar="SIZE", help="Most bytes of a chunk, such as 256KiB.")
@click.option(
    "--reload/--no-reload",
    default=True,
    help="Mirrors that have a table load it again from its snapshot.",
)
@state_option
def command(
    *, file: Path, words: Sequence[str], no_wait: bool, as_json: bool, reload: bool,
    state: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Take snapshots of tables of the running pipeline in FILE.

    \b
    penstock snapshot FILE TABLE...    take one of each, and wait until they end
    penstock snapshot FILE list        those of the last seven days
    penstock snapshot FILE cancel ID

    A TABLE is `table`, `schema.table` or `backend.schema.table`. Its rows become chunks in the
    stream INIT, and a meta message with the place after which changes apply. Mirrors that have the
    table load it again, unless --no-reload is given. They never load a partial snapshot (--where,
    --columns).
    """
    wanted = {name: value for name, value in options.items() if value is not None}
    if reload and not wanted.keys() & {"where", "columns"}:
        wanted["reload"] = True
    if "columns" in wanted:
        wanted["columns"] = [name.strip() for name in wanted["columns"].split(",")]
    pipeline = load_pipeline(file, overrides=overrides(state))
    with init_stream(pipeline) as stream:
        match words:
            case () | ("list",):
                _list(Records(stream.connection, pipeline.name).all(), as_json=as_json)
            case ("cancel", snapshot_id):
                cancel_snapshot(stream, pipeline, snapshot_id)
                text = f"{snapshot_id} is being cancelled"
                say({"cancelled": snapshot_id}, text, as_json=as_json)
            case _:
                SnapshotOptions.read(wanted)
                ids = [request_snapshot(stream, pipeline, table, wanted) for table in words]
                if not no_wait:
                    _watch(stream, pipeline, ids, shown=not as_json)
                records = Records(stream.connection, pipeline.name)
                _report([record for one in ids if (record := records.get(one))], as_json=as_json)


def _watch(stream: InitStream, pipeline: Pipeline, ids: list[str], *, shown: bool) -> None:
    """Until all have ended; an id whose run was taken up by another service becomes its id."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rows]:,} rows"),
        TimeElapsedColumn(), console=Console(stderr=True), disable=not shown,
    )  # fmt: skip
    with bar:
        lines = [bar.add_task(one, total=None, rows=0) for one in ids]
        seen: dict[str, tuple[RunRecord | None, float]] = {}
        while True:
            records, ended = Records(stream.connection, pipeline.name), 0
            for number, one in enumerate(ids):
                record = records.get(one)
                if record is None or record != seen.get(one, (None, 0.0))[0]:
                    seen[one] = record, time.monotonic()
                if record is None or time.monotonic() - seen[one][1] > _SILENT:
                    raise Unavailable(
                        f"the record of {one} has not changed for {_SILENT:.0f} s",
                        "cli",
                        hint="it takes the snapshot up when it is started again",
                    )
                if record.state == "replaced":
                    ids[number] = record.by
                    continue
                bar.update(
                    lines[number], description=".".join(record.name), total=record.ranges or None,
                    completed=record.done, rows=record.rows,
                )  # fmt: skip
                ended += record.has_ended
            if ended == len(ids):
                return
            time.sleep(_EVERY)


def _report(records: Sequence[RunRecord], *, as_json: bool) -> None:
    for record in records:
        if as_json:
            click.echo(orjson.dumps(record))
        elif record.state == "done":
            click.echo(
                f"{'.'.join(record.name)}: {record.rows:,} rows in {record.chunks} chunks at"
                f" {record.position} ({record.snapshot_id})"
            )
        elif not record.error:
            click.echo(f"{'.'.join(record.name)}: {record.state} ({record.snapshot_id})")
    if failed := [record for record in records if record.error]:
        texts = "; ".join(f"{'.'.join(one.name)}: {one.error}" for one in failed)
        raise Unavailable(texts, "cli", hint=failed[0].hint)


def _list(records: Sequence[RunRecord], *, as_json: bool) -> None:
    if as_json:
        for record in records:
            click.echo(orjson.dumps(record))
        return
    if not records:
        click.echo("no snapshots")
        return
    head = ("id", "table", "state", "rows", "chunks", "position", "error")
    cells = [
        [
            one.snapshot_id, ".".join(one.name), one.state, str(one.rows), str(one.chunks),
            one.position or "-", one.error or "-",
        ]
        for one in records
    ]  # fmt: skip
    click.echo(columns(head, cells))
