"""What is done on an ordinary connection while a slot is read: relations are described, the slot is
looked at, an idle database's slot is kept moving by a logical message."""

from collections.abc import Mapping
from typing import Any

from penstock.feeds.postgres.announcer import SchemaAnnouncer
from penstock.feeds.postgres.connect import SideConnection
from penstock.feeds.postgres.pages import KnownRelation
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.slot import Slot
from penstock.feeds.postgres.system_catalog import Catalogue, no_history
from penstock.model.errors import PenstockError
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX
from penstock.wire.pgoutput.messages import Type

INTERVAL = 10.0  # seconds

_QUERY = """
SELECT wal_status, safe_wal_size,
    (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END
    - '0/0'::pg_lsn)::bigint
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""


_AT_RISK = "so far behind that the server may give its slot up (its wal_status is unreserved)"


class SideWork:
    """The work beside one stream: `watch` is what is known of the slot."""

    def __init__(
        self,
        settings: PostgresSettings,
        slot: Slot,
        announcer: SchemaAnnouncer | None,
        unknown: dict[str, str] | None,
        now: float,
    ) -> None:
        self._side = SideConnection(settings)
        self._announcer = announcer
        history = no_history if announcer is None else announcer.history
        self._catalogue = Catalogue(self._side, history, unknown)
        self._interval, self._beaten_at = settings.heartbeat, now
        self.watch = Watch(self._side, slot, now)

    def describe(
        self, raw: bytes, types: Mapping[int, Type], xid: int, position: str | None
    ) -> KnownRelation:
        """What to remember of a Relation message at this position; its schema is announced first.
        Raises Unavailable, and what the announcement raises."""
        known = self._catalogue.describe(raw, types, xid)
        if self._announcer is not None:
            self._announcer.announce(known, self._side.rows, position)
        return known

    def turn(self, now: float) -> None:
        """Writes a heartbeat and looks at the slot, each if it is time to. Raises Unavailable or
        SettingsError."""
        if self._interval is not None and now - self._beaten_at >= self._interval:
            self._beaten_at = now
            beat = "SELECT pg_catalog.pg_logical_emit_message(false, %s, '')"
            self._side.rows(beat, HEARTBEAT_PREFIX)
        self.watch.refresh(now)

    def close(self) -> None:
        """Closes the connection."""
        self._side.close()


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
