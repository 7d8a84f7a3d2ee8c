"""(a) A backlog of transactions, drained into a file-backed stream; against pg_recvlogical, or what
a bare client of another source reads."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import Database, Nats, Postgres

from . import table
from .peer import Peer, run_peer
from .pipeline import STREAM, Running, run_pipeline
from .sources import Source
from .stream import changes_in, messages_in, stored, wait_for
from .timeline import Sample, Standstill, Timeline, relative, stood_still
from .usage import OURS, Cpu, Usage

SLOT = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Rates in events a second; CPU in microseconds an event; memory in bytes;
    threads are of our Python processes together.

    `events_per_second` counts from the first message stored to the last; `baseline_per_second` is
    what `baseline` reads alone; `first_event` is seconds from the start of the process to the first
    message stored. `peers` are rates in the same run.
    `busy` is the cores that each role kept busy on average, from the first message to the last, and
    `idle` the share of all cores that nothing used. `curves` and `still` are there with a timeline;
    the curves begin at 0 s, and at 0 bytes where the backlog begins in the log.
    """

    rows: int
    tables: int
    columns: int
    messages: int
    events_per_second: float
    baseline_per_second: float
    first_event: float
    peak_pss: int
    peak_rss: int
    peak_threads: int
    busy: dict[str, Cpu]
    idle: float
    cpu: dict[str, float] = field(default_factory=dict)
    curves: Sequence[Sample] = ()
    still: Standstill | None = None
    peers: dict[str, float] = field(default_factory=dict)
    baseline: str = "pg_recvlogical into a file"

    @property
    def ratio(self) -> float:
        """Of the baseline's rate in the same run."""
        return self.events_per_second / self.baseline_per_second

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
    timeline: bool = False,
) -> Drain:
    """One run with fresh servers; with `timeline` both ends are sampled. Raises RuntimeError when
    a change is missing or there twice."""
    slots = {peer.name: f"bench_peer{number}" for number, peer in enumerate(peers)}
    with Postgres(version=version) as postgres, Nats() as nats, postgres.database() as database:
        table.create(database, shape)
        for slot in ("bench_file", SLOT, *slots.values()):
            database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        log = [_end_of_log(database)]
        table.write_backlog(database, rows=rows, per_transaction=per_transaction, shape=shape)
        log.append(_end_of_log(database))
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
        with run_pipeline(folder, table.backend(database, SLOT), nats, extra=extra) as running:
            usage = Usage(service=running.pid, source=postgres.pid, nats=nats.pid)
            curves = Timeline(pg_url=database.url, slot=SLOT, nats_url=nats.url, stream=STREAM)
            with curves if timeline else nullcontext():
                before, spent = _drained(running, usage, nats.url, rows)
            count, first, last = stored(nats.url, STREAM)
        return Drain(
            **_figures(nats.url, rows, running, usage, before, spent, (count, first, last)),
            tables=shape.tables,
            columns=shape.columns,
            baseline_per_second=rows / baseline,
            curves=relative(curves.samples, log[0]),
            still=stood_still(curves.samples, begin=log[0], end=log[1]) if timeline else None,
            peers=rates,
        )


def drain_source(folder: Path, source: Source, *, rows: int, extra: dict[str, Any]) -> Drain:
    """One run of another source than PostgreSQL, whose server runs, with a fresh nats-server.
    Raises RuntimeError when a change is missing or there twice."""
    source.write(rows)
    baseline = source.read(rows)
    with Nats() as nats, run_pipeline(folder, source.backend, nats, extra=extra) as running:
        usage = Usage(service=running.pid, source=source.pid, nats=nats.pid)
        before, spent = _drained(running, usage, nats.url, rows)
        return Drain(
            **_figures(nats.url, rows, running, usage, before, spent, stored(nats.url, STREAM)),
            tables=1,
            columns=10,
            baseline_per_second=rows / baseline,
            baseline=source.baseline,
        )


def _figures(
    url: str, rows: int, running: Running, usage: Usage, before: int,
    spent: Mapping[str, Cpu], stream: tuple[int, float, float],
) -> dict[str, Any]:  # fmt: skip
    """What every drain has, after it was verified that each change is there once."""
    count, first, last = stream
    found = count if count == rows else changes_in(url, STREAM)
    if found != rows:
        raise RuntimeError(f"{rows} rows were written, {found} changes are in the stream")
    seconds = last - usage.marked_at
    return {
        "rows": rows,
        "messages": count,
        "events_per_second": rows / (last - first),
        "first_event": first - running.started,
        "peak_pss": usage.peak_pss,
        "peak_rss": usage.peak_rss,
        "peak_threads": usage.peak_threads,
        "cpu": {role: used.total * 1e6 / (rows - before) for role, used in spent.items()},
        "busy": {role: used.over(seconds) for role, used in spent.items()},
        "idle": max(0.0, 1 - usage.machine / (usage.cores * seconds)),
    }


def _drained(running: Running, usage: Usage, url: str, rows: int) -> tuple[int, Mapping[str, Cpu]]:
    """Waits until all is stored: the changes that were stored before CPU was counted, and the CPU
    seconds since, by role."""
    usage.start()
    wait_for(lambda: messages_in(url, STREAM) > 0, timeout=120, alive=running.check)
    usage.mark()
    before = running.published()
    # Each check costs a connection and a status page on the machine that is measured.
    wait_for(_all(running, url, rows), timeout=600, alive=running.check, every=0.5)
    return before, usage.stop()


def _end_of_log(database: Database) -> int:
    return int(database.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])


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
    # It ends at the first record after the end position.
    postgres.execute("SELECT pg_logical_emit_message(true, 'bench', 'end')")
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return time.perf_counter() - started
