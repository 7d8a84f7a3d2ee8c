"""Schemas that a source announces, stored before the pages that need them are handed out."""

import logging

from penstock.errors import PenstockError, SettingsError, Unavailable
from penstock.sinks import SchemaStore
from penstock.table_schema import TableSchema

log = logging.getLogger("penstock")


class Announced:
    """Called with each schema. Where the store is away the read fails, and is tried again: without
    it the sink could not store the changes either. Where it refuses us, changes flow without
    schemas, and the log says so once."""

    def __init__(self, store: SchemaStore) -> None:
        self._store = store
        self._is_refused = False

    def __call__(self, schema: TableSchema) -> None:
        if self._is_refused:
            return
        try:
            self._store.put(schema)
        except SettingsError as error:
            log.warning("schemas of tables are not stored: %s", error)
            self._is_refused = True
        except PenstockError as error:
            raise Unavailable(
                f"storing the schema of {schema.schema}.{schema.table}: {error.message}",
                hint=error.hint,
            ) from error
