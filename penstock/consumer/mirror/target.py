"""Where a replica keeps its tables: a database of tables, and the replica's state in it.

Three tables are the replica's own: `penstock_mirror` (each table's state), `penstock_mirror_chunk`
(which chunks are loaded) and `penstock_mirror_owner` (the replica that may write).
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from operator import attrgetter, itemgetter
from typing import Any

import orjson

from penstock.consumer.mirror.session import TargetSession, quoted
from penstock.consumer.mirror.steps import (
    AlterColumns,
    ForgetLate,
    LoadedChunk,
    Piece,
    RestoreRows,
    Step,
    Values,
    Work,
    joined,
    key_of,
    pieces,
    refused,
    row_of,
)
from penstock.consumer.mirror.target_table import TargetColumn, TargetTable
from penstock.model.errors import LeaseLost, Rejected, SettingsError, Unavailable
from penstock.model.formats import verify_format
from penstock.process.plugins import known, plugin
from penstock.tables.database import TableDatabase
from penstock.tables.fold import Clear, Merge, Move, Recount
from penstock.tables.sift import sift
from penstock.tables.sqlstates import Recurring

_CREATE = (
    "CREATE TABLE IF NOT EXISTS penstock_mirror"
    " (name text PRIMARY KEY, document text NOT NULL, sequence bigint NOT NULL, live int NOT NULL,"
    " stream text)",
    "CREATE TABLE IF NOT EXISTS penstock_mirror_chunk (name text NOT NULL, chunk int NOT NULL,"
    " row_count bigint NOT NULL, crc32 bigint NOT NULL, PRIMARY KEY (name, chunk))",
    "CREATE TABLE IF NOT EXISTS penstock_mirror_owner (one int PRIMARY KEY, token text NOT NULL)",
)

# Databases of our own, by the schemes of their URLs: their sinks take long to import.
_OURS = {
    "postgres": "postgres_database:PostgresDatabase",
    "postgresql": "postgres_database:PostgresDatabase",
    "sqlite": "sqlite_database:SqliteDatabase.of_url",
}


class _Undone(Exception):
    pass


class MirrorTarget(TargetSession):
    """Used by one thread. Constructing one does no I/O.

    Each method is one transaction of the database, and what it stores of the table (`TargetTable`)
    is in that transaction: after a crash a replica goes on from exactly there. Everything raises
    Unavailable, SettingsError; LeaseLost once another replica has opened the same target; `load`,
    `finish` and `apply` TableRefused for what is of one table.
    """

    def __init__(self, database: TableDatabase) -> None:
        super().__init__(database)
        self._token = secrets.token_hex(8)

    def open(self, names: Collection[str]) -> Sequence[TargetTable]:
        """Connects, and returns what it has of the tables of these names, whole or half loaded.
        Those that it has besides stay as they are, until a replica names them."""
        with self._transaction():
            for statement in _CREATE:
                self._run(statement)
            own = self._find("penstock_mirror")
            if self._find("penstock_mirror_format"):  # a table of one number, of later versions
                ((later,),) = self._run("SELECT max(number) FROM penstock_mirror_format")
                verify_format(later, "the mirror's state")
            if own is not None and "stream" not in own.columns:
                self._run("ALTER TABLE penstock_mirror ADD COLUMN stream text")
            self._run("DELETE FROM penstock_mirror_owner")
            self._run("INSERT INTO penstock_mirror_owner VALUES (1, %s)", [self._token])
            found = self._tables()
            for table in found:
                self._store(table, is_followed=table.name in names)
        return [table for table in found if table.name in names]

    def begin(self, table: TargetTable) -> Sequence[LoadedChunk]:
        """Prepares for the rows of the table's snapshot, beside the rows that readers see. Returns
        what is loaded of this snapshot already; rows of another one are dropped. Raises
        SettingsError for a name that something else has."""
        folded = self.database.folded
        with self._writing():
            before = self._stored(table.name)
            for other in self._tables():
                same = folded(other.target) == folded(table.target)
                if same and other.name != table.name:
                    raise SettingsError(
                        f"{other.name} and {table.name} would both be the table {table.target}",
                        "tables",
                        hint="mirror them into two files or databases",
                    )
            is_other = before is None or folded(before.target) != folded(table.target)
            if is_other and self._find(table.target):
                raise SettingsError(
                    f"the target has a table {table.target} that is not of a replica",
                    "tables.target-not-ours",
                    hint="drop it, or mirror into another database or file",
                )
            if before and is_other and self._find(before.target):
                self._rename(before.target, table.target)
            if before and before.snapshot_id == table.snapshot_id and before.state == "loading":
                chunks = self._run(
                    "SELECT chunk, row_count, crc32 FROM penstock_mirror_chunk WHERE name = %s",
                    [table.name],
                )
                return [LoadedChunk(*row) for row in chunks]
            for name in (self._loading(table), self._late(table)):
                self._run(f"DROP TABLE IF EXISTS {name}")
            self._run("DELETE FROM penstock_mirror_chunk WHERE name = %s", [table.name])
            self._create(table, self._loading(table))
            self._store(table)
        return []

    def load(
        self,
        table: TargetTable,
        chunk: LoadedChunk,
        rows: Sequence[Values],
        *,
        is_late: bool = False,
    ) -> None:
        """Adds the rows of a chunk. Those that are late, of the point `table.last_point` and not of
        the first, are kept beside, too, for `RestoreRows`; those of earlier points are not."""
        loading = replace(table, target=self._loading(table))
        steps = (_added(loading, each) for each in [rows])  # made when it is needed
        with self._refusing([(loading, steps)]), self._writing():
            values = [table.name, chunk.chunk, chunk.rows, chunk.crc32]
            self._run("INSERT INTO penstock_mirror_chunk VALUES (%s, %s, %s, %s)", values)
            self._fill(loading, rows)
            if is_late:
                late, before = self._late(table), self._stored(table.name)
                if before is None or before.last_point != table.last_point:
                    self._run(f"DROP TABLE IF EXISTS {late}")
                    self._create(table, late)
                    self._store(table)
                self._fill(replace(table, target=late), rows)

    def finish(self, table: TargetTable, rows: int | None = None) -> None:
        """Readers see the loaded rows, all at once, instead of what was there before. Raises
        TableRefused if they are not so many as `rows`. A table with the same key keeps what users
        made of it, as far as that needs no column that goes: indexes, views and grants."""
        loading, target = self._loading(table), quoted(table.target)
        with self._refusing([(table, [])]), self._writing():
            have = self._run(f"SELECT count(*) FROM {loading}")[0][0] if rows is not None else rows
            if have != rows:
                raise SettingsError(
                    f"its snapshot has {rows} rows, and {have} are loaded",
                    "tables",
                    hint="does its key tell all rows apart? see its primary key at the source",
                )
            if self._fits(table):
                names = self._names(table.names)
                self._run(f"DELETE FROM {target}")
                self._run(f"INSERT INTO {target} ({names}) SELECT {names} FROM {loading}")
                self._run(f"DROP TABLE {loading}")
            else:
                self._run(f"DROP TABLE IF EXISTS {target}")
                self._rename(loading, table.target)
            self._run("DELETE FROM penstock_mirror_chunk WHERE name = %s", [table.name])
            self._store(table)

    def apply(
        self, work: Sequence[tuple[TargetTable, Sequence[Step]]], positions: Mapping[str, int]
    ) -> None:
        """Changes of tables, in their order, and what is to be stored of them. `positions`: of each
        stream the message up to which all its live tables that are followed are then, unless they
        are past it already."""
        done: list[tuple[TargetTable, Sequence[Step]]] = []
        with self._refusing(done), self._writing():
            for table, steps in work:
                done.append((table, steps))
                for step in steps:
                    self._step(table, step)
                self._store(table)
            if any(steps for _, steps in work):
                self.database.check_deferred(self._opened().cursor())
            done.clear()  # what fails now is of no table
            for stream, sequence in positions.items():
                self._run(
                    "UPDATE penstock_mirror SET sequence = %s"
                    " WHERE live = 1 AND stream = %s AND sequence < %s",
                    [sequence, stream, sequence],
                )

    def count(self, table: TargetTable) -> int:
        """How many rows it has."""
        return int(self._run(f"SELECT count(*) FROM {quoted(table.target)}")[0][0])

    def _step(self, table: TargetTable, step: Step) -> None:
        match step:
            case Clear():  # readers see the rows until the commit
                self._run(f"DELETE FROM {quoted(table.target)}")
            case AlterColumns(added, dropped):
                self._alter(table.target, dropped, {one.name: self._kind(one) for one in added})
            case RestoreRows(keys):
                self._restore(table, keys)
            case ForgetLate():
                self._run(f"DROP TABLE IF EXISTS {self._late(table)}")
            case _:
                if isinstance(step, Move):
                    self._make_room(table, step)
                self._rows_of(table).apply(self._opened().cursor(), [step])

    def _fill(self, table: TargetTable, rows: Sequence[Values]) -> None:
        """Adds rows in bulk; one that has a key of another replaces it."""
        staged, cursor = self._rows_of(table), self._opened().cursor()
        if not self.database.copies(cursor, staged, rows):
            staged.apply(cursor, [_added(table, rows)])

    def _restore(self, table: TargetTable, keys: Sequence[Values] | None) -> None:
        target, late = quoted(table.target), self._late(table)
        names, key = self._names(table.names), self._names(table.key)
        among = ""
        if keys is not None:
            staged = self._rows_of(table)
            staged.stage(self._opened().cursor(), (), keys)
            among = f" WHERE ({key}) IN (SELECT {key} FROM {staged.keys})"
        self._run(f"DELETE FROM {target} WHERE ({key}) IN (SELECT {key} FROM {late}{among})")
        self._run(f"INSERT INTO {target} ({names}) SELECT {names} FROM {late}{among}")

    def _fits(self, table: TargetTable) -> bool:
        """Whether the table that is there has the columns of the loaded one, or gets them here."""
        there, new = self._find(table.target), self._find(self._loading(table))
        if there is None or new is None or there.primary != new.primary:
            return False
        differ = there.columns.items() ^ new.columns.items()
        gone, come = ({name: kind for name, kind in each.columns.items() if (name, kind) in differ}
                      for each in (there, new))  # fmt: skip
        if come.keys() & new.primary:
            return False
        try:
            with self._opened().transaction():
                self._alter(table.target, gone, come)
        except SettingsError:
            return False
        return True

    def _make_room(self, table: TargetTable, step: Move) -> None:
        """A row that has the new key already is older or newer than the row that moves there: with
        chunks of several points in the log."""
        new, staged, cursor = key_of(table)(step.row), self._rows_of(table), self._opened().cursor()
        if new == step.old:  # no value of a key is absent
            return
        staged.stage(cursor, (), [step.old])
        names = self._names(table.key)
        old = f"WHERE ({names}) IN (SELECT {names} FROM {staged.keys})"
        if self._run(f"SELECT 1 FROM {quoted(table.target)} {old}"):
            staged.apply(cursor, [Merge([new])])

    def _names(self, names: Sequence[str]) -> str:
        return ", ".join(map(quoted, names))

    def _loading(self, table: TargetTable) -> str:
        return self._beside("loading", table)

    def _late(self, table: TargetTable) -> str:
        return self._beside("late", table)

    @staticmethod
    def _beside(what: str, table: TargetTable) -> str:
        # A table's name may be as long as names may be.
        return f"penstock_{what}_{hashlib.sha256(table.name.encode()).hexdigest()[:16]}"

    def _tables(self) -> list[TargetTable]:
        rows = self._run("SELECT document, sequence FROM penstock_mirror ORDER BY name")
        return [
            replace(TargetTable.from_json(orjson.loads(document)), sequence=sequence)
            for document, sequence in rows
        ]

    def _stored(self, name: str) -> TargetTable | None:
        found = self._run("SELECT document FROM penstock_mirror WHERE name = %s", [name])
        return TargetTable.from_json(orjson.loads(found[0][0])) if found else None

    def _store(self, table: TargetTable, *, is_followed: bool = True) -> None:
        live = int(is_followed and table.state == "live")
        document = orjson.dumps(table.to_json()).decode()
        self._run(
            "INSERT INTO penstock_mirror (name, document, sequence, live, stream)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (name) DO UPDATE"
            " SET document = excluded.document, sequence = excluded.sequence,"
            " live = excluded.live, stream = excluded.stream",
            [table.name, document, table.sequence, live, table.stream],
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction of the replica that opened the target last."""
        lock = " FOR SHARE" if self.database.locks_rows else ""  # other replicas wait
        with self._transaction():
            found = self._run(f"SELECT token FROM penstock_mirror_owner{lock}")
            if not found or found[0][0] != self._token:
                raise LeaseLost(
                    "another replica writes to this target",
                    "tables.target-taken",
                    hint="run one mirror for each database or file",
                )
            yield

    @contextmanager
    def _refusing(self, work: Work) -> Iterator[None]:
        """What fails is of a table of the work, if there is any: of that of the row that fails
        again, or of the last one."""
        try:
            yield
        except Exception as error:
            passes = isinstance(error, (Unavailable, LeaseLost))
            if not work or (passes and not isinstance(error, Recurring)):
                raise
            found = self._first_refused(work)
            if found is None and passes and work[-1][1]:  # tried again, it comes out
                raise
            table, row = found or (work[-1][0], {})
            columns = {one.name: one for one in table.columns}
            refusing = (name for name in row if not self._takes(columns[name], row[name]))
            raise refused(table, row, next(refusing, ""), error) from error

    def _first_refused(self, work: Work) -> tuple[TargetTable, Mapping[str, Any]] | None:
        """The table, and what is known of its row, that fails: the work is done again in halves,
        then undone. What waits for the end of the transaction may need rows of other tables."""
        last = pieces([one for one in work if one[0].name == work[-1][0].name])
        for given, is_whole in ((last, False), (pieces(work), True)):
            with suppress(_Undone), self._transaction():
                _, found = sift(
                    given, partial(self._attempt, is_whole=is_whole), stops=lambda *_: True
                )
                raise _Undone
            for ((table, piece),), _ in found:
                return table, row_of(table, piece)
        return None

    def _attempt(self, some: Sequence[Piece], *, is_whole: bool) -> Sequence[object]:
        """Does a part of some work. Raises Rejected for anything that may be of its rows."""
        try:
            with self._translated(), self._opened().transaction():
                for table, steps in joined(some):
                    for step in steps:
                        self._step(table, step)
                if is_whole:
                    self.database.check_deferred(self._opened().cursor())
        except Exception as error:
            if isinstance(error, Unavailable) and not isinstance(error, Recurring):
                raise
            self._staged.clear()  # its temporary tables may be gone with the savepoint
            raise Rejected("a row is refused", "tables") from error
        return ()

    def _takes(self, column: TargetColumn, value: Any) -> bool:
        with suppress(Exception):  # such as a number that the driver does not take
            self._run(f"SELECT CAST(%s AS {self._kind(column)})", [value])
            return True
        return False


