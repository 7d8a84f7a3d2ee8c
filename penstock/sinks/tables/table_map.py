"""Which tables of which sources are in the map, with their rows of the ledger."""

import re
from collections import defaultdict
from collections.abc import Mapping

from penstock.model.position import PartitionId
from penstock.sinks.tables.settings import MappedTable, TableSinkSettings
from penstock.sinks.tables.source_table import SourceTable


class TableMap:
    """Finds tables. Those of a source that is new get their rows of the ledger."""

    def __init__(self, settings: TableSinkSettings) -> None:
        self._settings = settings
        self._named: dict[tuple[str, str, str], MappedTable] = {}
        self._patterns: defaultdict[str, list[tuple[re.Pattern[str], MappedTable]]]
        self._patterns = defaultdict(list)
        for table in settings.tables():
            if table.options.partitions:
                self._patterns[table.backend].append((re.compile(table.options.partitions), table))
            else:
                self._named[table.backend, table.schema_name, table.table] = table
        # Of a backend and a source, by what the source calls them.
        self._entered: dict[tuple[str, PartitionId], Mapping[str, SourceTable]] = {}

    def find(
        self, backend: str, sid: PartitionId, schema: str | None, table: str | None
    ) -> SourceTable | None:
        """The table of the map that a source's table is, or is a partition of; None if there is
        none. Raises Unavailable, SettingsError."""
        if (mapped := self.mapped(backend, schema or "", table or "")) is None:
            return None
        if (backend, sid) not in self._entered:
            self._entered[backend, sid] = self._enter(backend, sid)
        return self._entered[backend, sid][mapped.source]

    def mapped(self, backend: str, schema: str, table: str) -> MappedTable | None:
        """What the map says of a source's table."""
        if (named := self._named.get((backend, schema, table))) is not None:
            return named
        return next(
            (
                mapped for pattern, mapped in self._patterns[backend]
                if mapped.schema_name == schema and pattern.fullmatch(table)
            ),
            None,
        )  # fmt: skip

    def _enter(self, backend: str, sid: PartitionId) -> Mapping[str, SourceTable]:
        settings, database = self._settings, self._settings.database()
        with database.transaction("reading the ledger") as cursor:
            ledger = database.ledger(cursor)
            ledger.make()
            rows = {
                each.source: (each, each.enter(ledger, sid, initial=settings.initial))
                for each in settings.tables(backend)
            }
        return {
            name: SourceTable(mapped=mapped, sid=sid, id=row.id)
            for name, (mapped, row) in rows.items()
        }
