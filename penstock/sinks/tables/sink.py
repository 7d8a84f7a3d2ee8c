"""The PostgreSQL sink: changes in, rows of its tables out, each commit with its ledger rows."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from penstock.model.errors import SettingsError
from penstock.model.finding import Finding
from penstock.model.position import PartitionId
from penstock.model.table_schema import TableSchema
from penstock.sinks import Decode, Progress, Receipt, Record
from penstock.sinks.poison.stored_letters import find_letter
from penstock.sinks.tables.check import check, check_tables, left_sources
from penstock.sinks.tables.database import TableDatabase
from penstock.sinks.tables.load import LedgerLoad, unfinished
from penstock.sinks.tables.set_aside import TableLetters
from penstock.sinks.tables.write import TableWrite
from penstock.tables.ledger import TableRecord, TargetLedger


class TableSink:
    """A `penstock.sinks.Sink` of rows; see its settings for what it can do."""

    def __init__(self, database: TableDatabase) -> None:
        self.settings, self._database = database.settings, database

    def write(self, changes: Iterable[pa.RecordBatch], progress: Progress) -> Receipt:
        """See `Sink.write`. Durable is what was committed, with its rows of the ledger."""
        return TableWrite(self._database, progress).run(changes)

    def prepare(self) -> None:
        """Makes the ledger. Raises SettingsError, Unavailable."""
        with self._ledger():
            pass

    def records(
        self, backend: str, partitions: Sequence[PartitionId]
    ) -> Mapping[PartitionId, Record]:
        """See `ReportsPositions`: the ledger knows which sources it has something of; how far each
        is, it knows by table."""
        with self._ledger() as (ledger, cursor):
            begun = ledger.begun(cursor, backend)
        return {name: Record(begun=name in begun) for name in partitions}

    def last(self, backend: str) -> None:
        """See `ReportsPositions`: databases do not come and go."""

    def check(self) -> Sequence[Finding]:
        return list(check(self._database))

    def check_tables(
        self,
        backend: str,
        schemas: Sequence[TableSchema],
        partitions: Sequence[PartitionId] = (),
    ) -> Sequence[Finding]:
        return list(check_tables(self._database, backend, schemas, partitions))

    def left(self, backend: str) -> Collection[str]:
        return left_sources(self._database, backend)

    def dead_letters(self) -> Iterator[Mapping[str, Any]]:
        with self._set_aside() as aside:
            yield from (kept.listed() for kept in aside.stored())

    def dead_letter(self, id: str) -> Mapping[str, Any]:
        with self._set_aside() as aside:
            return find_letter(aside, id).whole()

    def replay(self, id: str, decode: Decode) -> Mapping[str, Any]:
        with self._set_aside() as aside:
            return aside.replay(id, decode)

    def tables(self) -> Sequence[Mapping[str, Any]]:
        with self._set_aside() as aside:
            return aside.tables()

    def suspend_table(self, backend: str, table: str) -> Mapping[str, Any]:
        """See `KeepsLetters`."""
        with self._set_aside() as aside:
            return aside.suspend(backend, table)

    def resume_table(self, backend: str | None, table: str) -> Mapping[str, Any]:
        with self._set_aside() as aside:
            return aside.resume(backend, table)

    @contextmanager
    def _ledger(self) -> Iterator[tuple[TargetLedger, Any]]:
        ledger = self._database.ledger
        with self._database.transaction("opening the ledger") as cursor:
            ledger.make(cursor)
            yield ledger, cursor

    @contextmanager
    def _set_aside(self) -> Iterator[TableLetters]:
        with self._ledger() as (_, cursor):
            yield TableLetters(self._database, cursor)

    def enter(
        self, backend: str, partition: PartitionId, *, initial: bool
    ) -> Sequence[Mapping[str, Any]]:
        with self._ledger() as (ledger, cursor):
            for table in self.settings.tables(backend):
                table.enter(ledger, cursor, str(partition), initial=initial)
            return [each.described() for each in self._mapped(cursor, backend, partition)]

    def _mapped(self, cursor: Any, backend: str, partition: PartitionId) -> Sequence[TableRecord]:
        """The tables of a partition that are in the map."""
        known = {table.source for table in self.settings.tables(backend)}
        found = self._database.ledger.tables(cursor, (backend, str(partition)))
        return [each for each in found if each.table in known]

    def load_after(self, backend: str, partition: PartitionId, losses: str) -> bool:
        with self._ledger() as (ledger, cursor):
            tables = [each.id for each in self._mapped(cursor, backend, partition)]
            return ledger.load_after(cursor, tables, losses)

    def leave(
        self, backend: str, partitions: Collection[PartitionId] | None
    ) -> Sequence[Mapping[str, Any]]:
        with self._ledger() as (ledger, cursor):
            tables = self.settings.tables(backend)
            kept = [(each.schema_name, each.table, each.full_target) for each in tables]
            gone = ledger.leave(cursor, backend, kept, partitions)
            return [each.described() for each in ledger.tables(cursor) if each.id in gone]

    def unfinished(self) -> Sequence[LedgerLoad]:
        with self._ledger() as (_, cursor):
            return unfinished(self._database, cursor)

    def reload(
        self, table: str, partition: str | None, backend: str | None = None
    ) -> Sequence[str]:
        with self._ledger() as (ledger, cursor):
            found = {
                id: f"{schema}.{name} of {db}/{sid}"
                for (db, sid, schema, name), id in ledger.known(cursor)
                if table in (f"{schema}.{name}", name)
                and partition in (None, sid)
                and backend in (None, db)
            }
            if not found:
                raise SettingsError(
                    f"the ledger has no table {table}" + (f" of {partition}" if partition else ""),
                    hint="write `table` or `schema.table` of the source, and its sid",
                )
            for id in found:
                ledger.load_anew(cursor, id)
        return [*found.values()]
