"""What the targets that speak SQL have in common: tables, the state beside them, and the steps.

Three tables are the target's own: `penstock_mirror` (each table's state), `penstock_mirror_chunk`
(which chunks are loaded) and `penstock_mirror_owner` (the replica that may write).
"""

import hashlib
import secrets
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson

from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from penstock.process.closing import Closes
from penstock.tables.target_table import TargetColumn, TargetTable
from penstock.tables.targets import (
    AlterColumns,
    ClearRows,
    DeleteRows,
    Encoder,
    ForgetLate,
    InsertRows,
    LoadedChunk,
    RemoveRows,
    RestoreRows,
    Step,
    UpdateRows,
    UpsertRows,
    Values,
    refused,
    single_rows,
)

_CREATE = (
    "CREATE TABLE IF NOT EXISTS penstock_mirror"
    " (name text PRIMARY KEY, document text NOT NULL, sequence bigint NOT NULL, live int NOT NULL)",
    "CREATE TABLE IF NOT EXISTS penstock_mirror_chunk (name text NOT NULL, chunk int NOT NULL,"
    " row_count bigint NOT NULL, crc32 bigint NOT NULL, PRIMARY KEY (name, chunk))",
    "CREATE TABLE IF NOT EXISTS penstock_mirror_owner (one int PRIMARY KEY, token text NOT NULL)",
)


class _Undone(Exception):
    pass


