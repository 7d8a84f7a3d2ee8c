"""(a) A backlog of transactions, drained into a file-backed stream; against pg_recvlogical."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.demo.servers import Nats, Postgres

from . import table
from .peer import Peer, run_peer
from .pipeline import STREAM, Running, run_pipeline
from .stream import changes_in, messages_in, stored, wait_for
from .usage import OURS, Usage

__all__ = ["Drain", "drain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Rates in events a second; CPU in microseconds an event; memory in bytes.

    `events_per_second` counts from the first message stored to the last; `first_event` is seconds
    from the start of the process to the first message stored. `peers` are rates in the same run.
    """

    rows: int
    tables: int
    columns: int
    messages: int
    events_per_second: float
    recvlogical_per_second: float
    first_event: float
    peak_pss: int
    peak_rss: int
    cpu: dict[str, float] = field(default_factory=dict)
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Of pg_recvlogical's own rate in the same run."""
        return self.events_per_second / self.recvlogical_per_second

    @property
    def own_cpu(self) -> float:
        """Of our processes together."""
        return sum(self.cpu.get(role, 0.0) for role in OURS)


def drain(
    folder: Path,
    *,
    rows: int,
    per_transaction: int,
    extra: dict[str, Any],
    version: int,
    shape: table.Shape = table.TEN,
    peers: Sequence[Peer] = (),
) -> Drain:
    """One run with fresh servers. Raises RuntimeError when a change is missing or there twice."""
    slots = {peer.name: f"bench_peer{number}" for number, peer in enumerate(peers)}
    with Postgres(version=version) as postgres, Nats() as nats, postgres.database() as database:
        table.create(database, shape)
        for slot in ("bench_file", "bench", *slots.values()):
            database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        table.write_backlog(database, rows=rows, per_transaction=per_transaction, shape=shape)
        database.execute("CHECKPOINT")
        baseline = _recvlogical(postgres, database.name, folder)
        rates = {
            peer.name: run_peer(
                peer,
                slot=slots[peer.name],
                publication=table.PUBLICATION,
                pg_url=database.url,
                nats_url=nats.url,
                stream=f"PEER{number}",
                rows=rows,
            )
            for number, peer in enumerate(peers)
        }
        with run_pipeline(folder, database, nats, slot="bench", extra=extra) as running:
            usage = Usage(service=running.pid, postgres=postgres.pid, nats=nats.pid)
            usage.start()
            wait_for(lambda: messages_in(nats.url, STREAM) > 0, timeout=120, alive=running.check)
            usage.mark()
            before = running.published()
            # Each look costs a connection and a status page, on the machine that is measured.
            done = _all(running, nats.url, rows)
            wait_for(done, timeout=600, alive=running.check, every=0.5)
            spent = usage.stop()
            count, first, last = stored(nats.url, STREAM)
        found = count if count == rows else changes_in(nats.url, STREAM)
        if found != rows:
            raise RuntimeError(f"{rows} rows were written, {found} changes are in the stream")
        return Drain(
            rows=rows,
            tables=shape.tables,
            columns=shape.columns,
            messages=count,
            events_per_second=rows / (last - first),
            recvlogical_per_second=rows / baseline,
            first_event=first - running.started,
            peak_pss=usage.peak_pss,
            peak_rss=usage.peak_rss,
            cpu={role: seconds * 1e6 / (rows - before) for role, seconds in spent.items()},
            peers=rates,
        )


def _all(running: Running, url: str, rows: int) -> Callable[[], bool]:
    """Whether all is stored: by the stream where a message is a change, else by /status."""
    return lambda: messages_in(url, STREAM) >= rows or running.published() >= rows


def _recvlogical(postgres: Postgres, database: str, folder: Path) -> float:
    """Seconds that pg_recvlogical takes to write the same changes into a file."""
    end = postgres.execute("SELECT pg_current_wal_lsn()")[0][0]
    command = [
        str(postgres.bin / "pg_recvlogical"), "-d", postgres.url_of(database), "--slot=bench_file",
        "--start", f"--endpos={end}", "-o", "proto_version=1",
        "-o", f"publication_names={table.PUBLICATION}", "-f", str(folder / "recvlogical.out"),
    ]  # fmt: skip
    # It ends at the first record behind the end position.
    postgres.execute("SELECT pg_logical_emit_message(true, 'bench', 'end')")
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return time.perf_counter() - started