def _added(table: TargetTable, rows: Sequence[Values]) -> Merge | Recount:
    """The step that adds rows; of two with one key, the last."""
    if not table.key:
        return Recount(Counter(rows))
    key = itemgetter(*map(table.names.index, table.key))
    return Merge(whole=[*{key(row): row for row in rows}.values()])


def open_target(url: str) -> MirrorTarget:
    """The database that a URL names, by its scheme: one of ours, or that of the sink of this name.
    No I/O. Raises SettingsError."""
    scheme, separator, _ = url.partition("://")
    made = None
    if separator and scheme in _OURS:
        module, _, name = _OURS[scheme].partition(":")
        made = attrgetter(name)(import_module(f"penstock.tables.{module}"))
    elif separator and scheme in known("sinks"):
        made = plugin("sinks", scheme).database
    if made is None:
        kinds = ", ".join(filter(_is_of_tables, known("sinks")))
        raise SettingsError(
            "the target's URL names no database of tables", "tables",
            hint=f"write sqlite:///mirror.db or postgresql://...; known: {kinds}",
        )  # fmt: skip
    return MirrorTarget(made(url))


def _is_of_tables(sink: str) -> bool:
    with suppress(SettingsError):  # a driver that is not installed
        return plugin("sinks", sink).database is not None
    return False
