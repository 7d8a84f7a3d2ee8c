"""The schemas that a log announces: each of a followed table is recorded once."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from penstock.errors import Malformed, PenstockError
from penstock.feeds.postgres.schemas import Ask, relation_in, schema_of
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.table_schema import TableSchema
from penstock.wire.pgoutput.schema import schema_version

_AGAIN = 60.0  # seconds after which a catalogue that did not answer is asked again

log = logging.getLogger("penstock")


class SchemaAnnouncer:
    """Calls `record` with each schema once; the feed keeps it, because every reader of a slot is
    sent all Relation messages anew. A catalogue that does not answer holds up no changes: then a
    schema is left out, until its next message."""

    def __init__(self, settings: PostgresSettings, record: Callable[[TableSchema], None]) -> None:
        self._settings, self._record = settings, record
        self._recorded: dict[bytes, str] = {}  # OID -> version
        self._ask_at = 0.0  # monotonic seconds
        self._has_failed = False

    def announce(self, raw: bytes, ask: Ask, position: str | None) -> None:
        """A Relation message (from `R`, no xid) at this position. Raises what `record` raises."""
        oid, version = raw[1:5], schema_version(raw)
        if self._recorded.get(oid) == version or time.monotonic() < self._ask_at:
            return
        try:
            relation, wanted = relation_in(raw), self._settings.tables
            if wanted and f"{relation.namespace}.{relation.name}" not in wanted:
                return
            schema = schema_of(ask, self._settings, raw)
        except Malformed:
            return  # the decoder says what is wrong with it
        except PenstockError as error:
            if not self._has_failed:
                log.warning("a schema is not stored before its changes: %s", error)
            self._has_failed, self._ask_at = True, time.monotonic() + _AGAIN
            return
        self._has_failed = False
        self._record(replace(schema, position=position))
        self._recorded[oid] = version
