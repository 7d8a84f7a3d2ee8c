"""The planner process's end of the source: offsets as JSON, positions saved, the service told.

A planner and its reservoirs live here, in the one Python process that Spark keeps for a streaming
source. The service talks to it through a folder: the board's socket, and a stop file.
"""

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.feeds import Feed
from penstock.handover.options import SourceOptions, read_source
from penstock.handover.run_folder import BOARD, STOP, read_owner, read_seed, read_task_slots
from penstock.handover.split import Split
from penstock.handover.ticket import Ticket
from penstock.ops.reporter import Reporter
from penstock.position import (
    PartitionId,
    Place,
    Position,
    position_from_json,
    position_to_json,
)
from penstock.reading.epochs import Epochs
from penstock.reading.gap_log import GapLog
from penstock.reading.page_server import PageServer
from penstock.reading.planner import Planner, ReadLimits
from penstock.reading.positions import Positions, in_spark

__all__ = ["Source"]

# Seconds between two reports.
REPORT = 0.5

# The one key of an offset in realtime: which epoch.
_EPOCH = "epoch"

Json = dict[str, str]


class Source:
    """One feed under Spark; made by `open`, used by one thread."""

    def __init__(self, options: SourceOptions, feed: Feed, positions: Positions | None) -> None:
        self._feed = feed
        self._positions = positions
        self._batches = 0
        self._drawn = 0
        self._ended: Json | None = None
        self._reported = 0.0
        self._stopped = False
        self._position: Json = {}
        self._reporting = threading.Lock()
        self._runtime = options.runtime
        self._fixed_slots = options.slots
        folder = Path(options.runtime) if options.runtime else None
        self._stop_file = folder / STOP if folder else None
        self._board = Reporter(folder / BOARD) if folder else None
        self._ledger = GapLog(positions, tell=self._tell_loss)
        self._planner = Planner(
            feed,
            limits=ReadLimits(
                events=options.max_events,
                bytes=options.max_bytes,
                buffer=options.buffer,
                patience=options.patience,
            ),
            save=positions.save if positions else in_spark,
            watch=self._report,
            ledger=self._ledger,
        )
        self._epochs = (
            Epochs(self._planner, seconds=options.epoch, slots=self._slots, clock=time.monotonic)
            if options.mode == "realtime"
            else None
        )
        self._mode = options.mode
        self._late = bool(options.late)
        self._outlet = PageServer(
            _address(options),
            self._planner.draw,
            stored=self._epochs.stored if self._epochs else _nobody_says,
            closing=self._is_closing,
            watch=self._epochs.watch if self._epochs else None,
            bind=options.pages.bind,
            port=options.pages.port,
        )
        if positions is not None:
            positions.marking(self._planner.marks, self._planner.settled)

    @classmethod
    def open(cls, options: Mapping[str, str]) -> "Source":
        """Reads the options and opens the positions store, if one is named."""
        sys.excepthook = _ended_quietly
        settings, feed = read_source(options)
        if settings.positions is None:
            return cls(settings, feed, None)
        positions = Positions.of(
            settings.positions,
            settings.pipeline,
            feed.backend,
            settings.checkpoint,
            owner=read_owner(settings.runtime),
        )
        return cls(settings, feed, positions)

    def initial(self) -> Json:
        """The stored position; nothing means where the source remembers us to be.

        Only a first start may make what is missing: a slot made anew behind a stored position
        would be a silent hole.
        """
        stored = self._positions.load() if self._positions else {}
        if self._positions is None or not self._positions.is_known():
            seed = read_seed(self._runtime, self._feed.backend)
            if seed is None:
                self._feed.prepare()
            stored = seed or {}
        if self._epochs is not None:
            self._epochs.begin(stored)
            return {_EPOCH: "0"}
        return position_to_json(stored)

    def latest(self, start: Json) -> Json:
        """The end of the next micro-batch. After the stop file appeared: nothing more, and
        everything up to `start` is saved and acknowledged."""
        durable = self._epochs.durable if self._epochs else position_from_json(start)
        self._tell_rows(start)
        if self._is_stopping():
            self._finish(durable)
            return start
        if self._epochs is not None:
            end = {_EPOCH: str(int(start[_EPOCH]) + 1)}
        else:
            end = position_to_json(self._planner.advance(durable))
        self._batches += end != start
        self._position = position_to_json(durable)
        self._report()
        return end

    def splits(self, start: Json, end: Json) -> "list[Split] | list[Ticket]":
        """The changes between two offsets, or tickets for them."""
        if self._mode == "rows" and not self._late:
            return self._planner.splits(position_from_json(start), position_from_json(end))
        self._outlet.open()
        address, key = self._outlet.address, self._outlet.key
        if self._epochs is not None:
            return [
                Ticket(
                    address=address,
                    key=key,
                    partition=epoch.partition,
                    after=epoch.after,
                    seconds=epoch.seconds,
                    most=epoch.most,
                )
                for epoch in self._epochs.plan(int(end[_EPOCH]))
            ]
        return [
            Ticket(address=address, key=key, partition=partition, after=after, until=until)
            for partition, after, until in self._planner.ranges(
                position_from_json(start), position_from_json(end)
            )
        ]

    def stop(self) -> None:
        """Stops reading."""
        self._outlet.close()
        self._planner.stop()

    def _is_stopping(self) -> bool:
        return self._stop_file is not None and self._stop_file.exists()

    def _is_closing(self) -> bool:
        """Whether an open epoch ends now."""
        return self._is_stopping() or (self._epochs is not None and self._epochs.is_cut_short())

    def _slots(self) -> int | None:
        live = read_task_slots(self._runtime)
        return live if live is not None else self._fixed_slots

    def _tell_rows(self, start: Json) -> None:
        """Once, how many changes the micro-batch had that ended at `start`."""
        if start == self._ended:
            return
        drawn, self._drawn, self._ended = self._drawn, self._planner.drawn, start
        if self._board is not None:
            self._board.report("batch", self._feed.backend, {"rows": self._drawn - drawn})

    def _finish(self, durable: Position) -> None:
        if self._stopped:
            self._report()  # again, or else a report that was dropped would be waited for
            time.sleep(0.05)  # Spark triggers again at once until the service stops the query
            return
        if self._epochs is not None:
            self._epochs.settle()
        else:
            self._planner.settle(durable, force=True)
        self._planner.stop()
        self._stopped = True
        self._position = position_to_json(durable)
        self._report(now=True)

    def _tell_loss(self) -> None:
        self._report(now=True)

    def _report(self, *, now: bool = False) -> None:
        if self._board is None:
            return
        with self._reporting:
            if not now and time.monotonic() - self._reported < REPORT:
                return
            self._reported = time.monotonic()
        self._board.report("source", self._feed.backend, self._status())

    def _status(self) -> dict[str, Any]:
        return {
            **self._planner.status(),
            "batches": self._batches,
            "position": self._position,
            "stopped": self._stopped,
            "gaps": self._ledger.rows(),
        }


def _address(options: SourceOptions) -> str:
    if options.pages.host:
        return f"tcp:{options.pages.host}"
    return f"unix:{options.runtime}/outlet-{os.getpid()}" if options.runtime else "unix:"


def _nobody_says(partition: PartitionId, place: Place) -> None:
    """A micro-batch's task has nothing to say: Spark tells when its batch is done."""


def _ended_quietly(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Spark stops a source by closing its socket; PySpark's runner then fails to say that it
    noticed, and would print two tracebacks at every stop."""
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
