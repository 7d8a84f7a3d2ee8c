"""`penstock tail`: prints the changes of a stream as they come."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from penstock.cli.options import (
    is_typed,
    nats_login,
    published_by,
    settings_of,
    settings_over,
)
from penstock.consumer.tail.lines import json_line, line
from penstock.consumer.tail.reader import Message, TailReader, parse_start
from penstock.model.errors import Malformed
from penstock.sinks.subject import parse_template


@click.command("tail")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--url",
    envvar="NATS_URL",
    default="nats://127.0.0.1:4222",
    show_default=True,
    help="NATS server, with user:password@ if needed (or NATS_URL).",
)
@click.option("--stream", default="CDC", show_default=True, help="JetStream stream.")
@click.option(
    "--subject",
    default=">",
    show_default=True,
    help="Only subjects that match, such as 'cdc.users.>'.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines, whatever the encoding.")
@click.option(
    "--from",
    "start",
    default="-10",
    show_default=True,
    help="all, new, 1234 (a stream sequence), -10 (the last ten), 10m (ago) or an ISO 8601 time.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many changes.")
@click.option("--follow/--no-follow", default=True, help="Wait at the end of the stream, or stop.")
@nats_login
def command(
    *,
    file: Path | None,
    url: str,
    stream: str,
    subject: str,
    as_json: bool,
    start: str,
    count: int | None,
    follow: bool,
    **login: str | None,
) -> None:
    """Print the changes of a stream, one a line.

    With a pipeline FILE, its sink names the server, the login, the stream and the subjects. An
    option overrides the file; an environment variable does not.

    The command does not affect other consumers.
    """
    first = parse_start(start, datetime.now(UTC))
    if file is None:
        server = settings_of(url, login)
    else:
        _, sink = published_by(file)
        server = settings_over(sink.nats, url, login)
        if not is_typed("stream"):
            stream = sink.stream
            subject = subject if is_typed("subject") else parse_template(sink.subject).wildcard
    reader = TailReader(server, stream, subject=subject, start=first)
    console = Console(highlight=False)
    try:
        with reader:
            for message in _messages(reader, count, follow):
                if as_json:
                    click.echo(json_line(message))
                elif console.is_terminal:  # it gets what fits, a pipe the whole line
                    console.print(line(message))
                else:
                    click.echo(line(message).plain)
    except KeyboardInterrupt:
        return


def _messages(reader: TailReader, count: int | None, follow: bool) -> Iterator[Message]:
    end = None if follow else reader.end()
    left = count if count is not None else sys.maxsize
    while left > 0 and not (end is not None and reader.sequence >= end):
        try:
            messages = reader.fetch(min(left, 500), timeout=1.0)
        except Malformed as error:
            click.echo(f"skipped: {error}", err=True)
            left -= 1
            continue
        for message in messages:
            if end is None or message.sequence <= end:
                yield message
        sys.stdout.flush()
        left -= len(messages)
        if end is not None and reader.pending == 0:
            return
