"""Destinations of which a copy is kept and put back: as from a backup, a file that was copied, and
a standby that lacked something and was promoted."""

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.proxy import Proxy
from tests.conftest import FAST
from tests.feeds.postgres.copies import backup_of
from tests.servers import Database, Postgres
from tests.waiting import until

MADE = """
    CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY);
"""
_OWN = ("penstock.ledger", "penstock.source", "penstock.loading", "penstock.held",
        "penstock.dead_letter", "t", "other")  # fmt: skip


class Server:
    """Tables are kept in a schema, and put back in one transaction."""

    def __init__(self, database: Database) -> None:
        self.target = database
        database.execute(MADE)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self.target.execute(statement)

    def keep(self) -> None:
        self.execute("DROP SCHEMA IF EXISTS kept CASCADE; CREATE SCHEMA kept")
        for name in _OWN:
            self.execute(f"CREATE TABLE kept.{name.rpartition('.')[2]} AS TABLE {name}")

    def put_back(self) -> None:
        with psycopg.connect(self.target.url) as connection:
            connection.execute(f"TRUNCATE {', '.join(_OWN)}")
            for name in _OWN:
                connection.execute(
                    f"INSERT INTO {name} OVERRIDING SYSTEM VALUE TABLE kept."
                    + name.rpartition(".")[2]
                )


class Folder(Server):
    """A server's folder is copied while it is stopped, and put back."""

    def __init__(self, server: Postgres) -> None:
        self._server, self._kept = server, server.folder / "kept"
        super().__init__(Database(name="postgres", url=server.url))

    def keep(self) -> None:
        self._swap(self._server.data, self._kept)

    def put_back(self) -> None:
        self._swap(self._kept, self._server.data)

    def _swap(self, of: Path, to: Path) -> None:
        self._server.stop()
        shutil.rmtree(to, ignore_errors=True)
        # With its owner: PostgreSQL runs as another user.
        subprocess.run(["cp", "-a", str(of), str(to)], check=True)
        self._server.start()


@contextmanager
def folder_of(version: int) -> Iterator[Folder]:
    with Postgres(version=version, settings=FAST) as server:
        yield Folder(server)


class File:
    """A SQLite file is copied, and another one is put in its place."""

    def __init__(self, path: Path) -> None:
        self.target = path
        with sqlite3.connect(path) as file:
            file.executescript(MADE)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.target) as file:
            return file.execute(statement).fetchall()

    def keep(self) -> None:
        kept = self.target.with_suffix(".kept")
        kept.unlink(missing_ok=True)
        with sqlite3.connect(self.target) as file, sqlite3.connect(kept) as copy:
            file.backup(copy)

    def put_back(self) -> None:
        for suffix in ("-wal", "-shm"):
            self.target.with_name(self.target.name + suffix).unlink(missing_ok=True)
        self.target.with_suffix(".kept").replace(self.target)


class Standby(Server):
    """An asynchronous standby of the server gets no more of its log, and is promoted in its place
    when it dies."""

    def __init__(self, primary: Postgres, standby: Postgres, proxy: Proxy) -> None:
        self._primary, self._standby, self._proxy = primary, standby, proxy
        url = primary.url.replace(f":{primary.port}/", f":{proxy.port}/")
        super().__init__(Database(name="postgres", url=url))

    def keep(self) -> None:
        end = self.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        until(lambda: self._standby.execute(replayed, [end])[0][0])
        self._standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self._standby.execute("SELECT pg_reload_conf()")
        until(lambda: not self._standby.execute("SELECT 1 FROM pg_stat_wal_receiver"))

    def put_back(self) -> None:
        self._primary.stop("immediate")
        self._standby.execute("SELECT pg_promote()")
        turn(self._proxy, self._standby)


def turn(proxy: Proxy, server: Postgres) -> None:
    """From now on the proxy is before this server."""
    proxy.turn(server.host, server.port)


@contextmanager
def standby_of(version: int) -> Iterator[Standby]:
    with Postgres(version=version, settings=FAST) as primary:
        proxy = Proxy(primary.host, primary.port)
        try:
            with backup_of(primary, "-R") as standby:
                yield Standby(primary, standby, proxy)
        finally:
            proxy.close()
