"""Backends that an operator has paused: what is in flight is stored and acknowledged, and nothing
more is taken. The source's connection is kept.

A row beside the positions says it, so a restart and another instance stay paused, and `penstock
pause` works wherever the store can be reached. The service looks each second, and its readers find
a file in the run folder.
"""

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from penstock.config import Pipeline
from penstock.config.parts import PipelinePart
from penstock.leases import Lease, LeaseStore, open_store, replace
from penstock.microbatch.run_folder import pause_reader
from penstock.model.errors import LeaseLost, Malformed, SettingsError, Unavailable
from penstock.ops.board import Board
from penstock.ops.partitions import at_risk
from penstock.ops.reports import QueryReport, SourceReport
from penstock.process.closing import Closes

_LOOK = 1.0  # seconds between two looks
_TRIES = 10

log = structlog.get_logger("penstock")


class Pauses(Closes):
    """The pauses of one pipeline. Any thread may use it. Raises Unavailable, SettingsError."""

    def __init__(self, pipeline: Pipeline) -> None:
        if pipeline.positions.startswith("memory:"):
            raise SettingsError(
                "pauses are kept with the positions, which are in memory",
                "service",
                hint="write positions: sqlite:///FILE to keep them",
            )
        self._store: LeaseStore = open_store(pipeline.positions)
        # No pipeline's name has a colon: these are no rows of positions.
        self._prefix = f"paused:{pipeline.name}/"

    def close(self) -> None:
        self._store.close()

    def all(self) -> dict[str, dict[str, Any]]:
        """Backend -> `since`, `by` whom and `until` (None: until `resume`), as ISO 8601."""
        rows = self._store.list(self._prefix)
        return {row.name.removeprefix(self._prefix): _read(row) for row in rows if row.continuation}

    def pause(self, backends: Collection[str], by: str, seconds: float | None = None) -> None:
        """Pauses backends, for so long; one that is paused gets the new end."""
        now = time.time()
        for backend in backends:
            before = self.all().get(backend, {})
            # Whole seconds, and no fewer than were asked for: the service looks each second.
            until = None if seconds is None else _iso(math.ceil(now + seconds))
            self._write(
                backend, {"since": before.get("since", _iso(now)), "by": by, "until": until}
            )

    def resume(self, backends: Collection[str]) -> Sequence[str]:
        """Ends pauses; returns which backends were paused."""
        paused = [name for name in backends if name in self.all()]
        for backend in paused:
            self._write(backend, None)
        return paused

    def _write(self, backend: str, row: Mapping[str, Any] | None) -> None:
        name = self._prefix + backend
        for _ in range(_TRIES):
            lease = self._store.get(name)
            if row is None and lease is None:
                return
            try:
                if row is None:
                    self._store.delete(lease or Lease(name=name))
                else:
                    found = replace(lease or Lease(name=name), continuation=json.dumps(row))
                    self._store.put(found)
            except LeaseLost:
                continue  # somebody else did the same in this moment
            return
        raise Unavailable(f"the pause of {backend} changes all the time", "service")


class PausedReaders(PipelinePart):
    """Has the readers of a pipeline follow its pauses, at each `tick`."""

    def __init__(self, pipeline: Pipeline, pauses: Pauses, run: Path, board: Board) -> None:
        self._pipeline, self._pauses = pipeline, pauses
        self._run, self._board = run, board
        self._known: dict[str, dict[str, Any]] = {}
        self._next = 0.0
        self._said = ""

    def tick(self, now: float) -> None:
        """Looks each second, at `now` (monotonic seconds). What cannot be known stays as it is."""
        if now < self._next:
            return
        self._next = now + _LOOK
        try:
            paused = self._kept()
        except (Unavailable, Malformed) as error:
            if str(error) != self._said:
                self._said = str(error)
                log.warning("which backends are paused is not known now", error=self._said)
            return
        self._said = ""
        for each in self._pipeline.backends:
            if (found := paused.get(each.name)) != self._known.get(each.name):
                pause_reader(self._run, each.name, is_paused=found is not None)
                what = "paused" if found is not None else "resumed"
                log.warning(f"the backend is {what}", backend=each.name, **(found or {}))
                self._board.post(each.name, QueryReport(paused=found))
        self._known = paused

    def _kept(self) -> dict[str, dict[str, Any]]:
        """The pauses that last: not those that are over, nor those that would lose changes."""
        found = self._pauses.all()
        over = {name for name, each in found.items() if each["until"] and each["until"] <= _iso()}
        snapshot = self._board.snapshot()
        for name in found:
            if risk := at_risk(snapshot.latest(SourceReport, name), self._pipeline.ops.at_risk):
                log.warning("the pause ends, or changes would be lost", backend=name, why=risk)
                over.add(name)
        if over:
            self._pauses.resume(over)
        return {name: each for name, each in found.items() if name not in over}


def _iso(at: float | None = None) -> str:
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return moment.isoformat(timespec="seconds")


def _read(row: Lease) -> dict[str, Any]:
    try:
        found = json.loads(row.continuation)
        return {key: found[key] for key in ("since", "by", "until")}
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(
            f"the record {row.name!r} can't be read",
            "service",
            hint="did another program write to the positions store?",
        ) from error
