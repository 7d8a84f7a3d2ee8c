"""Slots that a test takes away behind their readers' backs."""

import time

from psycopg.errors import ObjectInUse

from tests.servers import Database, Postgres

_CUT_OFF = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
_DROP = "SELECT pg_drop_replication_slot(%s)"


def drop_slots(database: Database) -> None:
    """Drops all slots of a database, once their readers have gone."""
    for (slot,) in database.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    ):
        drop_slot(database, slot)


def drop_slot(server: Database | Postgres, slot: str, *, taken: bool = False) -> None:
    """Drops the slot, once its reader has gone; with `taken` the reader is cut off."""
    # A walsender ends a moment after its client has closed the connection.
    deadline = time.monotonic() + 60
    while True:
        try:
            for statement in [*([_CUT_OFF] if taken else []), _DROP]:
                server.execute(statement, [slot])
        except ObjectInUse:
            assert time.monotonic() < deadline, f"the slot {slot} is never free"
            time.sleep(0.02)
        else:
            return
