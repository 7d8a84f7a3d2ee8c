"""`penstock dictionaries`: what single changes are compressed with, for each table."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from penstock.cli.options import file_argument, json_list, print_list
from penstock.config import load_pipeline
from penstock.consumer.training import Samples, samples, trained
from penstock.model.errors import SettingsError
from penstock.model.settings import parse_size
from penstock.nats.compression import DictionaryBucket, TableDictionary
from penstock.nats.connection import Connection
from penstock.sinks.server import SinkServer


@click.group("dictionaries")
def command() -> None:
    """Train and show the dictionaries that compress single changes.

    A pipeline uses the newest one of each table from its next start on, if its file has
    sink.compression: zstd and sink.dictionaries: true.
    """


@command.command("train")
@file_argument
@click.argument("tables", nargs=-1)
@click.option("--messages", default=20_000, show_default=True, type=click.IntRange(min=1),
              help="How many of the stream's newest messages the command reads.")  # fmt: skip
@click.option("--size", default="16KiB", show_default=True, help="Most bytes of a dictionary.")
@json_list
def train(*, file: Path, tables: Sequence[str], messages: int, size: str, as_json: bool) -> None:
    """Train a dictionary for each TABLE of the pipeline in FILE, or for all with enough messages.

    A TABLE is `table`, `schema.table` or `backend.schema.table`. Dictionaries hold pieces of rows.
    """
    sink, found = _server(file), []
    bodies = samples(sink.nats, sink.stream, messages)
    for table in _chosen(tables, bodies):
        try:
            found.append(trained(table, bodies[table], _bytes(size)))
        except SettingsError as error:
            if tables:
                raise
            click.echo(f"left out: {error.message}", err=True)
    with closing(Connection(sink.nats)) as connection:
        connection.open()
        bucket = DictionaryBucket(connection)
        bucket.put(sink.stream, found, replicas=sink.replicas, storage=sink.storage)
    _print([one for one, _ in found], as_json=as_json)
    if not sink.dictionaries:
        click.echo("unused yet: set sink.compression: zstd and sink.dictionaries: true", err=True)


@command.command("list")
@file_argument
@json_list
def list_(*, file: Path, as_json: bool) -> None:
    """List the dictionaries that the pipeline in FILE uses from its next start on."""
    sink = _server(file)
    with closing(Connection(sink.nats)) as connection:
        connection.open()
        found = DictionaryBucket(connection).tables(sink.stream)
    _print(found, as_json=as_json)


def _server(file: Path) -> SinkServer:
    sink = load_pipeline(file).sink
    if (server := sink.server()) is None:
        raise SettingsError(
            f"the sink {sink.type} compresses nothing", "cli", hint="use sink.type: jetstream"
        )
    return server


def _bytes(text: str) -> int:
    try:
        size = int(parse_size(text))
    except ValueError as error:
        raise SettingsError(f"--size: {error}", "cli") from None
    if not 256 <= size <= 2**19:
        raise SettingsError(
            "--size is between 256B and 512KiB", "cli", hint="16KiB is enough for most"
        )
    return size


def _chosen(names: Sequence[str], bodies: Samples) -> list[tuple[str, str, str]]:
    """The tables that are called so; all of them without names."""
    if not names:
        return sorted(bodies)
    found = []
    for name in names:
        those = [table for table in bodies if name in {".".join(table[n:]) for n in range(3)}]
        if len(those) != 1:
            what = "may be one of several tables" if those else "has no message among those"
            there = ", ".join(sorted(".".join(table) for table in those or bodies)) or "none"
            raise SettingsError(f"{name} {what}", "cli", hint=f"there are: {there}")
        found += those
    return found


def _print(found: Sequence[TableDictionary], *, as_json: bool) -> None:
    rows = [asdict(one) for one in found]
    head = ("table", "id", "bytes", "messages", "smaller", "without it")
    cells = [
        [
            f"{one['backend']}.{one['namespace']}.{one['table']}", one["id"], str(one["size"]),
            str(one["samples"]), f"{one['ratio']:.1f}x", f"{one['plain_ratio']:.1f}x",
        ]
        for one in rows
    ]  # fmt: skip
    print_list(rows, as_json=as_json, none="no dictionaries", head=head, cells=cells)
