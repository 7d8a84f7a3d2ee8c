"""`penstock mirror`: keeps copies of tables in SQLite or PostgreSQL."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.cli.options import (
    is_typed,
    json_option,
    nats_login,
    print_json,
    published_by,
    settings_of,
    settings_over,
)
from penstock.consumer.mirror.bootstrap import Loading
from penstock.consumer.mirror.replica import Replica
from penstock.consumer.mirror.tailing import ReplicaStatus
from penstock.model.errors import SettingsError, Unavailable
from penstock.process.processes import StopRequest, ending_at_signals

_BAR = 20  # characters


@click.command("mirror")
@click.argument("source", metavar="FILE|NATS_URL", envvar="NATS_URL")
@click.option("--url", help="NATS server, in place of the sink's in FILE.")
@click.option("--to", "target", required=True, help="sqlite:///mirror.db or postgresql://...")
@click.option(
    "--tables", help="With commas, such as users,sales.orders; default: all published ones."
)
@click.option("--once", is_flag=True, help="Stop when all that was published before is applied.")
@click.option(
    "--dropped",
    type=click.Choice(["drop", "keep"]),
    default="drop",
    show_default=True,
    help="Columns that the source drops: drop them, or keep them with their values.",
)
@click.option("--init", default="INIT", show_default=True, help="The stream of the snapshots.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@json_option("At the end a JSON list of the tables; progress on stderr.")
@nats_login
def command(
    *,
    source: str,
    url: str | None,
    target: str,
    tables: str | None,
    once: bool,
    dropped: str,
    init: str,
    quiet: bool,
    as_json: bool,
    **login: str | None,
) -> None:
    """Keep copies of tables: take snapshots of them, load these, and apply the changes.

    With a pipeline FILE, the file names the server, the login and the stream of the snapshots,
    unless an option overrides it, and the tables are those that the pipeline publishes. With a
    NATS_URL they are all tables that are published there.

    The pipeline must run while a table is loaded for the first time. A mirror that is started again
    continues after its last change. The messages name their encoding and layout. Ends with Ctrl-C
    or SIGTERM.
    """
    if Path(source).is_file() or source.endswith((".yaml", ".yml")):
        found, sink = published_by(Path(source))
        server, pipeline = settings_over(sink.nats, url, login), found.name
        init = init if is_typed("init") else found.snapshot.stream
    else:
        server, pipeline = settings_of(url or source, login), ""
    replica = Replica(
        server,
        target,
        pipeline=pipeline,
        tables=_names(tables),
        init=init,
        dropped="keep" if dropped == "keep" else "drop",
    )
    console = Console(stderr=True, quiet=quiet)
    shown = Live(console=console, refresh_per_second=4, transient=True)
    stop = StopRequest()  # the transaction that is open then is finished
    with ending_at_signals(lambda _: stop.set()), replica:
        with shown:
            replica.run(
                once=once,
                is_stopped=stop.is_set,
                report=lambda status: shown.update(lines(status, width=console.width)),
            )
        tables_left = [] if quiet and not as_json else list(left(replica))
        if as_json:
            print_json(tables_left)
        for each in () if as_json else tables_left:
            console.print(line_of(each), soft_wrap=True, highlight=False)


def _names(tables: str | None) -> list[str] | None:
    if tables is None:
        return None
    if not (names := [name.strip() for name in tables.split(",") if name.strip()]):
        raise SettingsError(
            "--tables names no table", "cli", hint="leave it out for all that there are"
        )
    return names


def left(replica: Replica) -> Iterator[dict[str, Any]]:
    """What the mirror has at its end: each table's rows (None where the target went away), and how
    far they are; `message` is None where a table is not loaded yet."""
    for table in replica.copies:
        try:
            rows: int | None = replica.count(table)
        except Unavailable:  # the target went away last
            rows = None
        where = {"message": table.sequence, "stream": table.stream}
        yield {"table": str(table.target), "rows": rows, **where}
    for loading in replica.status.loading:
        if not loading.problem:  # the error has it
            yield {"table": loading.name, "rows": loading.rows, "message": None, "stream": None}


def line_of(found: Mapping[str, Any]) -> str:
    """One of `left`, for people."""
    if found["message"] is None:
        return f"{found['table']}: not loaded yet, {found['rows']:,} rows so far"
    rows = "" if found["rows"] is None else f"{found['rows']:,} rows, "
    where = f"up to message {found['message']:,} of {found['stream']}"
    return f"{found['table']}: {rows}{where}"


def lines(status: ReplicaStatus, *, width: int) -> Text:
    """A bar for each table that is loaded, and how far the changes are."""
    rows = [_bar(loading) for loading in status.loading]
    if status.tables:
        rows.append(
            f"{status.tables} tables live, {status.changes:,} changes applied,"
            f" {status.behind:,} messages to go, {status.lag:.1f} s behind"
        )
    return Text("\n".join(row[:width] for row in rows), no_wrap=True)


def _bar(loading: Loading) -> str:
    if loading.problem:
        return f"{loading.name:<24} {loading.problem}"
    done = _BAR * loading.done // loading.ranges if loading.ranges else 0
    bar = "█" * done + "░" * (_BAR - done)
    return f"{loading.name:<24} {bar} {loading.rows:,} rows in {loading.chunks} chunks"
