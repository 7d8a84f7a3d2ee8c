"""`penstock tables`: which tables are followed, which are suspended and why, and resuming them;
`penstock reload`: a table of a sink that keeps tables is loaded anew from its source."""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import file_argument, json_list, json_option, print_list, say
from penstock.config import Backend, Pipeline, load_pipeline
from penstock.model.errors import PenstockError, SettingsError
from penstock.service.actions import Operated, ResumeTableAction, SuspendTableAction
from penstock.sinks.loading import LoadsTables


@click.group("tables")
def command() -> None:
    """Show the tables of a pipeline, and resume suspended ones.

    penstock suspends a table that it cannot follow: it counts the table's changes, and does not
    publish them. Other tables go on. The table resumes when the cause is gone, or by command.
    """


@command.command("list")
@file_argument
@json_list
def list_(*, file: Path, as_json: bool) -> None:
    """List the tables of the pipeline in FILE, each with its state."""
    rows = list(_rows(load_pipeline(file)))
    shown = _OF_TABLES if any("sid" in row for row in rows) else _FIELDS
    if any("version" in row for row in rows):
        shown = shown | _OF_FILES
    cells = [[_cell(row.get(name)) for name in shown.values()] for row in rows]
    print_list(rows, as_json=as_json, none="no tables", head=tuple(shown), cells=cells)
    for row in () if as_json else rows:
        if row["state"] in ("suspended", "waiting") and row.get("error"):
            click.echo(f"{row['table']}: {row['error']}")
        if nulled := row.get("nulled"):
            click.echo(f"{row['table']}: null for what does not fit: {', '.join(nulled)}")


@command.command("resume")
@file_argument
@click.argument("table")
@click.option("--backend", help="Which backend, if several have such a table.")
@click.option("--snapshot", is_flag=True, help="Take its rows anew, too, which mends the hole.")
@json_option()
def resume(*, file: Path, table: str, backend: str | None, snapshot: bool, as_json: bool) -> None:
    """Follow a suspended TABLE (schema.table) again, from its next change on.

    Skipped changes stay missing in the stream; `penstock tables list` shows from which place to
    which.
    """
    action = ResumeTableAction(table=table, backend=backend, snapshot=snapshot)
    done = action.run(Operated.by_command(load_pipeline(file)))
    count, fate = done["skipped"], "were skipped"
    if "held" in done:
        count, fate = done["held"], "were held and are applied"
    say(
        done,
        f"{table} resumes with its next change; {count} changes from "
        f"{done['first_skipped']} to {done['last_skipped']} {fate}",
        as_json=as_json,
    )


@command.command("suspend")
@file_argument
@click.argument("table")
@click.option("--backend", help="The table's backend, if there are several.")
@json_option()
def suspend(*, file: Path, table: str, backend: str | None, as_json: bool) -> None:
    """Stop following TABLE (schema.table) from its next change on, until `resume`.

    penstock counts the table's changes, and a stream lacks them; a sink of tables holds them.
    """
    action = SuspendTableAction(table=table, backend=backend)
    done = action.run(Operated.by_command(load_pipeline(file)))
    say(done, f"{table} is {done['state']}", as_json=as_json)


@click.command("reload")
@file_argument
@click.argument("table")
@click.option("--sid", help="Only this source: its sid, or its slot if it has none.")
@json_option()
def reload(*, file: Path, table: str, sid: str | None, as_json: bool) -> None:
    """Load TABLE (`table` or `schema.table` of the source) anew.

    penstock deletes the source's rows in the target, and reads them again, at once if the pipeline
    runs. It keeps changes meanwhile, and applies them afterwards. Other tables go on. An `append`
    keeps its rows, and a `history` its versions; those of rows that are gone end.
    """
    pipeline = load_pipeline(file)
    sink: object = pipeline.sink.sink()
    if not isinstance(sink, LoadsTables):
        raise SettingsError(
            f"the sink {pipeline.sink.type} keeps no tables",
            "cli",
            hint="penstock snapshot FILE TABLE takes its rows",
        )
    names = list(sink.reload(table, sid))
    lines = (f"{name} is loaded anew" for name in names)
    say({"reloaded": names}, "\n".join(lines), as_json=as_json)


def _rows(pipeline: Pipeline) -> Iterator[Mapping[str, Any]]:
    known: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    # Of a sink of tables: one for each source.
    sink = Operated.by_command(pipeline).letters
    sizes = cache(partial(_size, sink))
    for each in sink.tables():
        of_ledger = {name: value for name, value in each.items() if name not in _OF_FILES.values()}
        row = of_ledger | dict(sizes(str(each.get("target"))))
        known.setdefault((each["backend"], each["table"]), []).append(row)
    keeps_all = any("sid" in each for same in known.values() for each in same)
    for backend in () if keeps_all else pipeline.backends:
        for name in _followed(backend):
            usual = {"backend": backend.name, "table": name, "state": "following"}
            yield from known.pop((backend.name, name), [usual])
    for same in known.values():
        yield from same


def _size(sink: object, target: str) -> Mapping[str, Any]:
    try:
        return sink.size(target) if isinstance(sink, LoadsTables) else {}
    except PenstockError as error:
        click.echo(f"{target}: {error}", err=True)
        return {}


def _followed(backend: Backend) -> list[str]:
    try:
        return [f"{schema}.{table}" for schema, table in backend.feed().tables() or ()]
    except PenstockError as error:
        click.echo(f"backend {backend.name}: {error}", err=True)
        return []


_FIELDS = {name: name for name in ("backend", "table", "state", "since", "reason", "skipped")} | {
    "from": "first_skipped",
    "to": "last_skipped",
}
# Of a sink of tables.
_OF_TABLES = {
    name: name for name in ("backend", "sid", "table", "state", "since", "reason", "held", "place")
}  # fmt: skip

_OF_FILES = {"last commit": "last_commit", "version": "version", "files": "files", "bytes": "bytes"}


def _cell(value: object) -> str:
    return "-" if value in (None, "") else str(value)
