"""A table's rows at one point of the log: exactly what the changes before the point have made.

The point is the consistent point of a replication slot, whose snapshot the rows are read under: a
transaction is in the rows if and only if its commit LSN is below it. (Reading an LSN and then
selecting loses commits that are in the log and not visible yet.) The table is locked against
rewrites first: after a TRUNCATE an older snapshot would see an empty table, without an error.
"""

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import psycopg
from psycopg import sql

from penstock.feeds import WHOLE_TABLE, RowSelection, SnapshotWait
from penstock.feeds.postgres import cutting
from penstock.feeds.postgres.connect import (
    LockWait,
    Ordinary,
    PatientConnection,
    SideConnection,
    connect_exporting,
    connect_reading,
    take_any_bytes,
)
from penstock.feeds.postgres.cutting import KeyColumn, Published, TableRange
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.history import known_of
from penstock.feeds.postgres.rows import CopyFramer, RowPages, copied, line_framer, row_framer
from penstock.feeds.postgres.schemas import relation_of, schemas_of, schemas_to_be
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.system_catalog import Catalogue
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import START, Bookmarks, Place
from penstock.model.table_schema import TableSchema
from penstock.wire.pgoutput.lsn import format_lsn, parse_lsn
from penstock.wire.pgoutput.messages import Relation, decode_message

_PAGES_SINCE = 140_000  # TID range scans; before, each range would read the whole table

# The name of the snapshot, and the id below which it sees all transactions that committed.
_EXPORTED = (
    "SELECT pg_catalog.pg_export_snapshot(),"
    " pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text"
)
# Seconds for a reader's lock: a rewrite that is before it in the queue waits for the end of the
# snapshot, which waits for the reader.
_READER = 5.0
_LEAST = 1.0  # seconds for a slot, however long the lock took
_LINES = 2**18  # bytes of lines that are handed on at once
_EXACT = 32 * 2**20  # bytes of a table that is cut exactly

# A request's condition means what it means to the role: nothing else is found by a search_path.
_ROLES_NAMES = "SET LOCAL search_path TO DEFAULT"

_ABOUT_NOW = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_lsn() END::text
"""
_EXPORT = "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"

_NO_SNAPSHOT = psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject
# Of a snapshot: who reads under it holds this, and so it is known that somebody does.
_READS = "SELECT pg_catalog.pg_advisory_lock_shared(pg_catalog.hashtextextended(%s, 0))"
_IS_READ = """
SELECT FROM pg_catalog.pg_locks l
WHERE l.locktype = 'advisory' AND l.pid <> pg_catalog.pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND l.classid::int8 << 32 | l.objid::int8 = pg_catalog.hashtextextended(%s, 0)
LIMIT 1
"""
_IN_THE_WAY = """
SELECT FROM pg_catalog.pg_locks
WHERE NOT granted AND pg_catalog.pg_backend_pid() = ANY (pg_catalog.pg_blocking_pids(pid)) LIMIT 1
"""

_TABLE = """
SELECT c.relkind = 'p', coalesce(to_jsonb(p) ->> 'rowfilter', '')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_publication_tables p
    ON p.pubname = %s AND p.schemaname = n.nspname AND p.tablename = c.relname
WHERE n.nspname = %s AND c.relname = %s
"""
_OID = """
SELECT c.oid::int8
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""

_KEY = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       ARRAY(SELECT pg_catalog.format('OPERATOR(%%I.%%s)', n.nspname, o.oprname)
             FROM pg_catalog.pg_amop s
             JOIN pg_catalog.pg_operator o ON o.oid = s.amopopr
             JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
             WHERE s.amopfamily = c.opcfamily AND s.amoppurpose = 's'
               AND s.amoplefttype = c.opcintype AND s.amoprighttype = c.opcintype
             ORDER BY s.amopstrategy)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = x.relam AND m.amname = 'btree'
CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[])
    WITH ORDINALITY AS k (number, class, position)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
JOIN pg_catalog.pg_opclass c ON c.oid = k.class
WHERE i.indrelid = %s AND i.indisprimary AND i.indisvalid AND k.position <= i.indnkeyatts
ORDER BY k.position
"""

# A partitioned table's own size is 0. About how many rows a leaf has; -1 before it was analysed.
_LEAVES = """
SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname),
       pg_catalog.pg_relation_size(c.oid), pg_catalog.pg_table_size(c.oid), c.reltuples::int8
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p' AND (c.oid = %s::oid OR c.oid IN (
    SELECT relid FROM pg_catalog.pg_partition_tree(%s::oid) WHERE isleaf))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresRowSource:
    """A `feeds.ReadsLines` of one snapshot, in any process that reaches the server. Pickles."""

    settings: PostgresSettings
    snapshot: str  # the exported one's name
    patience: float  # seconds for the table's lock
    table: Published
    rows: RowPages
    count: int | None = None  # about how many there are

    @property
    def is_by_key(self) -> bool:
        return bool(self.table.key)

    @contextmanager
    def opened(
        self, is_stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Callable[[TableRange, int, int], Iterator[Page]]]:
        """See `feeds.RowSource`: a connection that has imported the snapshot."""
        with self._opened(is_stopped) as connection:

            def pages(part: TableRange, rows: int, size: int) -> Iterator[Page]:
                return self.pages(connection, part, rows, size)

            yield pages

    def pages(
        self, connection: PatientConnection, part: TableRange, rows: int, size: int
    ) -> Iterator[Page]:
        """Of a range, over a connection that has the snapshot."""
        framer = row_framer(self.rows, rows=rows, size=size, what=self._what)
        for payload, count in self._pieces(connection, self.table, part, framer):
            yield self.rows.page(payload, count)

    @contextmanager
    def lines(
        self, columns: Sequence[str], prefix: bytes, is_stopped: Callable[[], bool]
    ) -> Iterator[Callable[[TableRange], Iterator[tuple[bytes, int]]]]:
        table = replace(self.table, columns=tuple(columns))
        with self._opened(is_stopped) as connection:

            def lines(part: TableRange) -> Iterator[tuple[bytes, int]]:
                framer = line_framer(prefix, size=_LINES, what=self._what)
                return self._pieces(connection, table, part, framer)

            yield lines

    @property
    def _what(self) -> str:
        return f"reading rows of {self.table.schema}.{self.table.table}"

    @contextmanager
    def _opened(self, is_stopped: Callable[[], bool]) -> Iterator[PatientConnection]:
        """A connection that takes the table's lock first, and waits for it only so long: an ALTER
        TABLE before it in the queue may wait for the end of the snapshot, which waits for this."""
        with closing(connect_reading(self.settings, is_stopped)) as connection:
            deadline = time.monotonic() + self.patience
            _lock(connection, self.table.schema, self.table.table, deadline)
            with translating("importing a snapshot"):
                try:
                    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(self.snapshot))
                except _NO_SNAPSHOT as error:
                    raise Unavailable(
                        f"the snapshot {self.snapshot} ended", "postgres.snapshot-ended",
                        hint="take another one",
                    ) from error  # fmt: skip
                connection.execute(_READS, [self.snapshot])
            if self.table.where:
                connection.execute(_ROLES_NAMES)
            take_any_bytes(connection)
            yield connection

    def _pieces(
        self, connection: PatientConnection, table: Published, part: TableRange, framer: CopyFramer
    ) -> Iterator[tuple[bytes, int]]:
        query = sql.SQL("COPY ({}) TO STDOUT").format(cutting.range_query(table, part))
        if part.keys() & {"after", "to"}:  # never the whole table for each range
            with translating(self._what):
                connection.execute("SET LOCAL enable_seqscan = off")
        with cutting.blaming(table.where):
            for data in copied(connection, query, self._what):
                yield from framer.feed(data)
                if framer.is_over:
                    return


