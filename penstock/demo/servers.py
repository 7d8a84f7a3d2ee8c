"""A real PostgreSQL and a real nats-server, embedded: for the demo, the tests and the benchmark.

Both run on 127.0.0.1 in a folder of their own (a temporary one unless given), and may be stopped,
killed and started again on the same folder and port.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg import sql

from penstock.demo.daemon import Daemon, PortTaken
from penstock.demo.programs import (
    free_port,
    nats_server,
    postgres_bin,
    reachable,
    unprivileged,
)
from penstock.errors import SettingsError, Unavailable

__all__ = ["Database", "Nats", "Postgres", "free_port"]

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync")
_ATTEMPTS = 5


class _Server(ABC):
    """What both servers share: a folder, a port that stays, and a daemon."""

    def __init__(self, name: str, folder: Path | str | None) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.timeout = 60.0  # seconds that a start may take
        self._temporary = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"penstock-{name}-")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.daemon = Daemon(name, self.folder / "log")

    @property
    def pid(self) -> int:
        """The process id of the server; raises Unavailable when it does not run."""
        return self.daemon.pid

    @property
    def log(self) -> str:
        """Everything the server logged so far."""
        return self.daemon.log.read_text(errors="replace")

    def start(self) -> None:
        """Starts the server and waits until it serves; again, on the same port.

        Raises Unavailable with the end of its log.
        """
        if self.daemon.running:
            return
        again = self.port != 0
        for attempt in range(_ATTEMPTS):
            self.port = self.port if again else free_port()
            try:
                self._start(again=again)
            except PortTaken:
                if again or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def kill(self) -> None:
        """Ends the server as a crash would: SIGKILL."""
        self.daemon.signal(signal.SIGKILL)
        self.daemon.wait(30)

    @abstractmethod
    def close(self) -> None:
        """Ends the server in order."""

    @abstractmethod
    def _start(self, *, again: bool) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._clean_up()

    def _clean_up(self) -> None:
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """One database of an embedded server."""

    name: str
    url: str

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Runs one statement (several, without `params`) in a connection of its own, each
        committed; returns the rows of the last, if it has any."""
        return _execute(self.url, statement, params)


class Postgres(_Server):
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

    def close(self) -> None:
        """Ends the server, fast."""
        self.stop()

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
            # A slot can be dropped once its walsender has gone, a moment after it was told to.
            connection.execute(
                """
                DO $$ DECLARE s record; BEGIN
                  FOR s IN SELECT slot_name FROM pg_replication_slots WHERE database = '%s' LOOP
                    FOR attempt IN 1..500 LOOP
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
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database))
            )

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
        # Another server may hold the port that ours is about to fail on.
        return row == (str(self.data),)


class Nats(_Server):
    """A nats-server with JetStream; `config` is its configuration file, on top of ours.

    Nested mappings are merged; `{"jetstream": False}` turns JetStream off.
    """

    def __init__(
        self, folder: Path | str | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        self.bin = nats_server()
        self.config = dict(config or {})
        self._name = str(self.config.get("server_name", f"penstock-{uuid.uuid4().hex[:12]}"))
        super().__init__("nats", folder)

    @property
    def url(self) -> str:
        """nats://127.0.0.1:PORT, without a login."""
        return f"nats://{self.host}:{self.port}"

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the server in order; by force when it takes longer than `timeout` seconds."""
        self.daemon.signal(signal.SIGINT)
        if not self.daemon.wait(timeout):
            self.kill()

    def close(self) -> None:
        """Ends the server in order."""
        self.stop()

    def _start(self, *, again: bool) -> None:
        ours: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "server_name": self._name,
            "jetstream": {"store_dir": str(self.folder / "jetstream")},
        }
        file = self.folder / "nats.conf"
        # The server's own format is a superset of JSON.
        file.write_text(json.dumps(_merged(ours, self.config), indent=2))
        file.chmod(0o600)
        self.daemon.start(
            [str(self.bin), "-c", str(file)], ready=self._ready, timeout=self.timeout, again=again
        )

    def _ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=5) as connection:
                # Another server may hold the port that ours is about to fail on.
                return self._name.encode() in connection.recv(65536)
        except OSError:
            return False


def _execute(url: str, statement: str, params: Sequence[Any] | None) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        cursor = connection.execute(statement.encode(), params)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(ours)
    for name, value in theirs.items():
        mine = merged.get(name)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(mine, value) if both else value  # type: ignore[arg-type]
    return merged
