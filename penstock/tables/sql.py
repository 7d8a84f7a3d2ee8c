"""What the targets that speak SQL have in common: tables, the state beside them, and the steps.

Three tables are the target's own: `penstock_mirror` (each table's state), `penstock_mirror_chunk`
(which chunks are loaded) and `penstock_mirror_owner` (the replica that may write).
"""

import hashlib
import secrets
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from typing import Any

import orjson

from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from penstock.process.closing import Closes
from penstock.tables.fold import Clear, Merge, Move, Recount
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.staged import StagedRows
from penstock.tables.target_table import TargetColumn, TargetTable
from penstock.tables.targets import (
    AlterColumns,
    Encoder,
    ForgetLate,
    LoadedChunk,
    RestoreRows,
    Step,
    Values,
    joined,
    refused,
    single_rows,
)

_CREATE = (
    "CREATE TABLE IF NOT EXISTS penstock_mirror"
    " (name text PRIMARY KEY, document text NOT NULL, sequence bigint NOT NULL, live int NOT NULL,"
    " stream text)",
    "CREATE TABLE IF NOT EXISTS penstock_mirror_chunk (name text NOT NULL, chunk int NOT NULL,"
    " row_count bigint NOT NULL, crc32 bigint NOT NULL, PRIMARY KEY (name, chunk))",
    "CREATE TABLE IF NOT EXISTS penstock_mirror_owner (one int PRIMARY KEY, token text NOT NULL)",
)


class _Undone(Exception):
    pass


