"""`penstock dead-letters`: what could not be published, why, and once more."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import file_argument, print_list
from penstock.config import load_pipeline
from penstock.consumer.tail.reader import Since, parse_start
from penstock.model.errors import Malformed, Rejected, SettingsError
from penstock.service.actions import Operated
from penstock.service.actions import replay as replay_letter
from penstock.sinks import KeepsLetters


@click.group("dead-letters")
def command() -> None:
    """Show, and publish once more, the changes that could not be published.

    A change that cannot be decoded, encoded or stored is in the dead-letter stream of its
    pipeline's stream (STREAM_DLQ), and everything else flows.
    """


@command.command("list")
@file_argument
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@click.option("--table", help="Only of this schema.table.")
@click.option("--reason", help="Only with this reason, such as too-large.")
@click.option("--since", help="Only those stored since then: 10m (ago), or an ISO 8601 time.")
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

    Its raw bytes are base64. They are row data.
    """
    click.echo(
        json.dumps(Operated.by_command(load_pipeline(file)).letters.dead_letter(id), indent=2)
    )


@command.command("replay")
@file_argument
@click.argument("id", required=False)
@click.option("--all", "everything", is_flag=True, help="Every dead letter, oldest first.")
@click.option("--table", help="With --all: only of this schema.table.")
@click.option("--reason", help="With --all: only with this reason.")
@click.option("--since", help="With --all: only those stored since then.")
@click.option("--force", is_flag=True, help="Also where the target has later changes of its row.")
def replay(
    *,
    file: Path,
    id: str | None,
    everything: bool,
    table: str | None,
    reason: str | None,
    since: str | None,
    force: bool,
) -> None:
    """Publish a dead letter's change after all, and take the letter away.

    It is published after what the stream has by now, not where it belonged, with the event id
    that it always had. With a sink of tables it is refused where its row has later changes. What
    cannot be published stays, and the exit code is 1.
    """
    if (id is None) is not everything:
        raise SettingsError("no dead letter is named", "cli", hint="name an ID, or give --all")
    on = Operated.by_command(load_pipeline(file))
    chosen = [str(each["id"]) for each in _chosen(on.letters, table, reason, since)]
    if sum(not _replayed(on, each, force=force) for each in (chosen if id is None else [id])):
        raise SystemExit(1)


def _replayed(on: Operated, id: str, *, force: bool) -> bool:
    letter = on.letters.dead_letter(id)
    try:
        done = replay_letter(on, id, force=force)
    except (Malformed, Rejected) as error:
        click.echo(f"{letter['id']}: {error}", err=True)
        return False
    known = " (it was there already)" if done["duplicate"] else ""
    where = f"message {done['sequence']}" if "sequence" in done else f"in {done['target']}"
    click.echo(f"{letter['id']}: {letter['event_id']} is {where}{known}")
    return True


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
