"""A sink of tables: changes in, rows of its tables out, each commit with its ledger rows."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa

from penstock.model.errors import PenstockError, SettingsError
from penstock.model.finding import Finding
from penstock.model.position import ROWS, Bookmark, Bookmarks, PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.sinks import Progress, Receipt, Record, SinkPlugin
from penstock.sinks.tables.catalogue import compare
from penstock.sinks.tables.check import check, check_tables, left_sources
from penstock.sinks.tables.load import LedgerLoad
from penstock.sinks.tables.preview import PreviewsTable, previewing
from penstock.sinks.tables.set_aside import TableLetters
from penstock.sinks.tables.settings import DatabaseSinkSettings, wanted
from penstock.sinks.tables.sources import mark_of
from penstock.sinks.tables.table_map import TableMap
from penstock.sinks.tables.write import TableWrite
from penstock.tables.database import HeldConnection, TableDatabase
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_rows import SourceRecord, TableRecord

_NOWHERE = Place("", -1)


class TableSink(TableLetters):
    """A `penstock.sinks.Sink` of rows; see its settings for what it can do."""

    def write(self, changes: Iterable[pa.RecordBatch], progress: Progress) -> Receipt:
        """See `Sink.write`. Durable is what was committed, with its rows of the ledger."""
        return TableWrite(self.settings, progress).run(changes)

    def previewing(self) -> AbstractContextManager[PreviewsTable]:
        """See `PreviewsTables`."""
        return previewing(self.settings)

    def prepare(self) -> None:
        """Makes the ledger. Raises SettingsError, Unavailable."""
        with self._ledger():
            pass

    def records(
        self, backend: str, partitions: Sequence[PartitionId]
    ) -> Mapping[PartitionId, Record]:
        """See `ReportsPositions`: what was reported as stored."""
        with self._ledger() as (ledger, _):
            begun = {
                each.sid for each in ledger.tables()
                if each.backend == backend and each.row.place and each.row.is_followed
            }  # fmt: skip
            known = ledger.sources(backend, locks=False)
        found = {
            sid: Record(
                bookmark=Bookmark(each.place, mark_of(each.mark)),
                begun=each.place is not None or sid in begun, is_kept=True,
            )
            for sid, each in known.items()
        }  # fmt: skip
        return {name: found.get(name, Record(begun=name in begun)) for name in partitions}

    def adopt(self, backend: str, saved: Bookmarks) -> None:
        with self._ledger() as (ledger, _):
            found = ledger.sources(backend)
            for sid, bookmark in saved.items():
                known = found.get(sid)
                if known is None or (known.place or _NOWHERE) < (bookmark.place or _NOWHERE):
                    known = SourceRecord(bookmark.place, known.mark if known else "")
                    ledger.keep_source(backend, sid, known)

    def last(self, backend: str) -> None:
        """See `ReportsPositions`: databases do not come and go."""

    def check(self) -> Sequence[Finding]:
        return list(check(self.settings))

    def check_tables(
        self,
        backend: str,
        schemas: Sequence[TableSchema],
        partitions: Sequence[PartitionId] = (),
    ) -> Sequence[Finding]:
        return list(check_tables(self.settings, backend, schemas, partitions))

    def left(self, backend: str) -> Collection[str]:
        return left_sources(self._database, backend)

    def enter(
        self, backend: str, partition: PartitionId, *, initial: bool
    ) -> Sequence[Mapping[str, Any]]:
        with self._ledger() as (ledger, _):
            for table in self.settings.tables(backend):
                table.enter(ledger, str(partition), initial=initial)
            return [each.described() for each in self._mapped(ledger, backend, partition)]

    def notice(
        self, backend: str, partition: PartitionId, schemas: Sequence[TableSchema],
        left_out: Mapping[tuple[str, str], PenstockError] = MappingProxyType({}),
    ) -> Mapping[str, str]:  # fmt: skip
        table_map, found = TableMap(self.settings), dict[str, dict[str, TableSchema]]()
        for each in schemas:
            if (mapped := table_map.mapped(backend, each.schema, each.table)) is not None:
                same = found.setdefault(mapped.source, {})
                same[f"{each.schema}.{each.table}"] = each
        lacking = {
            mapped.source: error for name, error in left_out.items()
            if (mapped := table_map.mapped(backend, *name)) is not None
        }  # fmt: skip
        tables = {each.source: each for each in self.settings.tables(backend)}
        with self._ledger() as (ledger, _):
            return compare(ledger, {
                each: (tables[each.table], found.get(each.table, {}))
                for each in self._mapped(ledger, backend, partition)
            }, lacking)  # fmt: skip

    def _mapped(
        self, ledger: TargetLedger, backend: str, partition: PartitionId
    ) -> Sequence[TableRecord]:
        """The tables of a partition that are in the map, and followed."""
        known = {table.source for table in self.settings.tables(backend)}
        return [
            each for each in ledger.tables((backend, str(partition)))
            if each.table in known and each.row.is_followed
        ]  # fmt: skip

    def load_after(self, backend: str, partition: PartitionId, losses: str) -> bool:
        with self._ledger() as (ledger, _):
            tables = self._mapped(ledger, backend, partition)
            rows = ledger.lock(each.row.id for each in tables).values()
            stale = [row for row in rows if row.losses != losses]
            for row in stale:
                ledger.load_anew(replace(row, losses=losses), is_comparable=False)
            return not stale and {row.is_live for row in rows} == {True}

    def leave(
        self, backend: str, partitions: Collection[PartitionId] | None,
        ours: Collection[PartitionId],
    ) -> Sequence[Mapping[str, Any]]:  # fmt: skip
        kept = {(each.source, each.full_target) for each in self.settings.tables(backend)}
        with self._ledger() as (ledger, _):
            gone = ledger.leave(backend, kept, partitions, ours)
            return [each.described() for each in ledger.tables() if each.row.id in gone]

    @contextmanager
    def held(self) -> Iterator[Self]:
        sink = copy(self)
        with HeldConnection(self._database) as sink._connections:
            yield sink

    def unfinished(self) -> Sequence[LedgerLoad]:
        tables = {(each.backend, each.source): each for each in self.settings.tables()}
        with self._ledger() as (ledger, cursor):
            known = ledger.tables()
            records = [
                each for each in known
                if each.row.is_followed and not each.row.is_live
                and (each.backend, each.table) in tables
            ]  # fmt: skip
            if not records:
                return ()
            table_map, references = TableMap(self.settings), self._database.references(cursor)
            empty = {each.target for each in records if not each.row.has_rows}
            shared = {(each.backend, each.table) for each in known if each.sid == ROWS}
            loads, firsts = [], dict[tuple[str, str], TableRecord]()
            for each in sorted(records, key=lambda one: (one.sid != ROWS, one.row.id)):
                name = each.backend, each.table
                # A load of all partitions settles them; without one, parents come first.
                first = firsts.setdefault(name, each) if name in shared else each
                loads.append(LedgerLoad(
                    self.settings, table_map, tables[each.backend, each.table], each,
                    kept=ledger.kept(each.row.id), first="" if each.row.has_rows
                    else min(references.parents(each.target) & empty, default=""),
                    is_early=first is not each,
                ))  # fmt: skip
            return loads

    def reload(
        self, table: str, partition: str | None, backend: str | None = None
    ) -> Sequence[str]:
        with self._ledger() as (ledger, _):
            found = {
                each.row.id: f"{each.table} of {each.backend}/{each.sid}"
                for each in ledger.tables()
                if table in (each.table, each.table.partition(".")[2])
                and partition in (None, each.sid)
                and backend in (None, each.backend)
                and each.row.is_followed
            }
            if not found:
                raise SettingsError(
                    f"the ledger has no table {table}" + (f" of {partition}" if partition else ""),
                    "tables",
                    hint="write `table` or `schema.table` of the source, and its sid",
                )
            for row in ledger.lock(found).values():
                ledger.load_anew(row)
        return [*found.values()]

    def size(self, target: str) -> Mapping[str, Any]:
        return self._database.size(target)


def table_sink(make: Callable[[str], TableDatabase]) -> SinkPlugin:
    """The plug-in of a database of your own, made of a URL: a sink of tables, and by the scheme of
    the URL, which is the name of the entry point, a mirror's target."""
    return SinkPlugin(settings=DatabaseSinkSettings, build=TableSink, tables=wanted, database=make)
