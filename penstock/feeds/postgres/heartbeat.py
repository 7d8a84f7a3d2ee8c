"""A logical message now and then, so that an idle database's slot keeps moving."""

from penstock.feeds.postgres.connect import SideConnection
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX


class Heartbeat:
    """Writes into the WAL every `interval` seconds; never, if that is None."""

    def __init__(self, side: SideConnection, interval: float | None, now: float) -> None:
        self._side = side
        self._interval = interval
        self._beaten_at = now

    def beat(self, now: float) -> None:
        """Beats if it is time to. Raises Unavailable or SettingsError."""
        if self._interval is None or now - self._beaten_at < self._interval:
            return
        self._beaten_at = now
        self._side.rows(
            "SELECT pg_catalog.pg_logical_emit_message(false, %s, '')", HEARTBEAT_PREFIX
        )
