"""A table's snapshot against COPY TO STDOUT of the same table, in one run."""

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from rich.console import Console
from rich.table import Table

from penstock.config import SnapshotSettings
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.feeds.postgres.rows import copied
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.snapshots.job import Job
from penstock.snapshots.records import new_id
from penstock.snapshots.store import SnapshotRun
from tests.servers import Database, Nats, Postgres
from tests.snapshots.conftest import StatedPipeline

from . import table

_READY = b"Z\0\0\0\x05I"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One way to read the table. `cpu`: seconds of this process, without the servers'."""

    how: str
    seconds: float
    cpu: float
    rows: int
    size: int


def snapshots(*, rows: int, runs: int, version: int) -> list[Taken]:
    """COPY, then a snapshot without and with compression, in turns; without Spark, which takes no
    part in it."""
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres(version=version))
        nats = stack.enter_context(Nats())
        database = stack.enter_context(postgres.database())
        table.create(database)
        table.write_backlog(database, rows=rows)
        database.execute("VACUUM ANALYZE bench")
        return [
            one
            for _ in range(runs)
            for one in (
                _copied(database, rows),
                _taken(database, nats),
                _taken(database, nats, "zstd"),
            )
        ]


def _copied(database: Database, rows: int) -> Taken:
    begun, cpu, size = time.monotonic(), time.process_time(), 0
    query = sql.SQL("COPY {} TO STDOUT").format(sql.Identifier("bench"))
    with psycopg.connect(database.url) as connection:
        connection.autocommit = True
        # In bulk, from the socket: psycopg's own loop over rows would be the limit.
        for piece in copied(connection, query, "copying"):
            size += len(piece)
            if piece.endswith(_READY):
                break
    return _of("COPY TO STDOUT", begun, cpu, rows, size)


def _taken(database: Database, nats: Nats, compression: Any = "none") -> Taken:
    feed = PostgresFeed(
        PostgresSettings.model_validate(
            {"connection": database.url, "slot": "bench", "publication": table.PUBLICATION}
        )
    )
    feed.begin()
    job = Job(
        snapshot_id=new_id(), pipeline=StatedPipeline(), backend="bench", feed=feed,
        schema="public", table="bench", name=("bench",),
    )  # fmt: skip
    run = SnapshotRun(
        job,
        JetStreamServer(JetStreamSettings.model_validate({"url": nats.url})),
        SnapshotSettings(compression=compression),
    )
    begun, cpu = time.monotonic(), time.process_time()
    run.run()
    return _of(f"snapshot, {compression}", begun, cpu, run.progress.rows, run.progress.bytes)


def _of(how: str, begun: float, cpu: float, rows: int, size: int) -> Taken:
    seconds = time.monotonic() - begun
    return Taken(how=how, seconds=seconds, cpu=time.process_time() - cpu, rows=rows, size=size)


def show_snapshots(console: Console, all_: list[Taken]) -> None:
    """Each with its ratio to the fastest COPY."""
    best = min(one.seconds for one in all_ if one.how.startswith("COPY"))
    shown = Table(title=f"{all_[0].rows:,} rows, {os.cpu_count()} cores", title_justify="left")
    for name in ("how", "seconds", "of COPY's speed", "rows/s", "CPU us/row", "MB"):
        shown.add_column(name, justify="left" if name == "how" else "right")
    for one in all_:
        shown.add_row(
            one.how, f"{one.seconds:.2f}", f"{best / one.seconds:.2f}",
            f"{one.rows / one.seconds:,.0f}", f"{one.cpu / one.rows * 1e6:.2f}",
            f"{one.size / 1e6:.1f}",
        )  # fmt: skip
    console.print(shown)
