"""A logical message now and then, so that an idle database's slot keeps moving."""

from penstock.feeds.postgres.connect import Ordinary, connect_ordinary
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX

__all__ = ["Heartbeat"]


class Heartbeat:
    """Writes into the WAL every `settings.heartbeat` seconds; never, if that is not set."""

    def __init__(self, settings: PostgresSettings, now: float) -> None:
        self._settings = settings
        self._beaten_at = now
        self._connection: Ordinary | None = None

    def beat(self, now: float) -> None:
        """Beats if it is time to. Raises Unavailable or SettingsError."""
        interval = self._settings.heartbeat
        if interval is None or now - self._beaten_at < interval:
            return
        self._beaten_at = now
        with translating("writing a heartbeat"):
            if self._connection is None or self._connection.closed:
                self._connection = connect_ordinary(self._settings)
            self._connection.execute(
                "SELECT pg_catalog.pg_logical_emit_message(false, %s, '')", (HEARTBEAT_PREFIX,)
            )

    def next_in(self, now: float) -> float:
        """Seconds until the next beat."""
        interval = self._settings.heartbeat
        return 3600.0 if interval is None else max(0.0, self._beaten_at + interval - now)

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
