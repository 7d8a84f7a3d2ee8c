"""How fast a mirror loads a table, and how fast it applies changes: the client alone.

The snapshot and the changes are stored before; rates are by the mirror's own CPU, and by the clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.consumer.mirror.world import World
from tests.servers import Nats, Postgres

from .table import PUBLICATION, create, write_backlog


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRates:
    """`load`: rows a second; `tail`: changes a second. `_cpu`: by CPU time of this process."""

    target: str
    rows: int
    load: float
    load_cpu: float
    tail: float
    tail_cpu: float


def mirror(folder: Path, *, rows: int, version: int) -> list[MirrorRates]:
    """A snapshot of a table of ten columns with so many rows, then as many changes of them: into a
    file, and into a database of the source's server."""
    with (
        Postgres(version=version) as server,
        server.database() as database,
        server.database() as copy,
        Nats() as nats,
    ):
        targets = {"SQLite": f"sqlite:///{folder / 'mirror.db'}", "PostgreSQL": copy.url}
        create(database)
        write_backlog(database, rows=rows)
        found = "SELECT tablename FROM pg_publication_tables WHERE pubname = %s"
        [(table,)] = database.execute(found, [PUBLICATION])
        world = World(database, nats, folder).start()
        try:
            # Another mirror asks for the snapshot; ours finds it stored.
            world.mirror(f"sqlite:///{folder / 'other.db'}")
            world.stop_service()
            loads = [_timed(partial(world.mirror, url), rows) for url in targets.values()]
            database.execute(f"UPDATE {table} SET quantity = quantity + 1")
            world.published()
            tails = [_timed(partial(world.mirror, url), rows) for url in targets.values()]
        finally:
            world.close()
    return [
        MirrorRates(
            target=name, rows=rows, load=load, load_cpu=load_cpu, tail=tail, tail_cpu=tail_cpu
        )
        for name, (load, load_cpu), (tail, tail_cpu) in zip(targets, loads, tails, strict=True)
    ]


def _timed(work: Callable[[], object], rows: int) -> tuple[float, float]:
    wall, cpu = time.monotonic(), time.process_time()
    work()
    return rows / (time.monotonic() - wall), rows / (time.process_time() - cpu)
