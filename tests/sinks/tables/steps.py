"""A pipeline without Spark, in processes that are killed at the named steps of a sink of tables.

`python -m tests.sinks.tables.steps SOURCE TARGET POSITIONS`: for each step a fork that goes on
where the one before was killed, and kills itself there; then one that goes on until it is ended.
"""

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.config.pipeline import Checkpoint
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.reading.keeper import Keeper
from penstock.reading.positions import Positions
from tests.servers import Database
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

TABLES: dict[str, Any] = {"items": {"create": True}, "notes": {"create": True}}
BUSY = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND active"
# Name of a step -> function, and whether the process ends before or after it.
LOADING = {
    "a load is planned": ("penstock.sinks.tables.load:LedgerLoad.plan", "after"),
    "a part is written and not committed": (
        "penstock.tables.ledger:TargetLedger.count_rows",
        "after",
    ),
    "a part is committed": ("penstock.sinks.tables.row_writer:TableRowWriter.write", "after"),
    "all parts are there": ("penstock.sinks.tables.load:LedgerLoad.finish", "before"),
    "a load has ended": ("penstock.sinks.tables.load:LedgerLoad.finish", "after"),
    "held changes are taken": ("penstock.tables.ledger:TargetLedger.take_held", "after"),
}
CHANGING = {
    "a commit is not done": ("penstock.tables.ledger:TargetLedger.advance", "after"),
    "a commit is done": ("penstock.sinks.tables.commits:Commits.done", "before"),
    "a position is not saved": ("penstock.reading.positions:Positions.save", "before"),
    "a position is saved": (
        "penstock.feeds.postgres.following:PostgresFollowing.acknowledge",
        "before",
    ),
    "a position is acknowledged": (
        "penstock.feeds.postgres.following:PostgresFollowing.acknowledge",
        "after",
    ),
}
STEPS = LOADING | CHANGING
OF_DELTA = {
    "one of the tables is written": (
        "penstock.sinks.delta.staged:DeltaStagedRows._committed",
        "after",
    ),
    "tables are written and not stored": (
        "penstock.sinks.tables.apply:Applier.apply_early",
        "after",
    ),
}


def steps_of(target: str) -> dict[str, tuple[str, str]]:
    """Those of a sink of tables: of a file, the URL of a database, or a folder of Delta tables."""
    is_delta = "://" not in target and not Path(target).suffix
    return STEPS | OF_DELTA if is_delta else STEPS


def arm(step: str) -> None:
    """Has this process killed at the step."""
    path, when = (STEPS | OF_DELTA)[step]
    module, _, name = path.partition(":")
    owner, _, method = name.partition(".")
    kind = getattr(importlib.import_module(module), owner)
    real = getattr(kind, method)

    def armed(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(kind, method, armed)


class SavingFlow(Flow):
    """A `Flow` that saves its positions, and acknowledges them. It is its own `Acknowledger`."""

    def __init__(self, source: Database, target: Database | Path, positions: str) -> None:
        super().__init__(source, target, TABLES)
        checkpoint = Checkpoint(interval=0.0)
        self._positions = Positions.of(positions, self.name, "shop", checkpoint)
        self._keeper = Keeper(self._positions, self)
        self._following: Any = None
        self._reading = threading.Lock()

    def begin(self, *, loads: bool) -> None:
        """Goes on where the last process saved, or begins; where it `loads`, with its tables."""
        self._sink.prepare()
        for table in TABLES if loads and self._sink.tables() else ():
            self._sink.reload(table, None)
        self._bookmarks = self._positions.load() or self._positions.begin(self._feed.begin())
        self._thread.start()
        self._loader.start()

    def _changes(self) -> Iterator[pa.RecordBatch]:
        ((partition, bookmark),) = self._bookmarks.items()
        self._following, decoder = (
            self._feed.follow(partition, bookmark),
            self._feed.decoder("text"),
        )
        while True:
            with self._reading:
                pages = self._following.read(0.05)
                self._keeper.save(self.durable, 0)
            for page in pages:
                yield from decoder.decode(page)

    @property
    def durable(self) -> Bookmarks:
        return {name: Bookmark(place) for name, place in self.position.items()}

    def stored(self, position: Position) -> None:
        super().stored(position)
        with self._reading:
            self._keeper.save(self.durable, 1)

    @property
    def open_partitions(self) -> Collection[PartitionId]:
        return list(self._bookmarks)

    def bookmark(self, partition: PartitionId, place: Place | None) -> Bookmark | None:
        found: Bookmark | None = self._following.bookmark(place)
        return found

    def acknowledge(self, saved: Bookmarks) -> None:
        for bookmark in saved.values():
            self._following.acknowledge(bookmark)


def run(source: Database, target: Database | Path, positions: str, step: str) -> None:
    if step:
        arm(step)
    flow = SavingFlow(source, target, positions)
    flow.begin(loads=step in LOADING)
    while True:
        flow.check()
        time.sleep(0.02)


def main(source: str, target: str, positions: str) -> None:
    of = lambda url: Database(name=url.rpartition("/")[2], url=url)  # noqa: E731
    reads = of(source)
    writes = of(target) if "://" in target else Path(target)
    for step in (*steps_of(target), ""):
        until(lambda: not reads.execute(BUSY), 60)
        if (process := os.fork()) == 0:
            run(reads, writes, positions, step)
        ended = os.waitpid(process, 0)[1]
        assert os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL, step
        print(step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
