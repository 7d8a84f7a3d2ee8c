"""The map of tables in a SQLite file, which is edited while a pipeline runs that follows it.

Three kinds of rows, as kuvasz-streamer has them: `db` is a backend, `url` one of its sources, `tbl`
one of its tables. Options of a table that kuvasz-streamer lacks are JSON in one column. Ids are
never used again.
"""

import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError

from penstock.model.errors import RefusedEdit, SettingsError
from penstock.model.settings import Settings
from penstock.process import sqlite_file
from penstock.process.closing import Closes, closing_on_failure
from penstock.process.postgres_url import (
    PostgresUrl,
    is_masked,
    is_same_login,
    masked,
    server_name,
    unmasked,
)
from penstock.process.sqlite_file import translated
from penstock.sinks.tables.settings import MapEntry, TableOptions, TableSinkSettings

Kind = Literal["db", "url", "tbl"]
# A row as JSON has it: its `id`, its values, and `db_name` of what belongs to a `db`.
MapRow = Mapping[str, Any]

_FILE = "map file"
# By the version that it makes, from 1: `PRAGMA user_version`.
_MIGRATIONS = (
    """
    CREATE TABLE db (
        db_id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE
    );
    CREATE TABLE url (
        url_id INTEGER PRIMARY KEY AUTOINCREMENT, db_id INTEGER NOT NULL REFERENCES db,
        url TEXT NOT NULL, sid TEXT NOT NULL, UNIQUE (db_id, sid)
    );
    CREATE TABLE tbl (
        tbl_id INTEGER PRIMARY KEY AUTOINCREMENT, db_id INTEGER NOT NULL REFERENCES db,
        schema TEXT NOT NULL DEFAULT 'public', name TEXT NOT NULL,
        type TEXT NOT NULL DEFAULT 'clone', target TEXT NOT NULL DEFAULT '',
        partitions_regex TEXT NOT NULL DEFAULT '', options TEXT NOT NULL DEFAULT '{}',
        UNIQUE (db_id, schema, name)
    );
    """,
)
_COLUMNS: dict[Kind, Sequence[str]] = {
    "db": ("name",),
    "url": ("db_id", "url", "sid"),
    "tbl": ("db_id", "schema", "name", "type", "target", "partitions_regex", "options"),
}
# What a row has that nobody sets.
_COMPUTED = frozenset({"id", "db_name"})


class _Db(Settings):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")


class _Url(Settings):
    db_id: int = Field(ge=0, lt=2**63)
    url: PostgresUrl = Field(min_length=1)
    sid: str = Field(pattern=r"^[^\s:/]+$")


class _Table(TableOptions):
    db_id: int = Field(ge=0, lt=2**63)
    schema: str = Field("public", pattern=r"^[^.]+$")  # type: ignore[assignment]
    name: str = Field(min_length=1)
    partitions: str = Field("", alias="partitions_regex")


_MODELS: dict[Kind, type[Settings]] = {"db": _Db, "url": _Url, "tbl": _Table}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapContent:
    """What the file says, as a pipeline file would: `backends` are plain data, with passwords.
    `problems`: what is wrong with rows that are left out (edits by other programs), and `broken`
    which they are: the db, the kind, and the sid or the name of the table."""

    entries: tuple[MapEntry, ...] = ()
    backends: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    broken: tuple[tuple[str, Kind, str], ...] = ()

    def over(self, before: TableSinkSettings, backends: Iterable[Any]) -> "MapContent":
        """The same, where rows that are broken say what they said in these settings."""
        tables = {(each.backend, name): options for each in before.map
                  for name, options in each.tables.items()}  # fmt: skip
        known = {(each.name, source.sid): source for each in backends for source in each.sources}
        entries = {each.backend: dict(each.tables) for each in self.entries}
        sources = {each["name"]: [*each["sources"]] for each in self.backends}
        for db, kind, name in self.broken:
            if kind == "tbl" and (options := tables.get((db, name))) is not None:
                entries.setdefault(db, {})[name] = options
            if kind == "url" and (source := known.get((db, name))) is not None:
                url = source.connection.get_secret_value()
                sources.setdefault(db, []).append({"sid": name, "connection": url})
        return replace(self, entries=_entries(entries), backends=_backends(sources))


