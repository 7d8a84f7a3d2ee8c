"""What a connection of ours waits for: locks and new slots wait for older transactions."""

import time
from collections.abc import Callable
from contextlib import suppress

from penstock.feeds.postgres.connect import SideConnection
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.model.errors import PenstockError

_EVERY = 2.0  # seconds

# A prepared transaction has no process: the lock of its own id leads from other locks to its name.
_BLOCKERS = """
WITH ours AS (SELECT unnest(%s::int[]) AS pid)
SELECT DISTINCT blocker, to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
FROM (
    SELECT format('process %%s (%%s)', b.pid, coalesce(b.state, b.backend_type)), b.xact_start
    FROM ours, unnest(pg_catalog.pg_blocking_pids(ours.pid)) AS p (pid)
    JOIN pg_catalog.pg_stat_activity b ON b.pid = p.pid
    UNION ALL
    SELECT format('the prepared transaction %%L', x.gid), x.prepared
    FROM ours
    JOIN pg_catalog.pg_locks w ON w.pid = ours.pid AND NOT w.granted
    JOIN pg_catalog.pg_locks h ON h.granted AND h.pid IS NULL AND h.locktype = w.locktype
        AND (h.transactionid = w.transactionid
             OR (h.database, h.relation) = (w.database, w.relation))
    JOIN pg_catalog.pg_locks own ON own.pid IS NULL AND own.locktype = 'transactionid'
        AND own.virtualtransaction = h.virtualtransaction
    JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = own.transactionid
) AS found (blocker, since)
ORDER BY blocker
"""


class LockWait:
    """Used as the `is_stopped` of connections with these `pids`, which is called while they wait:
    then it looks every few seconds, and reports in words to `on_wait`, "" at the end. `seen` is
    what it found last."""

    def __init__(
        self,
        settings: PostgresSettings,
        is_stopped: Callable[[], bool],
        on_wait: Callable[[str], None],
    ) -> None:
        self.pids: list[int] = []
        self.seen = ""
        self._side = SideConnection(settings)
        self._is_stopped, self._on_wait = is_stopped, on_wait
        self._look_at: float | None = time.monotonic() + _EVERY  # None: it is over

    def __call__(self) -> bool:
        if self._is_stopped():
            return True
        if self._look_at is not None and self.pids and time.monotonic() >= self._look_at:
            with suppress(PenstockError):
                found = self._side.rows(_BLOCKERS, self.pids)
                text = ", ".join(f"{blocker} since {since}" for blocker, since in found)
                self.seen = text or self.seen  # nothing, where the wait has just timed out
                self._on_wait(text)
            self._look_at = time.monotonic() + _EVERY
        return False

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._look_at = None
        self._side.close()
        self._on_wait("")
