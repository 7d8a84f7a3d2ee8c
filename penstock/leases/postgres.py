"""Leases in a PostgreSQL table: one store for instances on several hosts.

Every operation is one statement in a transaction of its own, so the row's lock is the
compare-and-swap. `synchronous_commit` is on: what `put` returned survives a crash of the server.
The table is made on demand. Not in a database whose tables are all published: the rows would be
changes themselves.
"""

import os
from builtins import list as List  # `list` is a method here
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import LeaseLost, SettingsError, Unavailable
from penstock.leases import Lease

__all__ = ["PostgresStore"]

_OPTIONS = "-c synchronous_commit=on -c statement_timeout=10000 -c lock_timeout=10000"
_PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "penstock leases",
}

_TABLE = """\
CREATE TABLE IF NOT EXISTS penstock_lease (
    name text PRIMARY KEY,
    owner text NOT NULL,
    continuation text NOT NULL,
    revision bigint NOT NULL,
    deleted boolean NOT NULL DEFAULT false
)"""

# A deleted row stays as a mark, so that a name that comes back never repeats a revision.
_INSERT = """\
INSERT INTO penstock_lease AS l (name, owner, continuation, revision)
VALUES (%(name)s, %(owner)s, %(continuation)s, 1)
ON CONFLICT (name) DO UPDATE SET owner = %(owner)s, continuation = %(continuation)s,
    revision = l.revision + 1, deleted = false WHERE l.deleted
RETURNING revision"""
_UPDATE = """\
UPDATE penstock_lease
SET owner = %(owner)s, continuation = %(continuation)s, revision = revision + 1
WHERE name = %(name)s AND revision = %(revision)s AND NOT deleted RETURNING revision"""
_DELETE = """\
UPDATE penstock_lease SET owner = '', continuation = '', revision = revision + 1, deleted = true
WHERE name = %(name)s AND revision = %(revision)s AND NOT deleted RETURNING revision"""
_ROWS = "SELECT name, owner, continuation, revision FROM penstock_lease WHERE NOT deleted"

# IF NOT EXISTS does not hold two apart that make it in the same moment.
_MADE_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
)

# SQLSTATE classes that pass: connection, resources, operator, system, internal; and conflicts.
_PASSING = ("08", "40", "53", "55", "57", "58", "XX")
_HINT = "correct `positions`: the role needs to connect, and CREATE in the schema, or the table"


class PostgresStore:
    """A `LeaseStore` in the table `penstock_lease` of the database at `url`.

    Threads may share the object, and it pickles.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._start()

    def _start(self) -> None:
        self._lock = RLock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._owner = 0

    def __repr__(self) -> str:
        return "PostgresStore(***)"

    def __getstate__(self) -> dict[str, Any]:
        return {"_url": self._url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._url = state["_url"]
        self._start()

    def get(self, name: str) -> Lease | None:
        """The row as it is now, or None."""
        rows = self._run(f"{_ROWS} AND name = %(name)s", {"name": name})
        return _lease(rows[0]) if rows else None

    def list(self, prefix: str) -> List[Lease]:
        """All rows whose name starts with `prefix`, by name."""
        where = 'AND starts_with(name, %(prefix)s) ORDER BY name COLLATE "C"'
        return [_lease(row) for row in self._run(f"{_ROWS} {where}", {"prefix": prefix})]

    def put(self, lease: Lease) -> Lease:
        """Writes the row if it still has `lease.revision`; raises LeaseLost otherwise."""
        revision = self._swap(_UPDATE if lease.revision else _INSERT, lease)
        return Lease(
            name=lease.name, owner=lease.owner, continuation=lease.continuation, revision=revision
        )

    def delete(self, lease: Lease) -> None:
        """Removes the row if it still has `lease.revision`; raises LeaseLost otherwise."""
        if lease.revision or self.get(lease.name) is not None:
            self._swap(_DELETE, lease)

    def close(self) -> None:
        """Closes the connection; it is made again when used."""
        with self._lock:
            connection, self._connection = self._connection, None
            # A connection that came through a fork is its parent's to close.
            if connection is not None and self._owner == os.getpid():
                connection.close()

    def _swap(self, statement: str, lease: Lease) -> int:
        values = {
            "name": lease.name,
            "owner": lease.owner,
            "continuation": lease.continuation,
            "revision": lease.revision,
        }
        rows = self._run(statement, values)
        if not rows:
            raise LeaseLost(f"lease {lease.name!r} was changed by somebody else")
        return int(rows[0][0])

    def _run(self, statement: str, values: dict[str, Any]) -> List[Any]:
        with self._lock, _translated():
            try:
                return self._open().execute(statement.encode(), values).fetchall()
            except psycopg.Error:
                # Whether it was done nobody knows: the next look tells.
                self.close()
                raise

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = self._connection
        if connection is not None and self._owner == os.getpid() and not connection.closed:
            return connection
        given = {key: value for key, value in conninfo_to_dict(self._url).items() if value}
        options = f"{given.pop('options', '')} {_OPTIONS}".strip()
        made: dict[str, Any] = _PATIENCE | given
        connection = psycopg.connect(**made, options=options, autocommit=True)
        try:
            if connection.execute("SELECT to_regclass('penstock_lease')").fetchone() == (None,):
                with suppress(*_MADE_MEANWHILE):
                    connection.execute(_TABLE)
        except BaseException:
            connection.close()
            raise
        self._connection, self._owner = connection, os.getpid()
        return connection


def _lease(row: tuple[str, str, str, int]) -> Lease:
    name, owner, continuation, revision = row
    return Lease(name=name, owner=owner, continuation=continuation, revision=revision)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary or str(error).split("\n", 1)[0]
        state = error.sqlstate
        broken = isinstance(error, psycopg.OperationalError)
        passing = state.startswith(_PASSING) if state else broken
        kind = Unavailable if passing else SettingsError
        raise kind(f"positions table: {message}", hint="" if passing else _HINT) from error
