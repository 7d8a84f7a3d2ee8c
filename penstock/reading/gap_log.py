"""What is remembered of a backend's history: the marks beside its positions, and its gaps.

The reservoirs read it when they connect, from their threads; the planner's process owns it.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock.feeds import Gap, Mark
from penstock.leases.gaps import Gaps, gap_id
from penstock.leases.memory import MemoryStore
from penstock.position import PartitionId
from penstock.reading.positions import Positions

__all__ = ["GapLog"]

log = logging.getLogger("penstock")

# Seconds between two looks at the store: somebody may have said that a partition is mended.
REREAD = 2.0


class GapLog:
    """Marks and gaps of one backend. Without `positions` (penstock as a library) nobody stores
    marks, and gaps are remembered for as long as the process lives. `tell` is called, from any
    thread, when something was lost."""

    def __init__(
        self,
        positions: Positions | None = None,
        *,
        tell: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._positions = positions
        self._gaps = positions.gaps if positions else Gaps(MemoryStore(), "library")
        self._tell = tell
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[str, Any] = {}
        self._read_at = -REREAD

    def mark(self, partition: PartitionId) -> Mark | None:
        """What is stored with the partition's position; None if nobody stores marks. Raises
        LeaseLost if the stored one is not the one that we know."""
        if self._positions is not None:
            self._positions.verify()
        return None if self._positions is None else self._positions.mark(partition)

    def lost(self, partition: PartitionId, gap: Gap, mark: Mark | None, *, to: str = "") -> None:
        """Records a gap, before anything is done about it; again with `to` when that is known.

        Raises LeaseLost when the position that it was found for is not the stored one any more:
        another instance of this pipeline has moved it, and with it the slot.
        """
        if self._positions is not None:
            self._positions.verify()
        else:  # no service that would say it
            log.error("history lost: %s, behind %s: %s", gap.cause, gap.after, gap.detail)
        record = {
            "id": gap_id(partition, gap.cause, gap.after, mark),
            "cause": gap.cause,
            "from": gap.after,
            "to": to,
            "detail": gap.detail,
            "policy": "continue" if gap.continues else "fail",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        with self._lock:
            self._rows[partition] = self._gaps.record(partition, record)
        self._tell()

    def rows(self) -> dict[str, Any]:
        """Partition -> its row, for the status page; see `Gaps.rows`."""
        now = self._clock()
        with self._lock:
            if now - self._read_at >= REREAD:
                self._read_at = now
                self._rows = dict(self._gaps.rows())
            return dict(self._rows)
