"""Leases in an SQLite file: the default, on one host.

SQLite's own lock makes each statement a compare-and-swap between processes.
Write-ahead log and synchronous=FULL: what `put` returned survives a kill and a power cut.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.leases.rows import RowStore, Work, statements_of
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.process.backoff import delays

_BUSY_SECONDS = 5.0

# Primary result code -> what to do about it.
_ERRORS: dict[int, tuple[type[PenstockError], str]] = {
    sqlite3.SQLITE_BUSY: (Unavailable, "another program holds a lock on it"),
    sqlite3.SQLITE_LOCKED: (Unavailable, "another program holds a lock on it"),
    sqlite3.SQLITE_FULL: (Unavailable, "make room on its disk"),
    sqlite3.SQLITE_IOERR: (Unavailable, "look at its disk"),
    sqlite3.SQLITE_READONLY: (SettingsError, "make the file and its folder writable"),
    sqlite3.SQLITE_PERM: (SettingsError, "make the file and its folder writable"),
    sqlite3.SQLITE_CANTOPEN: (SettingsError, "make the file and its folder writable"),
    sqlite3.SQLITE_NOTADB: (SettingsError, "it is no SQLite file: move it away, or name another"),
    sqlite3.SQLITE_CORRUPT: (SettingsError, "the file is damaged: restore it or move it away"),
}


class SqliteStore(RowStore[sqlite3.Connection]):
    """A `LeaseStore` in one file, made on demand together with its folder (mode 0700).

    Threads and processes may share the file.
    """

    statements = statements_of("lease", ":{}")

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)

    @classmethod
    def of_url(cls, url: str) -> "SqliteStore":
        """Of `sqlite:///relative.db` or `sqlite:////absolute.db`; raises SettingsError."""
        path = url.removeprefix("sqlite:///")
        if path in (url, ""):
            hint = "write sqlite:///relative.db or sqlite:////absolute.db"
            raise SettingsError("the positions URL names no SQLite file", hint=hint)
        return cls(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return SqliteStore, (self.path,)

    def _run(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        with self._lock, _translated(self.path):
            return self._client().execute(statement, values).fetchall()

    def _run_all(self, work: Work) -> list[list[Any]]:
        with self._lock, _translated(self.path):
            connection = self._client()
            with connection:  # commits, or rolls back
                # Locks at once: a read lock that waits to become a write lock fails instead.
                connection.execute("BEGIN IMMEDIATE")
                return [connection.execute(*each).fetchall() for each in work]

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file that exists is left to SQLite: a process that closes it loses the locks of all its
        # connections (POSIX), and another that leaves last then removes the log under them.
        if not self.path.exists():
            with suppress(FileExistsError):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(self.path, flags, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _set_up(connection: sqlite3.Connection) -> None:
    # Switching to the write-ahead log does not wait for a lock as statements do.
    until = time.monotonic() + _BUSY_SECONDS
    for delay in delays(first=0.005, limit=0.1):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            break
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(delay)
    connection.execute("PRAGMA synchronous = FULL").fetchall()
    connection.execute(SqliteStore.statements["create"]).fetchall()


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        kind, hint = _ERRORS.get(_code(error), (SettingsError, "look at the file"))
        raise kind(f"positions file {path}: {error}", hint=hint) from error
    except OSError as error:
        hint = "make the file and its folder writable"
        raise SettingsError(f"positions file {path}: {error.strerror}", hint=hint) from error
