"""`penstock check`: preflight, one line for each finding, with its remedy."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import click

from penstock.cli.options import (
    file_argument,
    json_option,
    load_deployment,
    print_json,
    state_option,
)
from penstock.cli.positions_edit import Editing
from penstock.cli.preflight import check_host, check_machine
from penstock.config import Backend, Deployment, Pipeline, secrets_of
from penstock.feeds import Feed, HasSources
from penstock.model.errors import PenstockError
from penstock.model.finding import Finding, Level, failed, finding
from penstock.model.position import ROWS, Bookmarks, PartitionId
from penstock.model.problems import blot
from penstock.sinks.loading import LoadsTables
from penstock.snapshots.retention import check_snapshots

_LARGER = (
    "raise max_payload in the nats-server's configuration (64MB at most), and the stream's"
    " --max-msg-size; or leave images out"
)
_COLORS: dict[Level, str] = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command("check")
@file_argument
@json_option("A JSON list of findings.")
@click.option("--notify", is_flag=True, help="Also post a test to each webhook of `ops.notify`.")
@state_option
def command(*, file: Path, as_json: bool, notify: bool, state: Path | None) -> None:
    """Verify everything that could keep the pipeline in FILE from running, or make it lose data.
    FILE may be a processor's.

    Exits with 1 if there is an error; a warning is no error.
    """
    pipeline = load_deployment(file, state)
    shown: list[Finding] = []
    found = chain(findings(pipeline), _notify(pipeline) if notify else ())
    for each in _clean(found, secrets_of(pipeline)):
        shown.append(each)
        if not as_json:
            _print(each)
    if as_json:
        print_json([asdict(each) for each in shown])
    else:
        _summary(shown)
    if any(each.level == "error" for each in shown):
        raise SystemExit(1)


def findings(deployment: Deployment) -> Iterator[Finding]:
    """This machine's, each backend's, and the sink's, as they are found."""
    pipeline = deployment if isinstance(deployment, Pipeline) else None
    if pipeline is not None:
        yield from check_machine(pipeline, os.environ)
    else:
        yield from check_host(deployment)
    for backend in deployment.backends:
        yield from _of(f"backend {backend.name}", _source(deployment, backend))
    if pipeline is not None:
        sink = pipeline.sink
        for problem in pipeline.map_problems:
            yield finding(
                "error", "sink.map", problem, "correct it; until then it is left out",
                code="cli.sink-map",
            )  # fmt: skip
        yield from _of(f"sink {sink.type}", _sink(pipeline))
        yield from _sizes(pipeline)
        with suppress(PenstockError):  # the sink's own findings say it
            yield from check_snapshots(pipeline)


def _sizes(pipeline: Pipeline) -> Iterator[Finding]:
    """Documents that the sink has no room for."""
    server = pipeline.sink.server()
    sizes = {
        backend.name: size
        for backend in pipeline.backends
        if (size := backend.feed().largest_document) is not None
    }
    if not sizes or server is None:
        return
    with suppress(PenstockError):  # the sink's own findings say it
        room = server.largest_message()
        for name, size in sizes.items():
            if size > room:
                yield finding(
                    "warning", f"backend {name}: document size",
                    f"documents of up to {size:,} bytes, and room for {room:,} in a"
                    " message: a larger change becomes a dead letter", _LARGER,
                    code="cli.document-size",
                )  # fmt: skip


def _sink(pipeline: Pipeline) -> Iterator[Finding]:
    sink = pipeline.sink.sink()
    found = list(sink.check())
    yield from found
    if isinstance(sink, LoadsTables) and any(each.level == "ok" for each in found):
        for backend in pipeline.backends:
            with suppress(PenstockError):  # the feed's own findings say it
                feed, loads = backend.feed(), pipeline.snapshot.initial is not False
                partitions = _loaded(feed) if loads else []
                schemas = [each.within(backend.name) for each in feed.schemas_to_be()]
                yield from sink.check_tables(backend.name, schemas, partitions)
                if isinstance(feed, HasSources):
                    yield from feed.check_left(sink.left(backend.name))


def _loaded(feed: Feed) -> Sequence[PartitionId]:
    """The partitions whose tables are loaded once."""
    return [ROWS] if feed.shares_tables else [each.partition for each in feed.partitions()]


def _source(pipeline: Deployment, backend: Backend) -> Iterator[Finding]:
    feed = backend.feed()
    found = list(feed.check())
    if feed.checks_bookmarks and all(each.level != "error" for each in found):
        for partition, bookmark in _saved(pipeline, backend).items():
            found += feed.check_bookmark(partition, bookmark)
    yield from found


def _saved(pipeline: Deployment, backend: Backend) -> Bookmarks:
    """The saved bookmarks of a backend; none where the store keeps none, or is not there."""
    if pipeline.positions.startswith("memory:"):
        return {}
    prefix = f"{backend.name}/"
    with Editing(pipeline) as stored:
        return {
            PartitionId(row.name.removeprefix(prefix)): row.bookmark
            for row in stored.rows()
            if row.name.startswith(prefix) and row.bookmark is not None
        }


def _of(owner: str, found: Iterator[Finding]) -> Iterator[Finding]:
    try:
        for each in found:
            yield replace(each, subject=f"{owner}: {each.subject}")
    except PenstockError as error:
        yield failed(owner, error)


def _notify(deployment: Deployment) -> Iterator[Finding]:
    from penstock.ops.webhooks import try_each

    if not deployment.ops.notify:
        yield finding(
            "warning", "ops.notify", "there is no webhook to try", "write ops.notify",
            code="cli.webhook-none",
        )  # fmt: skip
    for name, why in try_each(deployment.ops.notify, deployment.name):
        if why:
            yield finding(
                "error", name, f"the webhook refused a test: {why}",
                "correct its url and format, and let this machine reach it", code="cli.webhook",
            )  # fmt: skip
        else:
            yield finding("ok", name, "the webhook took a test")


def _clean(found: Iterable[Finding], secrets: set[str]) -> Iterator[Finding]:
    for each in found:
        yield replace(each, message=blot(each.message, secrets), remedy=blot(each.remedy, secrets))


def _print(found: Finding) -> None:
    click.secho(f"{found.level:<8}", fg=_COLORS[found.level], bold=True, nl=False)
    click.echo(f"{found.subject}: {found.message}{f' [{found.code}]' if found.code else ''}")
    for line in found.remedy.splitlines():
        click.echo(f"{'':<8}  {line}")


def _summary(found: Sequence[Finding]) -> None:
    counts = {level: sum(one.level == level for one in found) for level in _COLORS}
    click.echo(
        f"\n{counts['ok']} ok, {_many(counts['warning'], 'warning')},"
        f" {_many(counts['error'], 'error')}"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
