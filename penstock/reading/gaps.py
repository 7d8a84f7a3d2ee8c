"""Records what a backend lost, before the policy is obeyed.

Reader threads call it when they connect; the reader process owns it.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from penstock.feeds import Gap
from penstock.leases.gaps import Gaps, gap_id
from penstock.leases.memory import MemoryStore
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, PartitionId
from penstock.process.backoff import Clock
from penstock.reading.host_positions import HostPositions
from penstock.reading.positions import Positions

log = logging.getLogger("penstock")

# Seconds between two looks at the store: an operator may have declared a partition mended.
REREAD = 2.0
# Seconds that a report waits for it.
_PATIENCE = 0.2


class GapLog:
    """The gaps of one backend; a `passed_gaps.GapRecorder`. Without `positions` this process alone
    remembers them. `report` is called, from any thread, after a loss."""

    def __init__(
        self,
        positions: Positions | HostPositions | None = None,
        *,
        report: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._positions = positions
        self._gaps = positions.gaps if positions else Gaps(MemoryStore(), "library")
        self._report, self._clock = report, clock
        self._lock = threading.Lock()
        self._rows: dict[str, Any] = {}  # by partition, as the store had them
        self._read_at = -REREAD  # when they were read
        self._changes = 0  # gaps that were recorded here
        self._looking: threading.Thread | None = None  # reads the rows

    def verify(self, partition: PartitionId) -> None:
        """Raises LeaseLost if another instance of this pipeline has written the bookmark."""
        if self._positions is not None:
            self._positions.verify(partition)

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        """Records a gap after `bookmark`; again with `to` when its end is known. Raises LeaseLost
        when the bookmark that it was found for is not the stored one any more: another instance of
        this pipeline has moved it, and with it the source."""
        if self._positions is not None:
            self._positions.verify()
        else:  # no service logs it
            log.error("history lost: %s, after %s: %s", gap.cause, gap.after, gap.detail)
        record = {
            "id": gap_id(partition, gap.cause, gap.after, bookmark.mark),
            "cause": gap.cause,
            "from": gap.after,
            "to": to,
            "detail": gap.detail,
            "policy": gap.policy,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        with self._lock:
            self._rows[partition] = self._gaps.record(partition, record)
            self._changes += 1
        self._report()

    def rows(self) -> dict[str, Any]:
        """Partition -> its row, for the status page; see `Gaps.rows`. While the store is away: as
        they were. Never waits long: reader threads call it."""
        with self._lock:
            if (looking := self._looking) is None or not looking.is_alive():
                looking = None
                if self._clock() - self._read_at >= REREAD:
                    self._read_at = self._clock()
                    looking = threading.Thread(target=self._read, daemon=True)
                    looking.start()
                self._looking = looking
        if looking is not None:
            looking.join(_PATIENCE)
        with self._lock:
            return dict(self._rows)

    def _read(self) -> None:
        with suppress(Unavailable):
            changes = self._changes
            found = dict(self._gaps.rows())
            with self._lock:
                if changes == self._changes:  # nothing was recorded meanwhile
                    self._rows = found