class MapStore(Closes):
    """One file, made and migrated on demand (mode 0600). Threads may share a store, and processes
    the file. Everything raises SettingsError and Unavailable; edits raise RefusedEdit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Closes the file; it is opened again when it is needed."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @property
    def revision(self) -> object:
        """Another one after each change, whoever made it. Costs a look at the file's first page."""
        with self._opened() as connection:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            return version, connection.total_changes

    def rows(self, kind: Kind) -> Sequence[MapRow]:
        """All rows of a kind, by id; without passwords."""
        with self._opened() as connection:
            return list(map(_shown, self._read(connection, kind)))

    def verify(self, kind: Kind, values: Mapping[str, Any]) -> None:
        """Refuses what `add` would refuse whatever other rows there are."""
        _model(kind, values)

    def add(self, kind: Kind, values: Mapping[str, Any]) -> MapRow:
        """Adds a row; what is not given, or null, has its default."""
        with self._changed() as connection:
            row = self._validated(connection, kind, values)
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            with _named(kind):
                added = connection.execute(
                    f"INSERT INTO {kind} ({names}) VALUES ({marks})", [*row.values()]
                )
            return _shown(self._one(connection, kind, added.lastrowid or 0))

    def change(self, kind: Kind, id: int, values: Mapping[str, Any]) -> MapRow:
        """Changes a row. A password `***` stays what it is, where server and user do."""
        with self._changed() as connection:
            known = self._one(connection, kind, id)
            row = self._validated(connection, kind, {**known, **values}, id, known.get("url"))
            assignments = ", ".join(f"{name} = ?" for name in row)
            with _named(kind):
                connection.execute(
                    f"UPDATE {kind} SET {assignments} WHERE {kind}_id = ?", [*row.values(), id]
                )
            return _shown(self._one(connection, kind, id))

    def remove(self, kind: Kind, id: int) -> None:
        """Removes a row; a `db` only when it has neither urls nor tables."""
        with self._changed() as connection:
            self._one(connection, kind, id)
            with _named(kind):
                connection.execute(f"DELETE FROM {kind} WHERE {kind}_id = ?", [id])

    def content(self) -> MapContent:
        """What the file says now."""
        tables: dict[str, dict[str, TableOptions]] = {}
        sources: dict[str, list[Mapping[str, Any]]] = {}
        problems, broken = [], list[tuple[str, Kind, str]]()
        with self._opened() as connection:
            connection.execute("BEGIN")
            try:
                found = {kind: self._read(connection, kind) for kind in _MODELS}
            finally:
                connection.execute("COMMIT")
        for kind, rows in found.items():
            for row in rows:
                try:
                    model = _model(kind, row)
                except RefusedEdit as error:
                    problems.append(f"{kind} {row['id']}: {error}")
                    name = row["sid"] if kind == "url" else _full_name(row)
                    broken.append((row.get("db_name") or row["name"], kind, name))
                    continue
                if isinstance(model, _Url):
                    source = {"sid": model.sid, "connection": model.url.get_secret_value()}
                    sources.setdefault(row["db_name"], []).append(source)
                elif isinstance(model, _Table):
                    tables.setdefault(row["db_name"], {})[_full_name(row)] = _options(model)
        return MapContent(
            entries=_entries(tables),
            backends=_backends(sources),
            problems=tuple(problems),
            broken=tuple(broken),
        )

    def _read(
        self, connection: sqlite3.Connection, kind: Kind, id: int | None = None
    ) -> Sequence[dict[str, Any]]:
        """Rows as they are, options beside the columns."""
        names = ", ".join(f"{kind}.{name}" for name in _COLUMNS[kind])
        owner = "" if kind == "db" else ", db.name AS db_name"
        join = "" if kind == "db" else " JOIN db USING (db_id)"
        one = "" if id is None else " WHERE id = ?"
        cursor = connection.execute(
            f"SELECT {kind}_id AS id, {names}{owner} FROM {kind}{join}{one} ORDER BY id",
            [] if id is None else [id],
        )
        fields = [each[0] for each in cursor.description]
        found = [dict(zip(fields, row, strict=True)) for row in cursor]
        if kind == "tbl":
            found = [row | _parsed(row.pop("options")) for row in found]
        return found

    def _one(self, connection: sqlite3.Connection, kind: Kind, id: int) -> dict[str, Any]:
        for row in self._read(connection, kind, id):
            return row
        raise RefusedEdit(f"there is no {kind} {id}", "postgres", reason="not found", field="id")

    def _validated(
        self,
        connection: sqlite3.Connection,
        kind: Kind,
        values: Mapping[str, Any],
        id: int | None = None,
        before: str | None = None,
    ) -> Mapping[str, Any]:
        """The columns of a row; `before`: its URL, which has the password that is `***` now. No
        other server is sent that."""
        model = _model(kind, values)
        row = {name: getattr(model, name, None) for name in _COLUMNS[kind]}
        if isinstance(model, _Url):
            row["url"] = url = model.url.get_secret_value()
            if is_masked(url) and before is not None and is_same_login(url, before):
                row["url"] = url = unmasked(url, before)
            if is_masked(url):
                raise RefusedEdit(
                    "url: its password is ***", "postgres", field="url",
                    hint="give the password, also for another server or user",
                )  # fmt: skip
        if isinstance(model, _Table):
            row["partitions_regex"] = model.partitions
            options = _options(model).model_dump(
                mode="json", exclude_defaults=True, exclude={"type", "target", "partitions"}
            )
            row["options"] = orjson.dumps(options).decode()
        if "db_id" in row:
            try:
                db = self._one(connection, "db", int(row["db_id"] or 0))
            except RefusedEdit as error:
                raise RefusedEdit(error.message, "postgres", field="db_id") from None
            if isinstance(model, _Url):
                self._verify_slot(connection, db["name"], model, id)
        return row

    def _verify_slot(
        self, connection: sqlite3.Connection, db: str, url: _Url, id: int | None
    ) -> None:
        name = server_name(db, url.sid)
        for other in self._read(connection, "url"):
            is_other = other["db_id"] == url.db_id and other["id"] != id
            if is_other and other["sid"] != url.sid and server_name(db, other["sid"]) == name:
                raise RefusedEdit(
                    f"sid: {other['sid']} and {url.sid} would both have the slot {name}",
                    "postgres",
                    hint="only letters, digits and underscores tell names apart there",
                    field="sid",
                )

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translated(_FILE, self.path):
            if self._connection is None:
                connection = sqlite_file.connect(self.path)
                with closing_on_failure(connection):
                    self._migrate(connection)
                self._connection = connection
            yield self._connection

    @contextmanager
    def together(self) -> Iterator[None]:
        """Edits inside are made all or none, and are one change."""
        with self._changed():
            yield

    @contextmanager
    def _changed(self) -> Iterator[sqlite3.Connection]:
        with (
            self._opened() as connection,
            nullcontext() if connection.in_transaction else _transaction(connection),
        ):
            yield connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        with _transaction(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(_MIGRATIONS):
                raise SettingsError(
                    f"{_FILE} {self.path} was made by a newer penstock",
                    "postgres",
                    hint="upgrade penstock",
                )
            if not version and connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise SettingsError(
                    f"{_FILE} {self.path} is another program's database",
                    "postgres",
                    hint="name a file of its own in sink.map; `penstock map FILE import` reads"
                    " that of kuvasz-streamer",
                )
            for migration in _MIGRATIONS[version:]:
                for statement in filter(str.strip, migration.split(";")):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    with connection:  # commits, or rolls back
        # Locks at once: a read lock that waits to become a write lock fails instead.
        connection.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def _named(kind: Kind) -> Iterator[None]:
    """What a constraint of the file refuses."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            raise RefusedEdit(
                f"this {kind} has urls or tables",
                "postgres",
                hint="remove them first",
                reason="in use",
            ) from None
        columns = re.findall(r"\.(\w+)", str(error))
        raise RefusedEdit(
            f"there is a {kind} with this {' and '.join(columns)}",
            "postgres", reason="duplicate", field=columns[-1],
        ) from None  # fmt: skip


def _model(kind: Kind, values: Mapping[str, Any]) -> Settings:
    given = {
        name: value for name, value in values.items() if value is not None and name not in _COMPUTED
    }
    try:
        return _MODELS[kind].model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        field = str(next(iter(found["loc"]), ""))
        text = {"missing": "is missing", "extra_forbidden": "is no field"}.get(
            found["type"], found["msg"].removeprefix("Value error, ")
        )
        raise RefusedEdit(f"{field}: {text}", "postgres", field=field) from None


def _entries(tables: Mapping[str, dict[str, TableOptions]]) -> tuple[MapEntry, ...]:
    return tuple(MapEntry(backend=db, tables=each) for db, each in tables.items())


def _backends(sources: Mapping[str, Sequence[Any]]) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": db, "type": "postgres", "sources": each} for db, each in sources.items())


def _full_name(row: MapRow) -> str:
    return f"{row.get('schema')}.{row['name']}"


def _options(table: _Table) -> TableOptions:
    names = TableOptions.model_fields
    return TableOptions.model_validate({name: getattr(table, name) for name in names})


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    # Refused under this name when the row is read.
    return found if isinstance(found, dict) else {"options": "no JSON object"}


def _shown(row: dict[str, Any]) -> MapRow:
    """With the defaults of a table's options, without a password."""
    if "url" in row:
        return row | {"url": masked(row["url"])}
    if "partitions_regex" in row:
        return TableOptions().model_dump(mode="json", exclude={"partitions"}) | row
    return row
