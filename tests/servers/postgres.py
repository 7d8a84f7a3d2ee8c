"""The demo's PostgreSQL in several versions, with settings of the test's and fresh databases."""

import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql

from penstock.demo.sources.postgres import Postgres as DemoPostgres
from penstock.demo.sources.postgres import execute, rows_of
from penstock.demo.sources.postgres import postgres_bin as packaged
from penstock.model.errors import Unavailable

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_PACKAGED = {16: "pginstall", 18: "pginstall18"}
_connections = threading.local()  # `of`: by URL, while they are kept
_TO_GO = 60.0  # seconds for sessions to end when their database is dropped


def postgres_bin(version: int) -> Path:
    """The folder of PostgreSQL's programs (`initdb`, `postgres`, ...); raises Unavailable.

    Versions 16 and 18 come from PyPI; any other from where Debian and Ubuntu put it.
    """
    if version in _PACKAGED:
        return packaged(_PACKAGED[version])
    debian = Path(f"/usr/lib/postgresql/{version}/bin")
    if not (debian / "postgres").exists():
        raise Unavailable(
            f"PostgreSQL {version} is not installed", hint=f"apt-get install postgresql-{version}"
        )
    return debian


@contextmanager
def keeping() -> Iterator[None]:
    """Until its end, `execute` of this thread has one connection for each database: what is asked
    again and again costs a thirtieth of the CPU."""
    if getattr(_connections, "of", None) is not None:
        yield
        return
    _connections.of = {}
    try:
        yield
    finally:
        for each in _connections.of.values():
            each.close()
        _connections.of = None


def _execute(url: str, statement: str, params: Sequence[Any] | None) -> list[tuple[Any, ...]]:
    if (kept := getattr(_connections, "of", None)) is None:
        return execute(url, statement, params)
    known = url in kept
    try:
        if not known:  # plans are not kept: tables are altered meanwhile
            kept[url] = psycopg.connect(
                url, autocommit=True, connect_timeout=30, prepare_threshold=None
            )
        return rows_of(kept[url].execute(statement.encode(), params))
    except psycopg.OperationalError:
        if url not in kept or not kept[url].closed:
            raise
        del kept[url]  # ended by its server
        if not known:
            raise
        return _execute(url, statement, params)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """One database of an embedded server."""

    name: str
    url: str

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Runs one statement (several, without `params`), each committed; returns the rows of the
        last, if it has any. In a connection of its own, or see `keeping`."""
        return _execute(self.url, statement, params)


class Postgres(DemoPostgres):
    """`settings` are server settings (postgresql.conf names) on top of ours; change the mapping
    before the next `start`. `hba` are pg_hba.conf lines that come before "trust on loopback"."""

    def __init__(
        self,
        folder: Path | str | None = None,
        version: int = 16,
        settings: Mapping[str, object] | None = None,
        hba: Sequence[str] = (),
    ) -> None:
        found = postgres_bin(version)
        super().__init__(folder)
        self.bin = found
        self.version = version
        self.settings |= settings or {}
        self.hba = tuple(hba)

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """See `Database.execute`."""
        return _execute(self.url, statement, params)

    def stop(
        self, mode: Literal["smart", "fast", "immediate"] = "fast", timeout: float = 30.0
    ) -> None:
        """Ends the server; at once (`immediate`) when it takes longer than `timeout` seconds: a
        replication client that does not read holds a fast shutdown up."""
        for number in (_SIGNALS[mode], signal.SIGQUIT):
            self.signal(number)
            if self.wait(timeout):
                return
        self.kill()

    @contextmanager
    def database(self, name: str = "", options: str = "") -> Iterator[Database]:
        """A fresh database, dropped afterwards with its replication slots."""
        name = name or f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f'CREATE DATABASE "{name}" {options}')
        try:
            yield Database(name=name, url=self.url_of(name))
        finally:
            if self.running:
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

    def _initdb(self) -> None:
        super()._initdb()
        rules = self.data / "pg_hba.conf"
        rules.write_text("\n".join((*self.hba, rules.read_text())))
