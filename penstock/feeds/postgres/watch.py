"""A look at our slot now and then: whether the server is about to give it up, and how far its log
goes."""

from collections.abc import Mapping
from typing import Any

from penstock.feeds.postgres.connect import SideConnection
from penstock.feeds.postgres.slot import Slot
from penstock.model.errors import PenstockError

INTERVAL = 10.0  # seconds

_QUERY = """
SELECT wal_status, safe_wal_size,
    (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END
    - '0/0'::pg_lsn)::bigint
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""


_AT_RISK = "so far behind that the server may give its slot up (its wal_status is unreserved)"


class Watch:
    """`wal_status` and `safe_wal_size` of a slot, as they were within the last seconds."""

    def __init__(self, side: SideConnection, slot: Slot, now: float) -> None:
        self._side = side
        self._slot = slot.name
        self._wal_status = slot.wal_status
        self._safe: int | None = None
        self.newest = 0  # LSN up to which the server had its log on disk, at the last look
        self._looked_at = now

    def refresh(self, now: float) -> None:
        """Looks if it is time to; what keeps us from looking is found by the stream itself."""
        if now - self._looked_at < INTERVAL:
            return
        self._looked_at = now
        try:
            rows = self._side.rows(_QUERY, self._slot)
        except PenstockError:
            return
        for status, safe, newest in rows:
            self._wal_status, self._safe, self.newest = status or "", safe, newest or 0

    @property
    def at_risk(self) -> str:
        """Why the slot may soon be lost; "" if it may not."""
        return _AT_RISK if self._wal_status == "unreserved" else ""

    def status(self) -> Mapping[str, Any]:
        """Plain JSON: `safe_wal_size` is in bytes, None without a limit."""
        return {"wal_status": self._wal_status, "safe_wal_size": self._safe}
