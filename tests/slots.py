"""Slots that a test takes away, or moves, behind its reader's back."""

import time

from psycopg.errors import ObjectInUse

from tests.servers import Database, Postgres

_CUT_OFF = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
_DROP = "SELECT pg_drop_replication_slot(%s)"
_ADVANCE = "SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())"


def drop_slot(server: Database | Postgres, slot: str, *, taken: bool = False) -> None:
    """Drops the slot, once its reader has gone; with `taken` the reader is cut off."""
    _once_free(server, slot, *([_CUT_OFF] if taken else []), _DROP)


def advance_slot(server: Database | Postgres, slot: str) -> None:
    """Moves the slot past everything, as another reader would, once its reader has gone."""
    _once_free(server, slot, _ADVANCE)


def _once_free(server: Database | Postgres, slot: str, *statements: str) -> None:
    # A walsender ends a moment after its client has closed the connection.
    deadline = time.monotonic() + 60
    while True:
        try:
            for statement in statements:
                server.execute(statement, [slot])
        except ObjectInUse:
            assert time.monotonic() < deadline, f"the slot {slot} is never free"
            time.sleep(0.02)
        else:
            return
