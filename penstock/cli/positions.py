"""`penstock positions`: where a pipeline has got to, as its store has it, and changing that.

Rows are changed while this command owns the pipeline's lease, as a running instance would: so never
under one that runs, and none starts meanwhile.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from penstock.cli.listing import Rows, print_list
from penstock.cli.positions_edit import Editing, StoredRow, read_export
from penstock.cli.run import state_option
from penstock.config import Pipeline, load_pipeline
from penstock.errors import SettingsError

# Action -> the arguments after it, which are all needed.
_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "list": (),
    "show": ("PARTITION",),
    "set": ("PARTITION", "BOOKMARK"),
    "delete": ("PARTITION",),
    "export": (),
    "import": ("EXPORT",),
}


@click.command("positions")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("action", type=click.Choice(list(_ACTIONS)), default="list")
@click.argument("arguments", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="`list`: a JSON list.")
@click.option("--yes", is_flag=True, help="`set`, `delete`, `import`: do not ask.")
@state_option
def command(
    *,
    file: Path,
    action: str,
    arguments: Sequence[str],
    as_json: bool,
    yes: bool,
    state: Path | None,
) -> None:
    """Show and change the stored positions of the pipeline in FILE.

    Everything up to a position is durable in the sink, and a start resumes after it.

    \b
    penstock positions FILE                        all of them
    penstock positions FILE show PARTITION         one, with its whole bookmark
    penstock positions FILE set PARTITION BOOKMARK
    penstock positions FILE delete PARTITION
    penstock positions FILE export                 all bookmarks, as JSON
    penstock positions FILE import EXPORT          what export wrote (- is standard input)

    PARTITION is BACKEND/PARTITION as `list` shows it, BOOKMARK a place or JSON as `show` prints it.
    What runs keeps its positions: stop the pipeline before they are changed.
    """
    if len(arguments) != len(_ACTIONS[action]):
        wanted = " ".join(("positions FILE", action, *_ACTIONS[action]))
        raise SettingsError(f"`{action}` got {len(arguments)} arguments", hint=f"penstock {wanted}")
    pipeline = load_pipeline(file, overrides={"state": str(state)} if state else {})
    if action == "list":
        print_list(
            stored(pipeline), as_json=as_json, none="no positions are stored yet", table=_table
        )
        return
    with Editing(pipeline) as editing:
        _DO[action](editing, tuple(arguments), yes)


def stored(pipeline: Pipeline) -> list[dict[str, Any]]:
    """One row for each backend and partition, by name; raises Unavailable, SettingsError."""
    with Editing(pipeline) as editing:
        return [_row(row) for row in editing.rows()]


def _show(editing: Editing, arguments: Sequence[str], _: bool) -> None:
    row = editing.row(arguments[0])
    bookmark = None if row.bookmark is None else row.bookmark.to_json()
    about = {"owner": row.lease.owner, "revision": row.lease.revision}
    click.echo(json.dumps({"partition": row.name, "bookmark": bookmark, **about}, indent=2))


def _set(editing: Editing, arguments: Sequence[str], yes: bool) -> None:
    name, text = arguments
    bookmark = editing.parse(name, text)
    before = editing.find(name)
    was = before.lease.continuation if before is not None else "no position"
    now = json.dumps(bookmark.to_json())
    _ask(yes, f"{name}: {was} becomes {now}. Changes between the two are lost or repeated.")
    editing.write({name: bookmark})
    click.echo(f"{name} is at {now}")


def _delete(editing: Editing, arguments: Sequence[str], yes: bool) -> None:
    row = editing.row(arguments[0])
    _ask(yes, f"{row.name}: {row.lease.continuation} is deleted. The next start begins anew there.")
    editing.delete(row)
    click.echo(f"{row.name} has no position any more")


def _export(editing: Editing, _: Sequence[str], __: bool) -> None:
    click.echo(json.dumps(editing.export(), indent=2))


def _import(editing: Editing, arguments: Sequence[str], yes: bool) -> None:
    text = sys.stdin.read() if arguments[0] == "-" else None
    bookmarks = read_export(text if text is not None else _text(arguments[0]))
    for name in bookmarks:
        editing.verify(name)
    if arguments[0] == "-" and not yes:
        raise SettingsError(
            "no confirmation can be read while the export is standard input", hint="--yes"
        )
    _ask(yes, f"{len(bookmarks)} positions are written: {', '.join(bookmarks)}.")
    editing.write(bookmarks)
    click.echo(f"{len(bookmarks)} positions are written")


_DO: Mapping[str, Callable[[Editing, Sequence[str], bool], None]] = {
    "show": _show,
    "set": _set,
    "delete": _delete,
    "export": _export,
    "import": _import,
}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        raise SettingsError(f"can't read {path}: {error}", hint="name a file of `export`") from None


def _ask(yes: bool, what: str) -> None:
    if not yes:
        click.echo(what)
        click.confirm("Go on?", abort=True)


def _row(row: StoredRow) -> dict[str, Any]:
    backend, _, partition = row.name.partition("/")
    # Written by something else: shown as unreadable.
    place = None if row.bookmark is None else str(row.bookmark.place or "")
    return {
        "backend": backend,
        "partition": partition,
        "place": place,
        "owner": row.lease.owner,
        "revision": row.lease.revision,
    }


def _table(rows: Rows) -> None:
    table = Table("backend", "partition", "place", "revision", box=None)
    for row in rows:
        place = row["place"] or ("unreadable" if row["place"] is None else "nothing yet")
        table.add_row(row["backend"], row["partition"], place, str(row["revision"]))
    Console(soft_wrap=True).print(table)
