"""Schemas that a source announces, stored before the pages that need them are handed out."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.model.errors import PenstockError, Unavailable
from penstock.model.table_schema import SchemaStore, TableName, TableSchema

_AGAIN = 60.0  # seconds after which a store that refused us is tried again

log = logging.getLogger("penstock")


class Announced:
    """A `feeds.AnnouncedSchemas`, over a sink's store. Where the store cannot be reached the read
    fails, and is tried again: the sink could not store the changes either. Where it refuses a
    schema, changes flow, the log says so once, and a later announcement stores it as well."""

    def __init__(self, store: SchemaStore) -> None:
        self._store = store
        self._missing: dict[TableName, TableSchema] = {}
        self._try_at = 0.0  # monotonic seconds
        self._has_failed = False

    def history(self, schema: str, table: str) -> Sequence[Mapping[str, Any]]:
        """The documents that are stored of a table, the oldest first. Raises Unavailable."""
        try:
            return self._store.history(schema, table)
        except Unavailable:
            raise
        except PenstockError:
            return ()

    def record(self, schema: TableSchema) -> None:
        self._missing[schema.name] = schema
        if time.monotonic() < self._try_at:
            return
        try:
            self._store.put(*self._missing.values())
        except Unavailable as error:
            raise Unavailable(
                f"storing the schema of {schema.schema}.{schema.table}: {error.message}",
                error.code,
                hint=error.hint,
            ) from error
        except PenstockError as error:
            if not self._has_failed:
                log.warning("schemas of tables are not stored now; changes flow: %s", error)
            self._has_failed, self._try_at = True, time.monotonic() + _AGAIN
        else:
            self._missing.clear()
            self._has_failed = False
