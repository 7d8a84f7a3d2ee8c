"""`penstock compare`: whether a stream has what its source has, document by document."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import file_argument, json_option, print_json
from penstock.config import Backend, Pipeline, load_pipeline
from penstock.consumer.compare import Comparison, Report
from penstock.consumer.tail.reader import Message, TailReader
from penstock.feeds import Collection, DatesRows, ReadsCollections
from penstock.model.errors import SettingsError
from penstock.model.settings import parse_duration

_SHOWN = 20


@click.command("compare")
@file_argument
@click.argument("collection")
@click.option("--backend", help="Which backend, if there are several.")
@click.option("--sample", default=1000, show_default=True, help="The number of random documents.")
@click.option("--all", "every", is_flag=True, help="Every document.")
@click.option(
    "--wait", default="10s", show_default=True, help="How long a difference may take to resolve."
)
@click.option("--url", help="NATS server to read from, with its login; default: sink.url.")
@json_option()
def command(
    *,
    file: Path,
    collection: str,
    backend: str | None,
    sample: int,
    every: bool,
    wait: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Compare the stream of the pipeline in FILE with a COLLECTION of its source.

    COLLECTION is schema.table, or a collection. Writers may go on: a difference counts if the
    stream does not reach the document's state within --wait. The command counts documents that are
    older than the stream, and does not compare them. Exit code 0: nothing differs; 1: something
    differs; 3: nothing that the stream has differs, but documents are older.
    """
    pipeline = load_pipeline(file)
    found = _backend(pipeline, backend)
    most = None if every else sample
    patience = _seconds(wait)
    with _reader(pipeline, url) as reader:
        wanted = _collection(found, collection)
        _refuse_namesakes(pipeline, found, wanted)
        report = _compare(reader, found, wanted, most, patience)
    if as_json:
        print_json({**asdict(report), "same": report.same})
    else:
        _print(report)
    if not report.same:
        raise SystemExit(3 if report.same_since else 1)


def _seconds(text: str) -> float:
    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise SettingsError(
            f"--wait: {error}", "cli", hint="write a duration, such as 10s"
        ) from error


def _backend(pipeline: Pipeline, name: str | None) -> Backend:
    names = [backend.name for backend in pipeline.backends]
    if name is None and len(names) > 1:
        raise SettingsError(
            "the pipeline has several backends", "cli", hint=f"--backend {names[0]}"
        )
    for backend in pipeline.backends:
        if name in (None, backend.name):
            return backend
    raise SettingsError(
        f"there is no backend {name!r}", "cli.no-backend", hint=f"there are: {', '.join(names)}"
    )


def _collection(backend: Backend, name: str) -> Collection:
    feed = backend.feed()
    if not isinstance(feed, ReadsCollections):
        raise SettingsError(
            f"what a {backend.type} backend reads can't be compared",
            "cli",
            hint="its feed does not read collections; docs/reference/cli.md lists those that do",
        )
    return feed.collection(name)


def _compare(
    reader: TailReader, backend: Backend, collection: Collection, most: int | None, wait: float
) -> Report:
    comparison, begin = Comparison(collection.identity), _Begin()

    def changes(end: int) -> Iterator[Mapping[str, Any]]:
        while reader.sequence < end:
            messages = reader.fetch(500, timeout=1.0)
            for message in messages:
                if message.body["backend"] == backend.name:
                    begin.take(message)
                if _is_of(message.body, backend, collection):
                    yield _with_key(message.body, collection)
            if not messages and reader.pending == 0:
                return

    for body in changes(reader.end()):
        comparison.apply(body)
    comparison.add(collection.rows(most), every=most is None)
    deadline = time.monotonic() + wait
    while True:
        for body in changes(reader.end()):
            comparison.apply(body)
        late, copies = time.monotonic() > deadline, len(comparison.fold.rows)
        # Counting may cost what reading everything does.
        if late or not comparison.differences.keys() - comparison.unnamed:
            count, known = begin.count(collection)
            if late or count - copies == (known or 0):
                break
        time.sleep(0.2)
    older = max(0, count - copies) if known is None else known
    # Those that no change has are older than the stream where as many are.
    unnamed = comparison.unnamed if older == count - copies else set()
    left_out = unnamed if len(unnamed) <= older else set()
    return Report(
        collection=f"{collection.namespace}.{collection.name}".lstrip("."),
        changes=comparison.fold.changes,
        stream_count=copies,
        source_count=count,
        compared=comparison.compared,
        differences={
            name: problem
            for name, problem in sorted(comparison.differences.items())
            if name not in left_out
        },
        since=begin.since,
        older=older,
        is_proven=known is not None,
    )