class PostgresSnapshot:
    """A `feeds.TableSnapshot`, from `with` to its end: the table is locked against rewrites, and
    the server keeps old versions of rows."""

    is_exact = True

    def __init__(
        self,
        settings: PostgresSettings,
        table: tuple[str, str],
        known: Bookmarks | None,
        wait: SnapshotWait,
        selection: RowSelection,
    ) -> None:
        # What the lock and the slot wait for.
        self._wait = LockWait(settings, wait)
        self._settings, (self._schema, self._table) = settings, table
        self._patience, self._selection = wait.patience, selection
        # The history that places are of.
        self._era = self._era_of(known or {})
        self._is_followed = known is not None
        self._open = ExitStack()
        self.counted: int | None = None

    def __enter__(self) -> Self:
        try:
            self._enter()
        except BaseException as error:
            self._open.close()
            if isinstance(error, Unavailable) and self._wait.seen:
                raise Unavailable(
                    f"{error.message}; waited for {self._wait.seen}",
                    error.code,
                    hint="end that (a prepared one by ROLLBACK PREPARED or COMMIT PREPARED), or"
                    " raise snapshot.patience",
                ) from error
            raise
        finally:
            self._wait.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _enter(self) -> None:
        """Gives the table's lock back, and tries again, where the slot waits for a transaction that
        waits for the lock."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                snapshot = self._locked_and_pinned(deadline)
                break
            except Unavailable:
                if not self._wait.is_circle or time.monotonic() >= deadline:
                    raise
            self._open.close()
            self._wait.begin_again()
        self._describe(snapshot)

    def _locked_and_pinned(self, deadline: float) -> str:
        settings = self._settings
        self._holder = self._open.enter_context(closing(connect_reading(settings, self._wait)))
        self._wait.pids.append(self._holder.info.backend_pid)
        if self._is_followed:
            self._refuse_early()
        _lock(self._holder, self._schema, self._table, deadline)
        self._wait.seen = ""
        return self._pinned(deadline)

    def _pinned(self, deadline: float) -> str:
        """Takes the point, and the snapshot of it; its name for other connections."""
        settings, patience = self._settings, max(deadline - time.monotonic(), _LEAST)
        with closing(connect_exporting(settings, patience, self._wait)) as exporting:
            self._wait.pids.append(exporting.info.backend_pid)
            with translating("making a temporary slot for a snapshot"):
                name = sql.Identifier(f"penstock_snap_{secrets.token_hex(8)}")
                row = exporting.execute(sql.SQL(_EXPORT).format(name)).fetchone()
            assert row is not None
            # Exported again, so that the slot can go: its snapshot would end with it.
            with translating("importing a snapshot"):
                self._holder.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(row[2]))
                found = self._holder.execute(_EXPORTED).fetchone()
        assert found is not None
        # The point of the log, and the id below which it sees all transactions that committed.
        self._lsn, self._xmin = parse_lsn(row[1]), str(found[1])
        return str(found[0])

    def _refuse_early(self) -> None:
        """Changes are followed from the slot on: between a snapshot and a later slot is a hole."""
        slot = self._settings.slot
        if not self._ask("SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s", slot):
            raise Unavailable(
                f"there is no slot {slot} yet: changes after the snapshot would be missing",
                "postgres.slot-missing",
                hint="start the pipeline first",
            )

    def _describe(self, snapshot: str) -> None:
        settings, schema, table = self._settings, self._schema, self._table
        # A table that is read alone need not be in the publication.
        alone = [] if self._is_followed else self._ask(_OID, schema, table)
        self._to_be = [oid for (oid,) in alone]
        raw = self._relation()
        if not raw and not self._is_followed:
            raise SettingsError(
                f"{schema}.{table} is no table", "postgres.not-a-table",
                hint="name one: rows of views and foreign tables have no place in the log",
            )  # fmt: skip
        if not raw:
            raise SettingsError(
                f"the publication {settings.publication} does not send {schema}.{table}",
                "postgres.table-not-published",
                hint="ALTER PUBLICATION ... ADD TABLE; a view, a foreign table or an unlogged one"
                " can't be published",
            )
        oid = int.from_bytes(raw[1:5], "big")
        schemas = schemas_of(self._ask, settings, oid) or [
            each for each in schemas_to_be(self._ask, settings, [oid]) if each.relation_id == oid
        ]
        if not schemas:
            raise SettingsError(
                f"`tables` leaves {schema}.{table} out", "postgres.table-not-published",
                hint="name it there, or leave `tables` out",
            )  # fmt: skip
        self.schema: TableSchema = schemas[0]
        raw = self._selected(raw)
        relation = decode_message(raw)
        assert isinstance(relation, Relation)
        if self._selection.where:
            self._holder.execute(_ROLES_NAMES)
        is_partitioned, row_filter = self._ask(_TABLE, settings.publication, schema, table)[0]
        published = Published(
            schema=schema,
            table=table,
            columns=tuple(column.name for column in relation.columns),
            key=self._key(),
            filter=row_filter,
            where=cutting.checked_condition(self._selection.where),
            is_partitioned=is_partitioned,
        )
        if published.where:
            with cutting.blaming(published.where), translating("the condition of the request"):
                self._holder.execute(cutting.probe_query(published))
        with closing(SideConnection(settings)) as side:
            known = Catalogue(side).describe(raw)
        rows = RowPages(
            partition=settings.partition,
            place=Place(self._era + format_lsn(self._lsn), 0),
            relation=raw,
            columns=len(published.columns),
            types=known.types,
            key=known.key,
            lsn=self._lsn,
            taken_at=round(time.time() * 1_000_000),
        )
        counts = [count for *_, count in self._ask(_LEAVES, oid, oid)]
        self.source = PostgresRowSource(
            settings=settings, snapshot=snapshot, patience=min(self._patience, _READER),
            table=published, rows=rows, count=sum(counts) if min(counts, default=-1) >= 0 else None,
        )  # fmt: skip

    def _key(self) -> tuple[KeyColumn, ...]:
        """The primary key's columns; none where its index does not sort, or lacks operators."""
        rows = self._ask(_KEY, self.schema.relation_id)
        found = [KeyColumn(name, kind, tuple(operators)) for name, kind, operators in rows]
        return tuple(found) if all(len(each.operators) == 5 for each in found) else ()

    def _selected(self, raw: bytes) -> bytes:
        """The Relation message with the selected columns, which may have gone since the request."""
        columns, found = self._selection.columns, {one["name"] for one in self.schema.columns}
        if missing := [name for name in columns if name not in found]:
            raise SettingsError(
                f"{self._schema}.{self._table} has no column {missing[0]}",
                "postgres.column-missing",
                hint=f"there are: {', '.join(sorted(found))}",
            )
        return self._relation(columns) if columns else raw

    def _relation(self, columns: Sequence[str] = ()) -> bytes:
        name = self._schema, self._table
        publication = self._settings.publication
        return relation_of(self._ask, publication, *name, columns, to_be=self._to_be)

    def plan(self, rows: int, size: int) -> Sequence[TableRange]:
        """See `feeds.TableSnapshot`. A small table with a key is cut exactly, by its index; a large
        one by a sample of its pages: nothing sorts or reads the whole table."""
        table = self.source.table
        what = f"cutting {table.schema}.{table.table} into ranges"
        leaves = [(str(leaf), int(heap), int(all_)) for leaf, heap, all_, _ in
                  self._ask(_LEAVES, *[self.schema.relation_id] * 2)]  # fmt: skip
        if not table.key:
            by_pages = self._holder.info.server_version >= _PAGES_SINCE
            return list(cutting.page_ranges(leaves, size if by_pages else sys.maxsize))
        heap, weight = sum(leaf[1] for leaf in leaves), sum(leaf[2] for leaf in leaves)
        with cutting.blaming(table.where), translating(what):
            if weight > _EXACT:
                percent = cutting.sample_percent(size, heap=heap, weight=weight)
                keys = self._holder.execute(cutting.sample_query(table, percent)).fetchall()
                return cutting.key_ranges(
                    cutting.sampled_bounds(keys, percent, rows=rows, size=size, weight=weight)
                )
            found = self._holder.execute(cutting.count_query(table)).fetchone()
            assert found is not None
            count = self.counted = int(found[0])
            step = cutting.rows_in_range(rows, size, count=count, weight=weight)
            bounds = self._holder.execute(cutting.bounds_query(table, step)).fetchall()
        return cutting.key_ranges(bounds)

    def is_read(self) -> bool:
        return bool(self._ask(_IS_READ, self.source.snapshot))

    def is_in_the_way(self) -> bool:
        return bool(self._ask(_IN_THE_WAY))

    @property
    def lsn(self) -> str:
        lsn = self._lsn
        return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"

    @property
    def position(self) -> str:
        return f"{self._era}{format_lsn(self._lsn)}:0"

    @property
    def mark(self) -> str:
        """See `feeds.TableSnapshot`: rows do not leave ranges by key. Where changes have no key, no
        row that is read again replaces one."""
        is_keyed = any(column["key"] for column in self.schema.columns)
        return self._era + self._xmin if is_keyed else ""

    def written_since(self, ranges: Sequence[TableRange], mark: str) -> Sequence[TableRange] | None:
        """See `feeds.TableSnapshot`. A changed key may have moved some of these rows here from a
        range that was not read then: the log may have their large values as unchanged."""
        xid = mark.removeprefix(self._era)
        return cutting.written_since(ranges, int(xid)) if xid.isdigit() else None

    def verify(self, known: Bookmarks) -> None:
        if self._era_of(known) != self._era:
            raise Unavailable(
                "the server's history became another one during the snapshot",
                "postgres.timeline-changed",
                hint="ask for another snapshot",
            )

    def _era_of(self, known: Bookmarks) -> str:
        saved = known.get(self._settings.partition, START)
        return known_of(saved.mark, saved.place).era

    def _ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with translating("reading the catalogue"):
            return self._holder.execute(query.encode(), parameters).fetchall()


