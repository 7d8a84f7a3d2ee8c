"""What pages cost without Spark: `python -m bench.pages`.

A reader process over 1,000 partitions of the memory feed, and a task that writes them to a real
nats-server as in an open micro-batch, for each size of pages: CPU of both, a change. The part that
the feed itself costs (pages made, and decoded) is beside it, because a real source has another.
"""

import cProfile
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.stream import messages_in
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.microbatch.late import Attempt
from penstock.microbatch.run_folder import STOP, write_task_slots
from penstock.microbatch.source import Source
from penstock.microbatch.task import read_split, write_changes
from tests.servers import Nats

PARTITIONS = 1000
_STREAM = "PAGES"
_FORK = multiprocessing.get_context("fork")


def _options(folder: str, changes: int, page: int) -> dict[str, str]:
    return {
        "backend": "memory", "name": "default", "mode": "realtime", "images": "msgpack",
        "partitions": str(PARTITIONS), "changes": str(changes // PARTITIONS), "page": str(page),
        "positions": f"sqlite:///{folder}/positions.db", "pipeline": "bench", "epoch": "600s",
        "runtime": folder,
    }  # fmt: skip


@contextmanager
def _profiled(file: str) -> Iterator[None]:
    """Writes a profile of this thread to a file, if one is named."""
    if not file:
        yield
        return
    with cProfile.Profile() as profile:
        yield
    profile.dump_stats(file)


def _read(line: Connection, options: dict[str, str]) -> None:
    """The reader process: gives a ticket, and at the end its seconds of CPU."""
    source = Source.open(options)
    offset = source.initial()
    for number in range(4):  # the first epochs are short
        offset, before = {"epoch": str(number + 1)}, offset
        (ticket,) = source.splits(before, offset)
    begun = time.process_time()
    line.send(ticket)
    line.recv()
    line.send(time.process_time() - begun)
    line.recv()  # the task is done with it
    source.stop()


def _write(line: Connection, ticket: Any, options: dict[str, str], url: str, profile: str) -> None:
    """The task: returns when the stop file is there; then its seconds of CPU, and published."""
    attempt = Attempt(stage=0, number=0, is_first=True)
    (row,) = read_split(options, ticket, attempt)
    sink = {"sink": "jetstream", "url": url, "stream": _STREAM, "subject": "pages.{collection}"}
    begun = time.process_time()
    with _profiled(profile):
        write_changes(sink, [row], attempt)
    line.send(time.process_time() - begun)


def run(changes: int, page: int, *, profile: str = "") -> tuple[float, float, float]:
    """Microseconds of CPU a change of the reader process and of the task; changes a second."""
    with tempfile.TemporaryDirectory(prefix="penstock-pages-") as folder, Nats() as nats:
        write_task_slots(Path(folder), 2)
        options = _options(folder, changes, page)
        (reader, its), (task, own) = _FORK.Pipe(), _FORK.Pipe()
        reading = _FORK.Process(target=_read, args=(its, options), daemon=True)
        reading.start()
        if not reader.poll(30):
            raise click.ClickException("the reader process gives no ticket")
        ticket = reader.recv()
        begun = time.monotonic()
        given = (own, ticket, options, nats.url, profile)
        writing = _FORK.Process(target=_write, args=given, daemon=True)
        writing.start()
        while (stored := messages_in(nats.url, _STREAM)) < changes:
            if not (reading.is_alive() and writing.is_alive()):
                raise click.ClickException("a process has ended")
            time.sleep(0.1)
        seconds = time.monotonic() - begun
        reader.send(None)
        cpu = reader.recv()
        (Path(folder) / STOP).touch()
        if not task.poll(30):
            raise click.ClickException("the task does not end")
        both = cpu * 1e6 / changes, task.recv() * 1e6 / changes
        reader.send(None)
        for process in (reading, writing):
            process.join()
        if stored != changes:
            raise click.ClickException(f"{stored} of {changes} changes were stored")
    return *both, changes / seconds


def feed_alone(changes: int, page: int) -> tuple[float, float]:
    """Microseconds of CPU a change to make pages, and to decode them."""
    each = changes // PARTITIONS
    given = {"partitions": 20, "changes": each, "page": page}
    feed = MemoryFeed(MemoryFeedSettings.model_validate(given))
    decoder, pages = feed.decoder("msgpack"), list[Any]()
    begun = time.process_time()
    for name in feed.lineage:
        following = feed.follow(name)
        while found := following.read(0.0):
            pages += found
    made = time.process_time()
    for one in pages:
        decoder.decode(one)
    rows = 20 * each
    return (made - begun) * 1e6 / rows, (time.process_time() - made) * 1e6 / rows


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--page", "sizes", multiple=True, default=[100, 1000], show_default=True)
@click.option("--runs", default=2, show_default=True, help="In turns; the least CPU counts.")
@click.option("--profile", default="", help="Writes cProfile's figures of the task to this file.")
def main(rows: int, sizes: tuple[int, ...], runs: int, profile: str) -> None:
    """CPU a change of a reader process and of a task."""
    table = Table(title=f"us of CPU a change, {PARTITIONS} partitions, {rows:,} changes")
    heads = ("changes a page", "reader", "task", "of it decoding", "of the reader's making pages")
    for head in (*heads, "changes/s, best"):
        table.add_column(head, justify="right")
    found: dict[int, list[tuple[float, ...]]] = {size: [] for size in sizes}
    for _ in range(runs):
        for size in sizes:
            found[size].append((*run(rows, size, profile=profile), *feed_alone(rows, size)))
    for size, figures in found.items():
        reader, task, _, made, decoded = map(min, zip(*figures, strict=True))
        rate = max(figure[2] for figure in figures)
        costs = (f"{cost:.2f}" for cost in (reader, task, decoded, made))
        table.add_row(str(size), *costs, f"{rate:,.0f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
