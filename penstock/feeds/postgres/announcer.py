"""The schemas that a log announces: those of followed tables are recorded before their changes."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from penstock.feeds.postgres.pages import KnownRelation
from penstock.feeds.postgres.schemas import Ask, announced
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.system_catalog import SchemaHistory, no_history
from penstock.model.errors import Malformed, PenstockError
from penstock.model.table_schema import TableSchema

_AGAIN = 60.0  # seconds after which a catalogue that did not answer is asked again

log = logging.getLogger("penstock")


class SchemaAnnouncer:
    """Calls `record` with the schema that the catalogue has, at each Relation message: the server
    sends the same one again after changes that only the catalogue shows, such as another filter.
    `record` passes over what it has. A message that is older than the catalogue is recorded first.
    Tables that the publication does not send, such as the leaves of a partitioned table that it
    sends as one, are left out. A catalogue that does not answer holds up no changes: then a schema
    is left out, until its next message."""

    def __init__(
        self,
        settings: PostgresSettings,
        record: Callable[[TableSchema], None],
        history: SchemaHistory = no_history,
    ) -> None:
        self._settings, self._record, self.history = settings, record, history
        self._ask_at = 0.0  # monotonic seconds
        self._has_failed = False

    def announce(self, known: KnownRelation, ask: Ask, position: str | None) -> None:
        """A Relation message at this position. Raises what `record` raises."""
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
            self._record(replace(schema, position=position))
