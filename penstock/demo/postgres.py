"""A real PostgreSQL, embedded, and fresh databases on it."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql

from penstock.demo.programs import postgres_bin, reachable, unprivileged
from penstock.demo.server import EmbeddedServer
from penstock.errors import SettingsError, Unavailable

__all__ = ["Database", "Postgres"]

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync")
_TO_GO = 60.0  # seconds for sessions to end when their database is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """One database of an embedded server."""

    name: str
    url: str

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Runs one statement (several, without `params`) in a connection of its own, each
        committed; returns the rows of the last, if it has any."""
        return _execute(self.url, statement, params)


class Postgres(EmbeddedServer):
    """A PostgreSQL with logical decoding on; superuser `postgres`, no password on loopback.

    `settings` are server settings (postgresql.conf names) on top of ours; change the mapping
    before the next `start`. `hba` are pg_hba.conf lines that come before "trust on loopback".
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        version: int = 16,
        settings: Mapping[str, object] | None = None,
        hba: Sequence[str] = (),
    ) -> None:
        self.bin = postgres_bin(version)
        self.version = version
        self.settings: dict[str, object] = {
            "wal_level": "logical",
            "max_wal_senders": 20,
            "max_replication_slots": 20,
            **(settings or {}),
        }
        self.hba = tuple(hba)
        super().__init__("postgres", folder)
        self.data = self.folder / "data"

    @property
    def url(self) -> str:
        """Of the database `postgres`, as the superuser."""
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres", password: str = "") -> str:
        """Of a database on this server."""
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@{self.host}:{self.port}/{database}"

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """As `Database.execute`, in the database `postgres`."""
        return _execute(self.url, statement, params)

    def stop(
        self, mode: Literal["smart", "fast", "immediate"] = "fast", timeout: float = 30.0
    ) -> None:
        """Ends the server; at once (`immediate`) when it takes longer than `timeout` seconds: a
        replication client that does not read holds a fast shutdown up."""
        for number in (_SIGNALS[mode], signal.SIGQUIT):
            self.daemon.signal(number)
            if self.daemon.wait(timeout):
                return
        self.kill()

    @contextmanager
    def database(self, name: str = "") -> Iterator[Database]:
        """A fresh database, dropped afterwards with its replication slots."""
        name = name or f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f'CREATE DATABASE "{name}"')
        try:
            yield Database(name=name, url=self.url_of(name))
        finally:
            if self.daemon.running:
                self.drop(name)

    def drop(self, database: str) -> None:
        """Drops a database, whoever is connected to it, and its replication slots."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            # A slot can be dropped after its wal sender has ended.
            connection.execute(
                """
                DO $$ DECLARE s record; BEGIN
                  FOR s IN SELECT slot_name FROM pg_replication_slots WHERE database = '%s' LOOP
                    FOR attempt IN 1..3000 LOOP
                      PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots
                        WHERE slot_name = s.slot_name AND active;
                      BEGIN
                        PERFORM pg_drop_replication_slot(s.slot_name);
                        EXIT;
                      EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.02);
                      WHEN undefined_object THEN EXIT;
                      END;
                    END LOOP;
                  END LOOP;
                END $$""".replace("%s", database.replace("'", "''")).encode()
            )
            # So can a database: PostgreSQL waits five seconds for the sessions that it ends.
            deadline = time.monotonic() + _TO_GO
            while True:
                try:
                    connection.execute(
                        sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
                            sql.Identifier(database)
                        )
                    )
                except psycopg.errors.ObjectInUse:
                    if time.monotonic() > deadline:
                        raise
                else:
                    return

    def _start(self, *, again: bool) -> None:
        user = unprivileged()
        if not (self.data / "PG_VERSION").exists():
            self._initdb(user)
        options = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            **self.settings,
        }
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={_setting(value)}"]
        self.daemon.start(command, ready=self._ready, user=user, timeout=self.timeout, again=again)

    def _initdb(self, user: int | None) -> None:
        self.data.mkdir(exist_ok=True)
        if user is not None:
            os.chown(self.data, user, user)
            if self._temporary:
                self.folder.chmod(0o755)
            if not reachable(self.folder):
                raise SettingsError(
                    f"PostgreSQL does not run as root, and user {user} cannot enter {self.folder}",
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
            raise Unavailable(f"initdb failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
        rules = self.data / "pg_hba.conf"
        rules.write_text("\n".join((*self.hba, rules.read_text())))

    def _ready(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=5) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        # Another server may hold the port: compare the data folder.
        return row == (str(self.data),)


def _execute(url: str, statement: str, params: Sequence[Any] | None) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=30) as connection:
        cursor = connection.execute(statement.encode(), params)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
