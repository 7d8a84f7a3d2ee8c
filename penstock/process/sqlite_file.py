"""A SQLite file of penstock's own: made on demand, private, and its errors as ours."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.model.errors import PenstockError, SettingsError, Unavailable

# How long a statement waits for another program's lock.
BUSY_SECONDS = 5.0

# Primary result code -> what to do about it.
ERRORS: dict[int, tuple[type[PenstockError], str]] = {
    sqlite3.SQLITE_BUSY: (Unavailable, "another program holds a lock on it"),
    sqlite3.SQLITE_LOCKED: (Unavailable, "another program holds a lock on it"),
    sqlite3.SQLITE_PROTOCOL: (Unavailable, "another program holds a lock on it"),
    sqlite3.SQLITE_NOMEM: (Unavailable, "the machine has no memory left"),
    sqlite3.SQLITE_FULL: (Unavailable, "make room on its disk"),
    sqlite3.SQLITE_IOERR: (Unavailable, "look at its disk"),
    sqlite3.SQLITE_READONLY: (SettingsError, "make the file and its folder writable"),
    sqlite3.SQLITE_PERM: (SettingsError, "make the file and its folder writable"),
    sqlite3.SQLITE_CANTOPEN: (SettingsError, "make the file and its folder writable"),
    sqlite3.SQLITE_NOTADB: (SettingsError, "it is no SQLite file: move it away, or name another"),
    sqlite3.SQLITE_CORRUPT: (SettingsError, "the file is damaged: restore it or move it away"),
}


def path_of(url: str) -> Path | None:
    """Of `sqlite:///relative.db` or `sqlite:////absolute.db`; None for anything else."""
    path = url.removeprefix("sqlite:///")
    return None if path in (url, "") else Path(path)


def connect(path: Path) -> sqlite3.Connection:
    """Opens the file, which is made (mode 0600) together with its folder (mode 0700). Transactions
    are the caller's to begin; so is it that only one thread is in the connection at a time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file that exists is left to SQLite: a process that closes it loses the locks of all its
    # connections (POSIX), and another that leaves last then removes the log under them.
    if not path.exists():
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def code_of(error: sqlite3.Error) -> int:
    """The primary result code."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def translated(what: str, path: Path) -> Iterator[None]:
    """Raises SettingsError or Unavailable in place of an error of the driver or the file system."""
    try:
        yield
    except sqlite3.Error as error:
        kind, hint = ERRORS.get(code_of(error), (SettingsError, "look at the file"))
        raise kind(f"{what} {path}: {error}", "process", hint=hint) from error
    except OSError as error:
        hint = "make the file and its folder writable"
        raise SettingsError(f"{what} {path}: {error.strerror}", "process", hint=hint) from error
