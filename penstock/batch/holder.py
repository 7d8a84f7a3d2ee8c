"""The holder: a process of the driver's machine that keeps a snapshot open for a DataFrame.

It ends when the snapshot was not read for the time `hold`, when Spark ends, and early where the
snapshot is in the way of others (DDL waits for it) and no task reads.
"""

import os
import pickle
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.feeds import (
    Feed,
    HoldsSnapshot,
    RowSelection,
    RowSource,
    SnapshotWait,
    TableSnapshot,
    TakesSnapshots,
)
from penstock.microbatch.options import SourceOptions, read_source
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.table_schema import TableSchema
from penstock.process.processes import is_alive

_PATIENCE = 60.0  # seconds for the table's lock and older transactions
_EVERY = 2.0  # seconds between two looks
_GRACE = 10.0  # seconds in which tasks that are planned begin, also while others wait
_ROWS = 2**40  # of a range: only its size counts


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """What to read of the table that the options name. `parent`: the process it is for."""

    options: dict[str, str] = field(repr=False)
    columns: tuple[str, ...]
    parent: int = field(default_factory=os.getppid)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTable:
    """A table under a snapshot that is held, with the columns that are read. Pickles."""

    schema: TableSchema
    columns: tuple[str, ...]
    source: RowSource
    position: str
    ranges: tuple[Any, ...]


def hold(request: TableRequest) -> HeldTable:
    """Starts a holder, and returns what it holds. Does I/O; raises SettingsError, Unavailable."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from penstock.batch.holder import main; main()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as answer:
        with suppress(BrokenPipeError), process.stdin as asked:
            pickle.dump(request, asked)
        found = answer.read()
    if not found:
        raise Unavailable(
            "the process that holds a snapshot ended before it had one", "spark.holder",
            hint="see whether this machine has memory left, and penstock is installed for Spark",
        )  # fmt: skip
    held: HeldTable | PenstockError = pickle.loads(found)  # noqa: S301 - of our own process
    if isinstance(held, PenstockError):
        raise held
    return held


def main() -> None:
    """The process: answers on its stdout once, and closes that."""
    request: TableRequest = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own process
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        source, feed = read_source(request.options)
        with _snapshot(source, feed, request) as taken:
            held = _held(taken, source, request)
            with answer:
                pickle.dump(held, answer)
            _keep(taken, source.hold, request.parent)
    except Exception as error:
        if not answer.closed:
            with answer:
                pickle.dump(PenstockError.of(error, "holding a snapshot"), answer)


def _snapshot(
    source: SourceOptions, feed: Feed, request: TableRequest
) -> AbstractContextManager[TableSnapshot]:
    if not isinstance(feed, TakesSnapshots):
        raise SettingsError(
            f"the backend {source.backend} has no snapshots, which spark.read reads",
            "spark.no-snapshots",
            hint="read its changes by spark.readStream",
        )
    if source.where and not feed.selects_rows:
        raise SettingsError(
            f"the backend {source.backend} reads whole tables: the option where is not for it",
            "spark.no-selection",
            hint="filter the DataFrame",
        )
    columns = request.columns if feed.selects_rows else ()
    selection = RowSelection(where=source.where, columns=columns)
    wait = SnapshotWait(patience=_PATIENCE)
    return feed.snapshot(*_name(source, feed), None, wait, selection)


def _name(source: SourceOptions, feed: Feed) -> tuple[str, str]:
    """Schema and name of the table that the options name."""
    schema, dot, table = source.table.partition(".")
    if feed.selects_rows:
        return (schema, table) if dot else ("public", schema)
    known = [(each.schema, each.table) for each in feed.schemas()]
    found = [each for each in known if source.table in (each[1], ".".join(each))]
    if len(found) != 1:
        raise SettingsError(
            f"{source.table} is {'not the name of one' if found else 'no'} table or collection",
            "spark.table-missing",
            hint=f"there are: {', '.join(map('.'.join, known)) or 'none'}",
        )
    return found[0]


def _held(taken: TableSnapshot, source: SourceOptions, request: TableRequest) -> HeldTable:
    return HeldTable(
        schema=taken.schema, columns=request.columns, source=taken.source,
        position=taken.position, ranges=tuple(taken.plan(_ROWS, source.range_size)),
    )  # fmt: skip


def _keep(taken: TableSnapshot, hold: float, parent: int) -> None:
    snapshot: object = taken
    if not isinstance(snapshot, HoldsSnapshot):
        return
    used = time.monotonic()
    while is_alive(parent) and (unused := time.monotonic() - used) < hold:
        time.sleep(min(_EVERY, hold))
        if snapshot.is_read():
            used = time.monotonic()
        elif unused > _GRACE and snapshot.is_in_the_way():
            return
