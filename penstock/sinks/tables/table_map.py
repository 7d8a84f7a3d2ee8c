"""Which tables of which sources are in the map, with their rows of the ledger."""

import re
from collections import defaultdict
from typing import Any

from penstock.model.position import PartitionId
from penstock.process.closing import Closes
from penstock.sinks.poison.dead_letter import Letter
from penstock.sinks.tables.database import TableDatabase
from penstock.sinks.tables.settings import MappedTable
from penstock.sinks.tables.source_table import SourceTable

LETTER = 1 << 20  # bytes of a dead letter at most


class TableMap(Closes):
    """Finds tables; one that comes for the first time gets its row of the ledger."""

    def __init__(self, database: TableDatabase) -> None:
        self._database = database
        self._named: dict[tuple[str, str, str], MappedTable] = {}
        self._patterns: defaultdict[str, list[tuple[re.Pattern[str], MappedTable]]]
        self._patterns = defaultdict(list)
        for table in database.settings.tables():
            if table.options.partitions:
                pattern = re.compile(table.options.partitions)
                self._patterns[table.backend].append((pattern, table))
            else:
                self._named[table.backend, table.schema_name, table.table] = table
        self._known: dict[tuple[str, str, str, str], SourceTable | None] = {}
        self._entered: dict[tuple[str, str, str], SourceTable] = {}
        self._connection: Any = None

    def find(
        self, backend: str, sid: PartitionId, schema: str | None, table: str | None
    ) -> SourceTable | None:
        """The table of the map that a source's table is, or is a partition of; None if there is
        none. Raises Unavailable, SettingsError."""
        key = backend, str(sid), schema or "", table or ""
        if key not in self._known:
            mapped = self.mapped(backend, schema or "", table or "")
            self._known[key] = None if mapped is None else self._enter(mapped, sid)
        return self._known[key]

    def keep_letter(self, letter: Letter) -> None:
        """Stores a dead letter. Raises Unavailable, SettingsError."""
        with self._database.translated("storing a dead letter"), self._opened().transaction():
            ledger = self._database.ledger(self._connection.cursor())
            ledger.keep_letters([(letter.event_id, letter.body(LETTER).decode())])

    def close(self) -> None:
        """Disconnects."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def mapped(self, backend: str, schema: str, table: str) -> MappedTable | None:
        """What the map says of a source's table."""
        named = self._named.get((backend, schema, table))
        if named is not None:
            return named
        return next(
            (
                mapped for pattern, mapped in self._patterns[backend]
                if mapped.schema_name == schema and pattern.fullmatch(table)
            ),
            None,
        )  # fmt: skip

    def _enter(self, mapped: MappedTable, sid: str) -> SourceTable:
        key = mapped.backend, mapped.source, sid
        if key not in self._entered:
            with self._database.translated("reading the ledger"), self._opened().transaction():
                ledger = self._database.ledger(self._connection.cursor())
                ledger.make()
                row = mapped.enter(ledger, sid, initial=self._database.settings.initial)
            self._entered[key] = SourceTable(mapped=mapped, sid=sid, id=row.id)
        return self._entered[key]

    def _opened(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._database.connect()
        return self._connection
