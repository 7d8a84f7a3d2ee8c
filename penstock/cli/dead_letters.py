"""`penstock dead-letters`: what could not be published, why, and once more."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import file_argument, json_list, print_json, print_list
from penstock.config import load_pipeline
from penstock.consumer.tail.reader import Since, parse_start
from penstock.model.errors import Malformed, Rejected, SettingsError
from penstock.service.actions import Operated
from penstock.service.actions import replay as replay_letter
from penstock.sinks import KeepsLetters


@click.group("dead-letters")
def command() -> None:
    """Show and replay changes that could not be published.

    A change that cannot be decoded, encoded or stored goes to the dead-letter stream of its
    pipeline's stream (STREAM_DLQ), and the others go on.
    """


@command.command("list")
@file_argument
@json_list
@click.option("--table", help="Only letters of this schema.table.")
@click.option("--reason", help="Only letters with this reason, such as too-large.")
@click.option("--since", help="Only letters stored since then: 10m (ago), or an ISO 8601 time.")
def list_(
    *, file: Path, as_json: bool, table: str | None, reason: str | None, since: str | None
) -> None:
    """List the dead letters of the pipeline in FILE, oldest first."""
    rows = list(_chosen(Operated.by_command(load_pipeline(file)).letters, table, reason, since))
    cells = [
        (
            str(row["id"]), row["stored_at"][:19], row["backend"], row["table"] or "-",
            row["position"], row["reason"], f"{row['raw_bytes']}{' (cut)' * row['truncated']}",
        )
        for row in rows
    ]  # fmt: skip
    head = ("id", "stored", "backend", "table", "position", "reason", "bytes")
    print_list(rows, as_json=as_json, none="no dead letters", head=head, cells=cells)


@command.command("show")
@file_argument
@click.argument("id")
def show(*, file: Path, id: str) -> None:
    """Show one dead letter as JSON; ID is its number, or an event id.

    Its bytes are base64. They are row data.
    """
    print_json(Operated.by_command(load_pipeline(file)).letters.dead_letter(id))


@command.command("replay")
@file_argument
@click.argument("id", required=False)
@click.option("--all", "everything", is_flag=True, help="Every dead letter, oldest first.")
@click.option("--table", help="With --all: only letters of this schema.table.")
@click.option("--reason", help="With --all: only letters with this reason.")
@click.option("--since", help="With --all: only letters stored since then.")
@click.option("--force", is_flag=True, help="Also if the target has later changes of the row.")
@json_list
def replay(
    *,
    file: Path,
    id: str | None,
    everything: bool,
    table: str | None,
    reason: str | None,
    since: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Publish a dead letter's change again, and remove the letter.

    The change comes after everything in the stream, with its own event id. A sink of tables refuses
    a change if its row has later changes. A letter that still cannot be published stays, and the
    exit code is 1.
    """
    if (id is None) is not everything:
        raise SettingsError("no dead letter is named", "cli", hint="name an ID, or give --all")
    on = Operated.by_command(load_pipeline(file))
    chosen = [str(each["id"]) for each in _chosen(on.letters, table, reason, since)]
    found = []
    for each in chosen if id is None else [id]:
        found.append(_replayed(on, each, force=force))
        if not as_json:
            _print(found[-1])
    if as_json:
        print_json(found)
    if any(each["error"] for each in found):
        raise SystemExit(1)


def _replayed(on: Operated, id: str, *, force: bool) -> dict[str, Any]:
    """What came of it; `error` is empty where it was stored."""
    letter = on.letters.dead_letter(id)
    known = {"id": letter["id"], "event_id": letter["event_id"]}
    try:
        return {**known, **replay_letter(on, id, force=force), "error": ""}
    except (Malformed, Rejected) as error:
        return {**known, "error": str(error)}


def _print(done: Mapping[str, Any]) -> None:
    if done["error"]:
        click.echo(f"{done['id']}: {done['error']}", err=True)
        return
    known = " (it was there already)" if done["duplicate"] else ""
    where = f"message {done['sequence']}" if "sequence" in done else f"in {done['target']}"
    click.echo(f"{done['id']}: {done['event_id']} is {where}{known}")


def _chosen(
    sink: KeepsLetters, table: str | None, reason: str | None, since: str | None
) -> Iterator[Mapping[str, Any]]:
    begin = _time(since) if since else None
    for letter in sink.dead_letters():
        fits = table in (None, letter["table"]) and reason in (None, letter["reason"])
        if fits and (begin is None or datetime.fromisoformat(letter["stored_at"]) >= begin):
            yield letter


def _time(text: str) -> datetime:
    start = parse_start(text, datetime.now(UTC))
    if not isinstance(start, Since):
        raise SettingsError(
            f"{text!r} is no time", "cli", hint="write 10m (ago), or 2026-01-31T12:00"
        )
    return start.time
