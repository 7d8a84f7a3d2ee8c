"""The time without publishing after the owner is killed, until a standby has taken over."""

import os
import re
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from tests.servers import Nats, Postgres

from . import table
from .pipeline import STREAM, Running, run_pipeline
from .stream import changes_in, messages_in, stored_at, wait_for
from .variants import merged

# Rows a second, and in a transaction: stored changes show to some 20 ms when publishing stopped.
_RATE, _SIZE = 500, 10
# Seconds of load before the end of the first, and for which the second is on standby.
_BEFORE = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """Seconds from `kill -9` of the first instance until the second owned the pipeline
    (`noticed`), and until it had stored a change (`first_message`). `memory` is what the second
    had on standby, with all its processes: PSS in bytes."""

    standby: str
    noticed: float
    first_message: float
    changes: int
    memory: int


def takeover(folder: Path, *, standby: str, extra: dict[str, Any], version: int) -> Takeover:
    """Kills the service and all its processes, as the end of a host would. Raises RuntimeError
    unless every change is there once afterwards."""
    shared = merged(extra, {"spark": {"standby": standby}, "state": str(folder / "state")})
    with (
        Postgres(version=version) as postgres,
        Nats() as nats,
        postgres.database() as database,
        ExitStack() as stack,
    ):
        table.create(database)
        database.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        writer = table.Writer(database, rate=_RATE, per_transaction=_SIZE)
        first = stack.enter_context(
            run_pipeline(
                _made(folder / "first"), table.backend(database, "bench"), nats, extra=shared
            )
        )
        table.write_backlog(database, rows=1000)
        _stored(nats, 1000, first)
        second = stack.enter_context(
            run_pipeline(
                _made(folder / "second"), table.backend(database, "bench"), nats, extra=shared
            )
        )
        wait_for(lambda: _is_ready(second, standby), timeout=120, alive=second.check)
        writer.start(2 * _BEFORE)
        time.sleep(_BEFORE)
        memory = _memory(second.pid)
        killed = time.time()
        _kill(first.pid)
        writer.wait()
        total = 1000 + writer.rows
        _stored(nats, total, second)
        # What the first instance had in flight is stored within milliseconds.
        times = [at for at in stored_at(nats.url, STREAM) if at > killed - 1]
        behind = max(pairwise(times), key=lambda pair: pair[1] - pair[0])[1]
        found = changes_in(nats.url, STREAM)
        if found != total:
            raise RuntimeError(f"{total} rows were written, {found} changes are in the stream")
        return Takeover(
            standby=standby,
            noticed=_logged(second, "taking over") - killed,
            first_message=behind - killed,
            changes=found,
            memory=memory,
        )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _stored(nats: Nats, total: int, by: Running) -> None:
    def enough() -> bool:
        return messages_in(nats.url, STREAM) >= total or by.published() >= total

    wait_for(enough, timeout=120, alive=by.check)


def _is_ready(second: Running, standby: str) -> bool:
    text = second.log.read_text()
    return "standby: " in text and (standby == "cold" or "spark is warm" in text)


def _kill(pid: int) -> None:
    top = psutil.Process(pid)
    for process in [top, *top.children(recursive=True)]:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _memory(pid: int) -> int:
    top = psutil.Process(pid)
    return sum(each.memory_full_info().pss for each in [top, *top.children(recursive=True)])


def _logged(run: Running, event: str) -> float:
    """When the log said so, in seconds since 1970."""
    line = next(line for line in run.log.read_text().splitlines() if event in line)
    found = re.search(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line)
    if found is None:
        raise RuntimeError(f"the log has no time: {line}")
    return datetime.fromisoformat(found[0]).timestamp()
