"""What is done on an ordinary connection while a slot is read: relations are described, schemas are
recorded before their changes, the slot is looked at, and moved by messages while all is idle.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.feeds import AnnouncedSchemas
from penstock.feeds.postgres.collecting import KnownRelation
from penstock.feeds.postgres.connect import SideConnection
from penstock.feeds.postgres.publication import keep_publication
from penstock.feeds.postgres.schemas import announced, numbered_columns
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.slot import Slot
from penstock.feeds.postgres.system_catalog import Ask, Catalogue
from penstock.model.errors import Malformed, PenstockError
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX
from penstock.wire.pgoutput.messages import Type

INTERVAL = 10.0  # seconds
_KEEPING = 30.0  # seconds between two looks at the tables of penstock's own publication
_AGAIN = 60.0  # seconds after which a catalogue that did not answer is asked again
# The log has a commit before other sessions see it: for a moment, or until a synchronous standby
# has it. How many seconds are waited for that, and between two looks.
_UNSEEN, _LOOK = 10.0, 0.01

log = logging.getLogger("penstock")

_QUERY = """
SELECT wal_status, safe_wal_size, (SELECT nullif(setting::bigint, -1) * 1024 * 1024
        FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
    (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END
    - '0/0'::pg_lsn)::bigint
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""

# A transaction holds this lock until all see what it did.
_OPEN = """
SELECT true FROM pg_catalog.pg_locks WHERE locktype = 'transactionid'
    AND transactionid = %s::text::xid
"""

_AT_RISK = "so far behind that the server may give its slot up (its wal_status is unreserved)"


@dataclass(slots=True, kw_only=True)
class SlotMemory:
    """What a feed remembers from one following of its slot to the next. `streaming`: transactions
    are taken while they run. `numbers`: pages have columns' numbers; `marks`: and which history
    changes are of. `unknown`: types, by table. `left_out`: tables, and why."""

    streaming: bool = True
    numbers: bool = False
    marks: bool = False
    announcer: "SchemaAnnouncer | None" = None
    unknown: dict[str, str] = field(default_factory=dict)
    left_out: Mapping[tuple[str, str], PenstockError] = field(default_factory=dict)


class SideWork:
    """The work besides one stream. `newest`: the LSN of the log on disk, at the last look."""

    def __init__(
        self, settings: PostgresSettings, slot: Slot, memory: SlotMemory, now: float
    ) -> None:
        self._side = SideConnection(settings)
        self._announcer = memory.announcer
        stored = None if memory.announcer is None else memory.announcer.announced
        self._catalogue = Catalogue(self._side, stored, memory.unknown)
        self._numbers_in = settings.publication if memory.numbers else ""
        self._settings, self._memory, self._kept_at = settings, memory, -_KEEPING
        self._interval, self._beaten_at = settings.heartbeat, now
        # The slot as it was within the last seconds.
        self._slot, self._wal_status, self._looked_at = slot.name, slot.wal_status, now
        self._safe: int | None = None
        self._kept: int | None = None
        self.newest = 0

    def describe(
        self, raw: bytes, types: Mapping[int, Type], xid: int, position: str | None
    ) -> KnownRelation:
        """What to remember of a Relation message at this position; its schema is announced first.
        Raises Unavailable, and what the announcement raises."""
        is_seen = not xid or self._awaited(xid)
        known = self._catalogue.describe(raw, types, xid)
        if self._numbers_in and is_seen:
            oid = int.from_bytes(raw[1:5], "big")
            found = numbered_columns(self._side.rows, self._numbers_in, oid, xid)
            known = replace(known, catalog=found)
        if self._announcer is not None:
            self._announcer.announce(known, self._side.rows, position)
        return known

    def _awaited(self, xid: int) -> bool:
        """Waits until the catalogue has what a transaction did; False if that takes too long."""
        until = time.monotonic() + _UNSEEN
        while is_open := bool([*self._side.rows(_OPEN, str(xid))]):
            if time.monotonic() > until:
                break
            time.sleep(_LOOK)
        return not is_open

    def turn(self, now: float) -> None:
        """A heartbeat and a look at the slot, if it is time. Raises Unavailable, SettingsError."""
        if self._interval is not None and now - self._beaten_at >= self._interval:
            self._beaten_at = now
            beat = "SELECT pg_catalog.pg_logical_emit_message(false, %s, '')"
            self._side.rows(beat, HEARTBEAT_PREFIX)
        if now - self._looked_at >= INTERVAL:
            self._looked_at = now
            with suppress(PenstockError):  # the stream itself finds what is wrong
                for status, safe, kept, newest in self._side.rows(_QUERY, self._slot):
                    self._wal_status, self._safe, self._kept = status or "", safe, kept
                    self.newest = newest or 0

        if now - self._kept_at >= _KEEPING:
            self._kept_at = now
            with suppress(PenstockError):  # a lock, or rights that a new table needs
                self._memory.left_out = keep_publication(self._side.rows, self._settings)

    @property
    def at_risk(self) -> str:
        """Why the slot may soon be lost; "" if it may not."""
        return _AT_RISK if self._wal_status == "unreserved" else ""

    @property
    def window(self) -> Mapping[str, int | None]:
        """In bytes; None without a limit. A server may keep a little more than it must."""
        known = self._safe is not None and self._kept is not None
        left = min(max(0, self._safe or 0), self._kept or 0) if known else None
        return {"window_bytes": self._kept if known else None, "window_left_bytes": left}

    def status(self) -> Mapping[str, Any]:
        """Plain JSON: `safe_wal_size` is in bytes, None without a limit."""
        return {"wal_status": self._wal_status, "safe_wal_size": self._safe}

    def close(self) -> None:
        self._side.close()


class SchemaAnnouncer:
    """Records the schema that the catalogue has, at each Relation message: the server sends the
    same one again after changes that only the catalogue shows, such as another filter; what is
    stored already is passed over. A message that is older than the catalogue is recorded first.
    Tables that the publication does not send by themselves are left out. A catalogue that does not
    answer holds up no changes: then a schema is left out, until its next message."""

    def __init__(self, settings: PostgresSettings, announced: AnnouncedSchemas) -> None:
        self._settings, self.announced = settings, announced
        self._ask_at = 0.0  # monotonic seconds
        self._has_failed = False

    def announce(self, known: KnownRelation, ask: Ask, position: str | None) -> None:
        """A Relation message at this position. Raises what recording raises."""
        if time.monotonic() < self._ask_at:
            return
        try:
            found = announced(ask, self._settings, known)
        except Malformed:
            return  # the decoder reports what is wrong with it
        except PenstockError as error:
            if not self._has_failed:
                log.warning("a schema is not stored before its changes: %s", error)
            self._has_failed, self._ask_at = True, time.monotonic() + _AGAIN
            return
        self._has_failed = False
        for schema in found:
            self.announced.record(replace(schema, position=position))