class SqlTarget(Closes):
    """A `Target`. What differs between databases is in the methods at the end."""

    mark = "?"  # a parameter

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._connection: Any = None

    def close(self) -> None:
        """Disconnects; the next call connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def open(self, names: Collection[str]) -> Sequence[TargetTable]:
        """See `Target`."""
        with self._transaction():
            for statement in _CREATE:
                self._run(statement)
            self._run("DELETE FROM penstock_mirror_owner")
            self._run(f"INSERT INTO penstock_mirror_owner VALUES (1, {self.mark})", [self._token])
            found = self._tables()
            for table in found:
                self._store(table, is_followed=table.name in names)
        return [table for table in found if table.name in names]

    def begin(self, table: TargetTable) -> Sequence[LoadedChunk]:
        """See `Target`."""
        with self._writing():
            before = self._stored(table.name)
            for other in self._tables():
                same = self._folded(other.target) == self._folded(table.target)
                if same and other.name != table.name:
                    raise SettingsError(
                        f"{other.name} and {table.name} would both be the table {table.target}",
                        hint="mirror them into two files or databases",
                    )
            is_other = before is None or self._folded(before.target) != self._folded(table.target)
            if is_other and self._exists(table.target):
                raise SettingsError(
                    f"the target has a table {table.target} that is not of a replica",
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
        """See `Target`."""
        loading = replace(table, target=self._loading_name(table))
        step = UpsertRows(rows) if table.key else InsertRows(rows)
        with self._refusing([(loading, [step])]), self._writing():
            values = [table.name, chunk.chunk, chunk.rows, chunk.crc32]
            marks = ", ".join([self.mark] * 4)
            self._run(f"INSERT INTO penstock_mirror_chunk VALUES ({marks})", values)
            self._fill(self._loading(table), table, rows)
            if is_late:
                late, before = self._late(table), self._stored(table.name)
                if before is None or before.last_point != table.last_point:
                    self._run(f"DROP TABLE IF EXISTS {late}")
                    self._create(table, late)
                    self._store(table)
                self._fill(late, table, rows)

    def finish(self, table: TargetTable, rows: int | None = None) -> None:
        """See `Target`. A table with the same key keeps what users made of it, as far as that needs
        no column that goes: indexes, views and grants."""
        loading, target = self._loading(table), self.quote(table.target)
        with self._refusing([(table, [])]), self._writing():
            have = self._run(f"SELECT count(*) FROM {loading}")[0][0] if rows is not None else rows
            if have != rows:
                raise SettingsError(
                    f"its snapshot has {rows} rows, and {have} are loaded",
                    hint="does its key tell all rows apart? see its primary key at the source",
                )
            if self._fits(table):
                names = self._names(table.columns)
                self._run(f"DELETE FROM {target}")
                self._run(f"INSERT INTO {target} ({names}) SELECT {names} FROM {loading}")
                self._run(f"DROP TABLE {loading}")
            else:
                self._run(f"DROP TABLE IF EXISTS {target}")
                self._run(f"ALTER TABLE {loading} RENAME TO {target}")
            self._run(f"DELETE FROM penstock_mirror_chunk WHERE name = {self.mark}", [table.name])
            self._store(table)

    def apply(self, work: Sequence[tuple[TargetTable, Sequence[Step]]], sequence: int) -> None:
        """See `Target`."""
        done: list[tuple[TargetTable, Sequence[Step]]] = []
        with self._refusing(done), self._writing():
            for table, steps in work:
                done.append((table, steps))
                for step in steps:
                    self._step(table, step)
                self._store(table)
            done.clear()  # what fails now is of no table
            self._run(
                f"UPDATE penstock_mirror SET sequence = {self.mark}"
                f" WHERE live = 1 AND sequence < {self.mark}",
                [sequence, sequence],
            )

    def count(self, table: TargetTable) -> int:
        """See `Target`."""
        return int(self._run(f"SELECT count(*) FROM {self.quote(table.target)}")[0][0])

    def quote(self, name: str) -> str:
        """A name as an identifier."""
        return '"' + name.replace('"', '""') + '"'

    def _step(self, table: TargetTable, step: Step) -> None:
        target, kinds = self.quote(table.target), {c.name: c for c in table.columns}
        keyed = " AND ".join(
            f"{self.quote(name)} = {self.value(kinds[name])}" for name in table.key
        )
        match step:
            case ClearRows():
                self._run(f"DELETE FROM {target}")
            case UpsertRows(rows):
                self._many(self._upsert(target, table), rows)
            case InsertRows(rows):
                self._many(self._insert(target, table), rows)
            case DeleteRows(keys):
                self._many(f"DELETE FROM {target} WHERE {keyed}", keys)
            case UpdateRows(columns, keys, rows):
                if set(columns) & set(table.key):
                    self._make_room(table, step, keyed)
                sets = ", ".join(
                    f"{self.quote(name)} = {self.value(kinds[name])}" for name in columns
                )
                values = [(*row, *key) for key, row in zip(keys, rows, strict=True)]
                self._many(f"UPDATE {target} SET {sets} WHERE {keyed}", values)
            case RemoveRows(rows):
                self._many(self._remove_one(target, table), rows)
            case AlterColumns(added, dropped):
                for name in dropped:
                    self._run(f"ALTER TABLE {target} DROP COLUMN {self.quote(name)}")
                for column in added:
                    kind = f"{self.quote(column.name)} {self.type_of(column)}"
                    self._run(f"ALTER TABLE {target} ADD COLUMN {kind}")
            case RestoreRows(keys):
                names = self._names(table.columns)
                statement = (
                    f"INSERT INTO {target} ({names}) SELECT {names} FROM {self._late(table)}"
                    f" WHERE {keyed if keys is not None else 'true'} {self._replacing(table)}"
                )
                self._many(statement, [()] if keys is None else keys)
            case ForgetLate():
                self._run(f"DROP TABLE IF EXISTS {self._late(table)}")

    def _fits(self, table: TargetTable) -> bool:
        """Whether the table that is there has the columns of the loaded one, or gets them here."""
        there, new = self._shape(table.target), self._shape(self._loading_name(table))
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

    def _make_room(self, table: TargetTable, step: UpdateRows, keyed: str) -> None:
        """A row that has the new key already is older or newer than the row that moves there: with
        chunks of several points in the log."""
        target = self.quote(table.target)
        for old, row in zip(step.keys, step.rows, strict=True):
            given = dict(zip(step.columns, row, strict=True))
            new = [given.get(name, value) for name, value in zip(table.key, old, strict=True)]
            if new != list(old) and self._run(f"SELECT 1 FROM {target} WHERE {keyed}", old):
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

    def _insert(self, target: str, table: TargetTable) -> str:
        marks = ", ".join(map(self.value, table.columns))
        return f"INSERT INTO {target} ({self._names(table.columns)}) VALUES ({marks})"

    def _upsert(self, target: str, table: TargetTable) -> str:
        return f"{self._insert(target, table)} {self._replacing(table)}"

    def _replacing(self, table: TargetTable) -> str:
        rest = [self.quote(name) for name in table.names if name not in table.key]
        sets = ", ".join(f"{name} = excluded.{name}" for name in rest)
        then = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
        key = ", ".join(map(self.quote, table.key))
        return f"ON CONFLICT ({key}) {then}"

    def _names(self, columns: Sequence[TargetColumn]) -> str:
        return ", ".join(self.quote(column.name) for column in columns)

    def _loading(self, table: TargetTable) -> str:
        return self.quote(self._loading_name(table))

    def _late(self, table: TargetTable) -> str:
        return self.quote(self._loading_name(table).replace("loading", "late", 1))

    @staticmethod
    def _loading_name(table: TargetTable) -> str:
        # A table's name may be as long as names may be.
        return f"penstock_loading_{hashlib.sha256(table.name.encode()).hexdigest()[:16]}"

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
        values = [table.name, orjson.dumps(table.to_json()).decode(), table.sequence]
        marks = ", ".join([self.mark] * 3)
        self._run(
            f"INSERT INTO penstock_mirror VALUES ({marks}, {live})"
            " ON CONFLICT (name) DO UPDATE SET document = excluded.document,"
            " sequence = excluded.sequence, live = excluded.live",
            values,
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction of the replica that opened the target last."""
        with self._transaction():
            found = self._run(f"SELECT token FROM penstock_mirror_owner{self._locked}")
            if not found or found[0][0] != self._token:
                raise LeaseLost(
                    "another replica writes to this target",
                    hint="run one mirror for each database or file",
                )
            yield

    @contextmanager
    def _refusing(self, work: Sequence[tuple[TargetTable, Sequence[Step]]]) -> Iterator[None]:
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

    def _refused_row(self, work: Sequence[tuple[TargetTable, Sequence[Step]]]) -> Mapping[str, Any]:
        """What is known of the row that fails: the work is done again, a row at a time, and then
        undone."""
        known: Mapping[str, Any] = {}
        with suppress(Exception), self._transaction():
            for table, steps in work:
                for single, row in (one for step in steps for one in single_rows(table, step)):
                    known = row
                    self._step(table, single)
            known = {}
            raise _Undone
        return known

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

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """Connects if need be; translates errors."""

    @abstractmethod
    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Runs one statement; returns its rows."""

    @abstractmethod
    def _many(self, statement: str, rows: Sequence[Values]) -> None:
        """Runs one statement for each of the rows."""

    @abstractmethod
    def _fill(self, loading: str, table: TargetTable, rows: Sequence[Values]) -> None:
        """Adds rows in bulk; one that has a key of another replaces it."""

    @abstractmethod
    def _remove_one(self, target: str, table: TargetTable) -> str:
        """A statement that deletes one row that equals the parameters in all columns."""

    @abstractmethod
    def _folded(self, name: str) -> str:
        """A name as the database compares it."""

    @abstractmethod
    def _exists(self, name: str) -> bool:
        """Whether there is a table or view of that name."""

    @abstractmethod
    def _shape(self, name: str) -> Sequence[tuple[str, str, int]]:
        """The columns of a table with their types, and their places in its key or -1; none of a
        table that there is not."""
