"""Running a pipeline that hosts share (`share: leases`): none of them waits for the others, unless
an instance that does not share has the whole pipeline.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from penstock.backoff import delays
from penstock.config import Pipeline
from penstock.errors import Unavailable
from penstock.ops.board import Board
from penstock.service.ownership import Ownership

# Seconds between two looks at the pipeline's lease.
_AGAIN = 0.5

log = structlog.get_logger("penstock")


class SharedRun:
    """In the place of `Standby`: takes no lease of the pipeline, and none at the sink. Readers have
    leases of partitions; one that is lost is theirs alone, and ends nothing here."""

    lost = ""
    waited = False

    def __init__(
        self, pipeline: Pipeline, ownership: Ownership, board: Board, stop: threading.Event
    ) -> None:
        self.error = ""  # why it is not known whether an instance has the whole pipeline
        self._rival = ""
        self._pipeline, self._ownership = pipeline, ownership
        self._board, self._stop = board, stop

    @property
    def reason(self) -> str | None:
        """Why this host has nothing to do; None while it has."""
        if self._rival:
            return self._rival
        found = [self._board.entry("source", each.name) for each in self._pipeline.backends]
        if not all(map(_is_spare, found)):
            return None
        return "; ".join(
            f"other hosts hold all {entry['leases']} partitions of {backend.name}"
            for backend, entry in zip(self._pipeline.backends, found, strict=True)
        )

    def release(self) -> None:
        """There is nothing to give back: readers do it."""

    def wait(self, meanwhile: Callable[[], None]) -> bool:
        """See `Standby.wait`."""
        waits = delays()
        while not self._stop.is_set():
            try:
                rival, self.error = self._ownership.rival(), ""
            except Unavailable as error:
                self.error = str(error)
                log.warning("not available; trying again", error=str(error))
                meanwhile()
                self._stop.wait(next(waits))
                continue
            if rival is None:
                self._rival = ""
                return True
            reason = f"another instance owns the pipeline, and does not share it: {rival.text}"
            if reason != self._rival:
                log.warning(f"standby: {reason}")
            self._rival = reason
            meanwhile()
            self._stop.wait(_AGAIN)
        return False


def _is_spare(entry: Mapping[str, Any]) -> bool:
    """Whether the reader has no partition, and each that there is has an owner who lives."""
    return bool(entry.get("leases")) and not (entry.get("partition_count") or entry.get("unowned"))
