"""What a pipeline that has nothing to do costs: CPU and wake-ups by thread, memory by process."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.servers import Nats, Postgres

from . import table
from .pipeline import STREAM, run_pipeline
from .stream import messages_in, wait_for
from .usage import role_of

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleThread:
    """CPU in percent of a core, and voluntary context switches a second."""

    name: str
    cpu: float
    wakes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleProcess:
    """One process of penstock; memory in bytes. A JVM's threads have names, Python's have not
    before Python 3.14: they are in the order of their start."""

    role: str
    rss: int
    pss: int
    threads: Sequence[IdleThread]

    @property
    def cpu(self) -> float:
        """Of all threads, in percent of a core."""
        return sum(each.cpu for each in self.threads)

    @property
    def wakes(self) -> float:
        """Of all threads, a second."""
        return sum(each.wakes for each in self.threads)


def idle(
    folder: Path, *, seconds: int, warm_up: int, extra: dict[str, Any], version: int
) -> list[IdleProcess]:
    """PostgreSQL to JetStream, for `seconds` without a change, `warm_up` seconds after the last."""
    with Postgres(version=version) as postgres, Nats() as nats, postgres.database() as database:
        table.create(database)
        database.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        with run_pipeline(folder, table.backend(database, "bench"), nats, extra=extra) as running:
            table.write_backlog(database, rows=1000)
            wait_for(
                lambda: messages_in(nats.url, STREAM) >= 1000, timeout=120, alive=running.check
            )
            time.sleep(warm_up)
            service = psutil.Process(running.pid)
            processes = [service, *service.children(recursive=True)]
            before = {each.pid: dict(_threads(each.pid)) for each in processes}
            began = time.monotonic()
            time.sleep(seconds)
            passed = time.monotonic() - began
            found = (_measured(each, before[each.pid], passed) for each in processes)
            return [each for each in found if each is not None]


def _measured(
    process: psutil.Process, before: Mapping[int, tuple[str, float, int]], seconds: float
) -> IdleProcess | None:
    """None of a process that has ended: the worker of a short micro-batch."""
    try:
        memory = process.memory_full_info()
    except (psutil.Error, OSError):
        return None
    threads = []
    for thread, (name, cpu, switches) in _threads(process.pid):
        _, cpu_before, switches_before = before.get(thread, ("", 0.0, 0))
        used, wakes = cpu - cpu_before, switches - switches_before
        threads.append(IdleThread(name=name, cpu=100 * used / seconds, wakes=wakes / seconds))
    return IdleProcess(
        role=role_of("service", process), rss=memory.rss, pss=memory.pss, threads=threads
    )


def _threads(pid: int) -> Iterator[tuple[int, tuple[str, float, int]]]:
    """Of each thread: its name, CPU seconds, voluntary context switches."""
    for folder in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda each: int(each.name)):
        with suppress(OSError):  # it has ended
            name = (folder / "comm").read_text().strip()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            status = (folder / "status").read_text()
            switches = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
            cpu = (int(fields[11]) + int(fields[12])) / _TICKS
            yield int(folder.name), (name, cpu, switches)
