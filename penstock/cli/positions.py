"""`penstock positions`: where a pipeline has got to, as its store has it, and changing that.

Rows are changed while this command owns the pipeline's lease, as a running instance would: so never
under one that runs, and none starts meanwhile.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import (
    OpsClient,
    columns,
    file_argument,
    json_option,
    load_deployment,
    print_json,
    print_list,
    say,
    state_option,
)
from penstock.cli.positions_edit import (
    Editing,
    StoredRow,
    about_owner,
    age_text,
    owner_text,
    read_export,
)
from penstock.config import Backend, Deployment
from penstock.model.errors import SettingsError
from penstock.model.position import PartitionId
from penstock.reading.remaining import Estimate, estimate

# Action -> the arguments after it, which are all needed.
_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "list": (),
    "show": ("PARTITION",),
    "set": ("PARTITION", "BOOKMARK"),
    "delete": ("PARTITION",),
    "release": ("PARTITION",),
    "export": (),
    "import": ("EXPORT",),
}


@click.command("positions")
@file_argument
@click.argument("action", type=click.Choice(list(_ACTIONS)), default="list")
@click.argument("arguments", nargs=-1)
@json_option("`list`: a JSON list; of a change what it has changed.")
@click.option("--yes", is_flag=True, help="`set`, `delete`, `import`: do not ask.")
@click.option("--now", is_flag=True, help="`release`: do not wait for a renewal by the owner.")
@click.option("--remaining", is_flag=True, help="`list`: how many changes are left, and the sum.")
@state_option
def command(
    *,
    file: Path,
    action: str,
    arguments: Sequence[str],
    as_json: bool,
    yes: bool,
    now: bool,
    remaining: bool,
    state: Path | None,
) -> None:
    """Show and change the stored positions of the pipeline in FILE.

    Everything up to a position is durable in the sink, and the next start resumes after it.

    \b
    penstock positions FILE                        all of them
    penstock positions FILE --remaining            how many changes are left, and the sum
    penstock positions FILE show PARTITION         one, with its whole bookmark
    penstock positions FILE set PARTITION BOOKMARK
    penstock positions FILE delete PARTITION
    penstock positions FILE release PARTITION      from an owner that has ended
    penstock positions FILE export                 all bookmarks, as JSON
    penstock positions FILE import EXPORT          what export wrote (- is standard input)

    PARTITION is BACKEND/PARTITION as `list` shows it, BOOKMARK a place or JSON as `show` prints it.
    The command does not change positions of a running pipeline: stop it, or the partition's owner,
    first.
    """
    if len(arguments) != len(_ACTIONS[action]):
        wanted = " ".join(("positions FILE", action, *_ACTIONS[action]))
        raise SettingsError(
            f"`{action}` got {len(arguments)} arguments", "cli", hint=f"penstock {wanted}"
        )
    pipeline = load_deployment(file, state)
    if action == "list" and remaining:
        with Editing(pipeline) as editing:
            _print_remaining(pipeline, editing.rows(), as_json=as_json)
        return
    if action == "list":
        rows = stored(pipeline)
        head = ("backend", "partition", "place", "owner", "age", "revision")
        print_list(
            rows, as_json=as_json, none="no positions are stored yet", head=head,
            cells=map(_cells, rows),
        )  # fmt: skip
        return
    with Editing(pipeline, lambda text: click.echo(text, err=True)) as editing:
        match (action, *arguments):
            case ("show", name):
                _show(editing.row(name))
            case ("set", name, text):
                _set(editing, name, text, yes=yes, as_json=as_json)
            case ("delete", name):
                _delete(editing, editing.row(name), yes=yes, as_json=as_json)
            case ("release", name):
                row = editing.row(name)
                editing.release(row, now=now)
                text = f"{row.name} has no owner" + (" any more" if row.lease.owner else "")
                say({"released": row.name, "owner": row.lease.owner}, text, as_json=as_json)
            case ("import", path):
                _import(editing, path, yes=yes, as_json=as_json)
            case _:
                print_json(editing.export())


def stored(pipeline: Deployment) -> list[dict[str, Any]]:
    """One row for each backend and partition, by name; raises Unavailable, SettingsError."""
    with Editing(pipeline) as editing:
        now = datetime.now(UTC)
        return [_row(row, now) for row in editing.rows()]


def _show(row: StoredRow) -> None:
    bookmark = None if row.bookmark is None else row.bookmark.to_json()
    about = {
        "owner": row.lease.owner,
        "properties": dict(row.lease.properties),
        "revision": row.lease.revision,
    }
    print_json({"partition": row.name, "bookmark": bookmark, **about})


def _set(editing: Editing, name: str, text: str, *, yes: bool, as_json: bool) -> None:
    bookmark = editing.parse(name, text)
    before = editing.find(name)
    was = before.lease.continuation if before is not None else "no position"
    now = json.dumps(bookmark.to_json())
    _ask(yes, f"{name}: {was} becomes {now}. Changes between the two are lost or repeated.")
    editing.write({name: bookmark})
    done = {"set": name, "bookmark": bookmark.to_json()}
    say(done, f"{name} is at {now}", as_json=as_json)


def _delete(editing: Editing, row: StoredRow, *, yes: bool, as_json: bool) -> None:
    _ask(yes, f"{row.name}: {row.lease.continuation} is deleted. The next start begins anew there.")
    editing.delete(row)
    say({"deleted": row.name}, f"{row.name} has no position any more", as_json=as_json)


def _import(editing: Editing, path: str, *, yes: bool, as_json: bool) -> None:
    bookmarks = read_export(sys.stdin.read() if path == "-" else _text(path))
    for name in bookmarks:
        editing.verify(name)
    if path == "-" and not yes:
        raise SettingsError(
            "no confirmation can be read while the export is standard input", "cli", hint="--yes"
        )
    _ask(yes, f"{len(bookmarks)} positions are written: {', '.join(bookmarks)}.")
    editing.write(bookmarks)
    text = f"{len(bookmarks)} positions are written"
    say({"written": list(bookmarks)}, text, as_json=as_json)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"can't read {path}: {error}", "cli", hint="name a file of `export`"
        ) from None


def _ask(yes: bool, what: str) -> None:
    if not yes:
        click.echo(what, err=True)
        click.confirm("Go on?", abort=True, err=True)


def _row(row: StoredRow, now: datetime) -> dict[str, Any]:
    backend, _, partition = row.name.partition("/")
    # Written by something else: shown as unreadable.
    place = None if row.bookmark is None else str(row.bookmark.place or "")
    return {
        "backend": backend,
        "partition": partition,
        "place": place,
        "ended": row.bookmark is not None and row.bookmark.ended,
        **about_owner(row.lease, now),
        "revision": row.lease.revision,
    }


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    place = row["place"] or ("unreadable" if row["place"] is None else "nothing yet")
    return (
        row["backend"], row["partition"], place + (" (ended)" if row["ended"] else ""),
        owner_text(row), age_text(row["age_seconds"]), row["revision"],
    )  # fmt: skip


def _print_remaining(pipeline: Deployment, stored: Sequence[StoredRow], *, as_json: bool) -> None:
    """Of all partitions that have not ended, or whose descendants are not stored yet, and in sum.
    `remaining` (changes) and `lag_seconds` may be null; `error`: why neither is known."""
    rows, totals = list[dict[str, Any]](), dict[str, int]()
    for backend in pipeline.backends:
        some, totals[backend.name] = _of_backend(pipeline, backend, stored)
        rows += some
    total = sum(totals.values())
    # Of a partition nothing is known, or it has ended and has descendants that may have more.
    at_least = any(row["remaining"] is None for row in rows)
    if as_json:
        found = {"remaining": total, "at_least": at_least, "backends": totals, "partitions": rows}
        print_json(found)
        return
    if cells := [(row["backend"], row["partition"], _remaining_text(row)) for row in rows]:
        click.echo(columns(("backend", "partition", "remaining"), cells))
    click.echo(f"in sum: at least {total}" if at_least else f"in sum: {total}")


def _of_backend(
    pipeline: Deployment, backend: Backend, stored: Sequence[StoredRow]
) -> tuple[list[dict[str, Any]], int]:
    """Its rows, and its sum; see `Estimate`."""
    prefix = f"{backend.name}/"
    mine = {
        PartitionId(row.name.removeprefix(prefix)): row.bookmark
        for row in stored
        if row.name.startswith(prefix)
    }
    bookmarks = {name: each for name, each in mine.items() if each is not None}
    errors = {name: "the stored position can't be read" for name in mine if name not in bookmarks}
    found, lags = estimate(backend.feed(), bookmarks), dict[str, float]()
    if found is None:
        lags = _lags(pipeline, backend.name) if bookmarks else {}
        why = f"{backend.type} has no number of changes, and no running pipeline knows a lag"
        failed = {name: why for name in bookmarks if name not in lags}
        found = Estimate(counts={}, failed=failed, awaited=(), total=1)
    errors |= found.failed
    errors |= dict.fromkeys(found.awaited, "it has ended, and its descendants have no position yet")
    rows = [
        {
            "backend": backend.name,
            "partition": name,
            "remaining": found.counts.get(name),
            "lag_seconds": lags.get(name),
            "error": errors.get(name, "") if name not in found.counts else "",
        }
        for name, bookmark in mine.items()
        if bookmark is None or not bookmark.ended or name in found.awaited
    ]
    return rows, max(found.total, 1) if errors else found.total


def _lags(pipeline: Deployment, backend: str) -> dict[str, float]:
    """Partition -> seconds, as the running pipeline reports them: where a source cannot be asked
    for a number of changes, only what reads it knows a lag."""
    ops = pipeline.ops
    answer = OpsClient.of(ops).ask("/status?partitions=all") if ops.port else {}
    if answer.get("name") != pipeline.name:
        return {}
    return {
        str(row["partition"]): float(row["lag_seconds"])
        for each in answer.get("backends", [])
        if each.get("name") == backend
        for row in each.get("partitions", [])
        if row.get("lag_seconds") is not None
    }


def _remaining_text(row: Mapping[str, Any]) -> str:
    if row["remaining"] is not None:
        return str(row["remaining"])
    if row["lag_seconds"] is not None:
        return f"{row['lag_seconds']:.1f} s late; how many changes is not known"
    return f"not known: {row['error']}"
