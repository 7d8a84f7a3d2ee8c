"""A real PostgreSQL, embedded."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from penstock.demo.programs import postgres_bin, reachable, unprivileged
from penstock.demo.server import EmbeddedServer
from penstock.model.errors import SettingsError, Unavailable

_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync")


class Postgres(EmbeddedServer):
    """A PostgreSQL with logical decoding on; superuser `postgres`, no password on loopback.

    `settings` are server settings (postgresql.conf names) for the next start.
    """

    stops_on = signal.SIGINT  # a fast shutdown

    def __init__(self, folder: Path | str | None = None) -> None:
        self.bin = postgres_bin()
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
        """Of a database on this server."""
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@{self.host}:{self.port}/{database}"

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Runs one statement (several, without `params`) in the database `postgres`, in a
        connection of its own, each committed; returns the rows of the last, if it has any."""
        return execute(self.url, statement, params)

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
            command += ["-c", f"{name}={value}"]
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

    def _ready(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=5) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        # Another server may hold the port: compare the data folder.
        return row == (str(self.data),)


def execute(url: str, statement: str, params: Sequence[Any] | None) -> list[tuple[Any, ...]]:
    """See `Postgres.execute`; in the database at `url`."""
    with psycopg.connect(url, autocommit=True, connect_timeout=30) as connection:
        cursor = connection.execute(statement.encode(), params)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []
