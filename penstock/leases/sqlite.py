"""Leases in an SQLite file: the default, on one host.

SQLite's own lock makes each statement a compare-and-swap between processes.
Write-ahead log and synchronous=FULL: what `put` returned survives a kill and a power cut.
"""

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.leases.stores import RowStore, Work, statements_of
from penstock.model.errors import SettingsError
from penstock.process import sqlite_file
from penstock.process.backoff import delays
from penstock.process.closing import closing_on_failure
from penstock.process.sqlite_file import code_of, path_of, translated

_FILE = "positions file"


class SqliteStore(RowStore[sqlite3.Connection]):
    """A `LeaseStore` in one file (0600), made with its folder (0700). Processes may share it."""

    statements = statements_of("lease", ":{}")

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)

    @classmethod
    def of_url(cls, url: str) -> "SqliteStore":
        """Of `sqlite:///relative.db` or `sqlite:////absolute.db`; raises SettingsError."""
        if (path := path_of(url)) is None:
            hint = "write sqlite:///relative.db or sqlite:////absolute.db"
            raise SettingsError("the positions URL names no SQLite file", "leases", hint=hint)
        return cls(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return SqliteStore, (self.path,)

    def _run(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        with self._lock, translated(_FILE, self.path):
            return self._client().execute(statement, values).fetchall()

    def _run_all(self, work: Work) -> list[list[Any]]:
        with self._lock, translated(_FILE, self.path):
            connection = self._client()
            with connection:  # commits, or rolls back
                # Locks at once: a read lock that waits to become a write lock fails instead.
                connection.execute("BEGIN IMMEDIATE")
                return [connection.execute(*each).fetchall() for each in work]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite_file.connect(self.path)
        with closing_on_failure(connection):
            _set_up(connection)
        return connection


def _set_up(connection: sqlite3.Connection) -> None:
    # Switching to the write-ahead log does not wait for a lock as statements do.
    until = time.monotonic() + sqlite_file.BUSY_SECONDS
    for delay in delays(first=0.005, limit=0.1):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            break
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(delay)
    connection.execute("PRAGMA synchronous = FULL").fetchall()
    connection.execute(SqliteStore.statements["create"]).fetchall()
