"""What a connection of ours waits for: locks and new slots wait for older transactions."""

import time
from collections.abc import Callable
from contextlib import suppress

from penstock.errors import PenstockError
from penstock.feeds.postgres.connect import SideConnection
from penstock.feeds.postgres.settings import PostgresSettings

_EVERY = 2.0  # seconds

_BLOCKERS = """
SELECT DISTINCT b.pid, coalesce(b.state, b.backend_type),
       to_char(b.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
FROM unnest(%s::int[]) AS ours (pid), unnest(pg_catalog.pg_blocking_pids(ours.pid)) AS p (pid)
JOIN pg_catalog.pg_stat_activity b ON b.pid = p.pid
ORDER BY b.pid
"""


class LockWait:
    """Used as the `is_stopped` of connections with these `pids`, which is called while they wait:
    then it looks every few seconds, and reports in words to `on_wait`, "" at the end."""

    def __init__(
        self,
        settings: PostgresSettings,
        is_stopped: Callable[[], bool],
        on_wait: Callable[[str], None],
    ) -> None:
        self.pids: list[int] = []
        self._side = SideConnection(settings)
        self._is_stopped, self._on_wait = is_stopped, on_wait
        self._look_at: float | None = time.monotonic() + _EVERY  # None: it is over

    def __call__(self) -> bool:
        if self._is_stopped():
            return True
        if self._look_at is not None and self.pids and time.monotonic() >= self._look_at:
            with suppress(PenstockError):
                found = self._side.rows(_BLOCKERS, self.pids)
                texts = [f"process {pid} ({state}) since {since}" for pid, state, since in found]
                self._on_wait(", ".join(texts))
            self._look_at = time.monotonic() + _EVERY
        return False

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._look_at = None
        self._side.close()
        self._on_wait("")