class _Begin:
    """Where the stream of a backend begins. `since`: when its first change was committed."""

    def __init__(self) -> None:
        self.since: str | None = None
        self._transaction: int | None = None  # the first that began

    def take(self, message: Message) -> None:
        self.since = self.since or (message.committed_at or message.stored_at).isoformat()
        number = str(message.body.get("transaction") or "")
        if number.isdecimal():
            self._transaction = min(int(number), self._transaction or int(number))

    def count(self, collection: Collection) -> tuple[int, int | None]:
        """How many documents there are, and how many are older; None where one cannot tell."""
        if isinstance(collection, DatesRows) and self._transaction is not None:
            return collection.count_before(str(self._transaction))
        return collection.count(), None


def _reader(pipeline: Pipeline, url: str | None) -> TailReader:
    if (reader := pipeline.sink.plug_in.reader) is None:
        raise SettingsError(
            f"the sink {pipeline.sink.type} cannot be read back",
            "cli",
            hint="`compare` and `tail` need a sink with a reader",
        )
    return reader(pipeline.sink.settings, url)


def _is_of(body: Mapping[str, Any], backend: Backend, collection: Collection) -> bool:
    """Whether a change is of the collection; by its name alone where its layout has no more."""
    named = body.get("schema") or body.get("database") or collection.namespace
    return (
        body["backend"] == backend.name
        and body.get("collection") == collection.name
        and named == collection.namespace
    )


def _with_key(body: Mapping[str, Any], collection: Collection) -> Mapping[str, Any]:
    """A change with the key that its images have, where its layout has no other."""
    image = body.get("data") or body.get("before")
    if body.get("key") is not None or body.get("document_id") is not None or not image:
        return body
    return {**body, "key": collection.key_of(image)}


def _refuse_namesakes(pipeline: Pipeline, backend: Backend, collection: Collection) -> None:
    """The layout `puller` does not tell two collections of one name apart, nor `bridge` two
    backends, or what a row was before its key changed."""
    if pipeline.sink.has_layout("bridge"):
        raise SettingsError(
            "messages of the layout bridge cannot be compared: they name neither their"
            " backend nor the former key of a row", "cli.layout-foreign",
            hint="compare with another layout",
        )  # fmt: skip
    if getattr(pipeline.sink.settings, "layout", "") != "puller":
        return
    where = [space for space, name in backend.feed().tables() or () if name == collection.name]
    if len(where) > 1:
        raise SettingsError(
            f"messages of the layout puller do not name their {collection.name}:"
            f" {', '.join(where)} have one", "cli", hint="compare with another layout",
        )  # fmt: skip


def _print(report: Report) -> None:
    click.echo(
        f"{report.collection}: {report.source_count} documents in the source,"
        f" {report.stream_count} in the stream ({report.changes} changes);"
        f" {report.compared} compared, {len(report.differences)} differ"
    )
    if report.older:
        since = f"the stream begins at {report.since}" if report.since else "the stream is empty"
        older = "are older" if report.is_proven else "are older, or their changes are missing"
        click.echo(f"{since}; {report.older:,} documents {older}, and were not compared")
        if report.same_since:
            click.echo(
                "their rows come into INIT with `snapshot: initial`, or with `penstock snapshot`;"
                " penstock mirror joins both"
            )
        elif report.stream_count + report.older < report.source_count:
            lost = report.source_count - report.stream_count - report.older
            click.echo(f"neither older nor in the stream: {lost:,}")
    for identity, problem in list(report.differences.items())[:_SHOWN]:
        click.echo(f"  {identity}: {problem}")
    if len(report.differences) > _SHOWN:
        click.echo(f"  and {len(report.differences) - _SHOWN} more (--json has all)")