class SqlTarget(Closes):
    """A `Target`. What differs between databases is in the methods at the end."""

    mark = "?"  # a parameter
    not_unique: type[Exception]  # the driver's error

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._connection: Any = None
        # By target: its columns and key, and what has temporary tables for these.
        self._staged: dict[str, tuple[Any, StagedRows]] = {}
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        """Disconnects; the next call connects again."""
        self._staged.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def open(self, names: Collection[str]) -> Sequence[TargetTable]:
        with self._transaction():
            for statement in _CREATE:
                self._run(statement)
            if "stream" not in {name for name, *_ in self._shape("penstock_mirror")}:
                self._run("ALTER TABLE penstock_mirror ADD COLUMN stream text")
            self._run("DELETE FROM penstock_mirror_owner")
            self._run(f"INSERT INTO penstock_mirror_owner VALUES (1, {self.mark})", [self._token])
            found = self._tables()
            for table in found:
                self._store(table, is_followed=table.name in names)
        return [table for table in found if table.name in names]

    def begin(self, table: TargetTable) -> Sequence[LoadedChunk]:
        with self._writing():
            before = self._stored(table.name)
            for other in self._tables():
                same = self._folded(other.target) == self._folded(table.target)
                if same and other.name != table.name:
                    raise SettingsError(
                        f"{other.name} and {table.name} would both be the table {table.target}",
                        "tables",
                        hint="mirror them into two files or databases",
                    )
            is_other = before is None or self._folded(before.target) != self._folded(table.target)
            if is_other and self._exists(table.target):
                raise SettingsError(
                    f"the target has a table {table.target} that is not of a replica",
                    "tables.target-not-ours",
                    hint="drop it, or mirror into another database or file",
                )
            if before and is_other and self._exists(before.target):
                old, new = self.quote(before.target), self.quote(table.target)
                self._run(f"ALTER TABLE {old} RENAME TO {new}")
            if before and before.snapshot_id == table.snapshot_id and before.state == "loading":
                chunks = self._run(
                    "SELECT chunk, row_count, crc32 FROM penstock_mirror_chunk"
                    f" WHERE name = {self.mark}",
                    [table.name],
                )
                return [LoadedChunk(*row) for row in chunks]
            for name in (self._loading(table), self._late(table)):
                self._run(f"DROP TABLE IF EXISTS {name}")
            self._run(f"DELETE FROM penstock_mirror_chunk WHERE name = {self.mark}", [table.name])
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
        loading = replace(table, target=self._loading(table))
        steps = (_added(loading, each) for each in [rows])  # made when it is needed
        with self._refusing([(loading, steps)]), self._writing():
            values = [table.name, chunk.chunk, chunk.rows, chunk.crc32]
            marks = ", ".join([self.mark] * 4)
            self._run(f"INSERT INTO penstock_mirror_chunk VALUES ({marks})", values)
            self._fill(loading, rows)
            if is_late:
                late, before = self._late(table), self._stored(table.name)
                if before is None or before.last_point != table.last_point:
                    self._run(f"DROP TABLE IF EXISTS {late}")
                    self._create(table, late)
                    self._store(table)
                self._fill(replace(table, target=late), rows)

    def finish(self, table: TargetTable, rows: int | None = None) -> None:
        """See `Target`. A table with the same key keeps what users made of it, as far as that needs
        no column that goes: indexes, views and grants."""
        loading, target = self._loading(table), self.quote(table.target)
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
                self._run(f"ALTER TABLE {loading} RENAME TO {target}")
            self._run(f"DELETE FROM penstock_mirror_chunk WHERE name = {self.mark}", [table.name])
            self._store(table)

    def apply(
        self, work: Sequence[tuple[TargetTable, Sequence[Step]]], positions: Mapping[str, int]
    ) -> None:
        done: list[tuple[TargetTable, Sequence[Step]]] = []
        with self._refusing(done), self._writing():
            for table, steps in work:
                done.append((table, steps))
                for step in steps:
                    self._step(table, step)
                self._store(table)
            done.clear()  # what fails now is of no table
            for stream, sequence in positions.items():
                self._run(
                    f"UPDATE penstock_mirror SET sequence = {self.mark}"
                    f" WHERE live = 1 AND stream = {self.mark} AND sequence < {self.mark}",
                    [sequence, stream, sequence],
                )

    def count(self, table: TargetTable) -> int:
        return int(self._run(f"SELECT count(*) FROM {self.quote(table.target)}")[0][0])

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def _step(self, table: TargetTable, step: Step) -> None:
        target = self.quote(table.target)
        match step:
            case Clear():  # readers see the rows until the commit
                self._run(f"DELETE FROM {target}")
            case AlterColumns(added, dropped):
                for name in dropped:
                    self._run(f"ALTER TABLE {target} DROP COLUMN {self.quote(name)}")
                for column in added:
                    kind = f"{self.quote(column.name)} {self.type_of(column)}"
                    self._run(f"ALTER TABLE {target} ADD COLUMN {kind}")
            case RestoreRows(keys):
                self._restore(table, keys)
            case ForgetLate():
                self._run(f"DROP TABLE IF EXISTS {self._late(table)}")
            case _:
                if isinstance(step, Move):
                    self._make_room(table, step)
                self._rows_of(table).apply(self._opened().cursor(), [step])

    def _rows_of(self, table: TargetTable) -> StagedRows:
        shape, known = (table.columns, table.key), self._staged.get(table.target)
        if known is None or known[0] != shape:
            number = self._numbers.setdefault(table.target, len(self._numbers))
            known = self._staged[table.target] = shape, self._staged_table(table, number)
            known[1].make(self._opened().cursor())
        return known[1]

    def _fill(self, table: TargetTable, rows: Sequence[Values]) -> None:
        """Adds rows in bulk; one that has a key of another replaces it."""
        staged, cursor = self._rows_of(table), self._opened().cursor()
        cursor.execute("SAVEPOINT penstock_fill")
        try:
            staged.copy(cursor, rows)
        except self.not_unique:
            cursor.execute("ROLLBACK TO SAVEPOINT penstock_fill")
            staged.apply(cursor, [_added(table, rows)])
        cursor.execute("RELEASE SAVEPOINT penstock_fill")

    def _restore(self, table: TargetTable, keys: Sequence[Values] | None) -> None:
        target, late = self.quote(table.target), self._late(table)
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
        there, new = self._shape(table.target), self._shape(self._loading(table))
        if [one for one in there if one[2] >= 0] != [one for one in new if one[2] >= 0]:
            return False
        target = self.quote(table.target)
        self._run("SAVEPOINT penstock_fits")
        try:
            for name, *_ in (one for one in there if one not in new):
                self._run(f"ALTER TABLE {target} DROP COLUMN {self.quote(name)}")
            for name, kind, _ in (one for one in new if one not in there):
                self._run(f"ALTER TABLE {target} ADD COLUMN {self.quote(name)} {kind}")
        except SettingsError:  # also where there is no table yet
            self._run("ROLLBACK TO SAVEPOINT penstock_fits")
            return False
        return True

    def _make_room(self, table: TargetTable, step: Move) -> None:
        """A row that has the new key already is older or newer than the row that moves there: with
        chunks of several points in the log."""
        target, given = self.quote(table.target), dict(zip(table.names, step.row, strict=True))
        kinds = {column.name: column for column in table.columns}
        keyed = " AND ".join(f"{self.quote(one)} = {self.value(kinds[one])}" for one in table.key)
        new = [given[name] for name in table.key]  # no value of a key is absent
        if new != [*step.old] and self._run(f"SELECT 1 FROM {target} WHERE {keyed}", step.old):
            self._run(f"DELETE FROM {target} WHERE {keyed}", new)

    def _create(self, table: TargetTable, name: str) -> None:
        key = table.key
        parts = [
            f"{self.quote(one.name)} {self.type_of(one)}"
            + (" PRIMARY KEY" if key == (one.name,) else "")
            for one in table.columns
        ]
        if len(key) > 1:
            parts.append(f"PRIMARY KEY ({', '.join(map(self.quote, key))})")
        self._run(f"CREATE TABLE {name} ({', '.join(parts)})")

    def _names(self, names: Sequence[str]) -> str:
        return ", ".join(map(self.quote, names))

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
        found = self._run(f"SELECT document FROM penstock_mirror WHERE name = {self.mark}", [name])
        return TargetTable.from_json(orjson.loads(found[0][0])) if found else None

    def _store(self, table: TargetTable, *, is_followed: bool = True) -> None:
        live = int(is_followed and table.state == "live")
        document = orjson.dumps(table.to_json()).decode()
        marks = ", ".join([self.mark] * 5)
        self._run(
            "INSERT INTO penstock_mirror (name, document, sequence, live, stream)"
            f" VALUES ({marks}) ON CONFLICT (name) DO UPDATE SET document = excluded.document,"
            " sequence = excluded.sequence, live = excluded.live, stream = excluded.stream",
            [table.name, document, table.sequence, live, table.stream],
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction of the replica that opened the target last."""
        with self._transaction():
            found = self._run(f"SELECT token FROM penstock_mirror_owner{self._locked}")
            if not found or found[0][0] != self._token:
                raise LeaseLost(
                    "another replica writes to this target",
                    "tables.target-taken",
                    hint="run one mirror for each database or file",
                )
            yield

    @contextmanager
    def _refusing(self, work: Sequence[tuple[TargetTable, Iterable[Step]]]) -> Iterator[None]:
        """What fails is of the last table of the work, if there is any."""
        try:
            yield
        except (Unavailable, LeaseLost):
            raise
        except Exception as error:
            if not work:
                raise
            table = work[-1][0]
            row = self._refused_row([one for one in work if one[0].name == table.name])
            columns = {one.name: one for one in table.columns}
            refusing = (name for name in row if not self._takes(columns[name], row[name]))
            raise refused(table, row, next(refusing, ""), error) from error

    def _refused_row(self, work: Sequence[tuple[TargetTable, Iterable[Step]]]) -> Mapping[str, Any]:
        """What is known of the row that fails: the work is done again in halves, then undone."""
        known: Mapping[str, Any] = {}
        with suppress(Exception), self._transaction():
            for table, steps in work:
                for step in steps:
                    found = self._first_refused(table, [*single_rows(table, step)])
                    if found is not None:
                        known = found
                        raise _Undone
            raise _Undone
        return known

    def _first_refused(
        self, table: TargetTable, rows: Sequence[tuple[Step, Mapping[str, Any]]]
    ) -> Mapping[str, Any] | None:
        """Does these steps of single rows together; what is known of the first that fails."""
        if len(rows) > 1:
            self._rows_of(table)  # its temporary tables stay
        self._run("SAVEPOINT penstock_half")
        try:
            if rows:
                self._step(table, joined([step for step, _ in rows]))
        except Exception:
            self._run("ROLLBACK TO SAVEPOINT penstock_half")
            if len(rows) == 1:
                return rows[0][1]
            at = len(rows) // 2
            first = self._first_refused(table, rows[:at])
            return self._first_refused(table, rows[at:]) if first is None else first
        return None

    def _takes(self, column: TargetColumn, value: Any) -> bool:
        with suppress(Exception):
            self._run(f"SELECT {self.value(column)}", [value])
            return True
        return False

    _locked = ""  # what makes a SELECT wait for other replicas

    @abstractmethod
    def encoder(self, column: TargetColumn) -> Encoder:
        """See `Target`."""

    @abstractmethod
    def type_of(self, column: TargetColumn) -> str:
        """The type of a column here."""

    def value(self, column: TargetColumn) -> str:
        """A parameter for a value of the column."""
        return self.mark

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Connects if need be; translates errors, after which temporary tables are gone."""
        try:
            with self._translated(), self._opened().transaction():
                yield
        except BaseException:
            self._staged.clear()
            raise

    def _opened(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._translated():
            done = self._opened().execute(statement, values)
            return done.fetchall() if done.description else []

    @abstractmethod
    def _connect(self) -> Any:
        """A connection in autocommit mode, with `transaction()` and `closed`."""

    @abstractmethod
    def _translated(self) -> AbstractContextManager[None]:
        """The driver's errors as ours."""

    @abstractmethod
    def _staged_table(self, table: TargetTable, number: int) -> StagedRows:
        """What applies steps to the table; `number` is that of its temporary tables."""

    @abstractmethod
    def _folded(self, name: str) -> str:
        """A name as the database compares it."""

    @abstractmethod
    def _exists(self, name: str) -> bool:
        """Whether there is a table or view of that name."""

    @abstractmethod
    def _shape(self, name: str) -> Sequence[tuple[str, str, int]]:
        """The columns of a table with types, and places in its key or -1; none without one."""


def _added(table: TargetTable, rows: Sequence[Values]) -> Merge | Recount:
    """The step that adds rows; of two with one key, the last."""
    if not table.key:
        return Recount(Counter(rows))
    key = itemgetter(*map(table.names.index, table.key))
    return Merge(whole=[*{key(row): row for row in rows}.values()])


def relation_of(table: TargetTable) -> SourceRelation:
    """What rows of a table are of."""
    columns = (RelationColumn(one.name, one.type, one.name in table.key) for one in table.columns)
    return SourceRelation(schema="", table=table.target, columns=tuple(columns))