class PostgresSample(PostgresSnapshot):
    """Some rows of a table, read in the transaction that locks it, which is read-only. There is no
    slot, and so no point of the log that changes could go on from."""

    def __init__(self, settings: PostgresSettings, schema: str, table: str) -> None:
        wait = SnapshotWait(patience=_READER)
        super().__init__(settings, (schema, table), None, wait, WHOLE_TABLE)

    def _pinned(self, deadline: float) -> str:
        ((lsn,),) = self._ask(_ABOUT_NOW)
        self._lsn, self._xmin = parse_lsn(lsn), ""
        return ""

    def pages(self, rows: int) -> Iterator[Page]:
        """Pages of so many rows."""
        take_any_bytes(self._holder)
        return self.source.pages(self._holder, {"most": rows}, rows, _LINES)


def _lock(connection: Ordinary, schema: str, table: str, deadline: float) -> None:
    """Begins a transaction that can still import a snapshot, and locks the table in it, and all of
    its partitions; tries until the deadline (monotonic seconds). Where one is locked, the others
    are given back before the next try: DDL that has that one may wait for them."""
    statement = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(schema, table))
    with translating(f"locking {schema}.{table} against rewrites"):
        while True:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            try:
                connection.execute(statement)
            except psycopg.errors.LockNotAvailable:
                connection.execute("ROLLBACK")
                if time.monotonic() >= deadline:
                    raise
            else:
                return
