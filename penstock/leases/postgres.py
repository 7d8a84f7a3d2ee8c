"""Leases in a PostgreSQL table: one store for instances on several hosts.

Each statement is a transaction of its own. `synchronous_commit` is on: what `put` returned
survives a crash of the server. The table is made on demand. Not in a database whose tables are all
published: the rows would be changes themselves.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.leases.stores import RowStore, Work, statements_of
from penstock.model.errors import SettingsError, Unavailable
from penstock.process.closing import closing_on_failure

# Read committed: a swap that waited for another one finds the row changed, and fails alone.
_OPTIONS = (
    "-c synchronous_commit=on -c statement_timeout=10000 -c lock_timeout=10000"
    " -c default_transaction_isolation=read\\ committed"
)
_PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "penstock leases",
}

# IF NOT EXISTS does not hold two apart that make it in the same moment.
_MADE_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
)

# SQLSTATE classes that pass: connection, resources, operator, system, internal; and conflicts.
_PASSING = ("08", "40", "53", "55", "57", "58", "XX")
_HINT = "correct `positions`: the role needs to connect, and CREATE in the schema, or the table"


class PostgresStore(RowStore["psycopg.Connection[tuple[Any, ...]]"]):
    """A `LeaseStore` in the table `penstock_lease` of the database at `url`."""

    statements = statements_of("penstock_lease", "%({})s")

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if "://" not in url:
            hint = "write postgresql://USER:PASSWORD@HOST/DATABASE"
            raise SettingsError(
                "the positions URL names no PostgreSQL database", "leases", hint=hint
            )

    def __repr__(self) -> str:
        return "PostgresStore(***)"

    def _run(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        with self._connected() as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def _run_all(self, work: Work) -> list[list[Any]]:
        # A pipeline: one round trip for all rows.
        with self._connected() as connection, connection.transaction(), connection.pipeline():
            answers = [connection.execute(each.encode(), values) for each, values in work]
            return [answer.fetchall() for answer in answers]

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with self._lock, _translated():
            try:
                yield self._client()
            except psycopg.Error:
                # The outcome is unknown until the row is read again.
                self.close()
                raise

    def _is_usable(self, client: psycopg.Connection[tuple[Any, ...]]) -> bool:
        return not client.closed

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        given = {key: value for key, value in conninfo_to_dict(self._url).items() if value}
        options = f"{given.pop('options', '')} {_OPTIONS}".strip()
        made: dict[str, Any] = _PATIENCE | given
        connection = psycopg.connect(**made, options=options, autocommit=True)
        with closing_on_failure(connection):
            if connection.execute("SELECT to_regclass('penstock_lease')").fetchone() == (None,):
                with suppress(*_MADE_MEANWHILE):
                    connection.execute(self.statements["create"].encode())
        return connection


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
        raise kind(
            f"positions table: {message}", "leases", hint="" if passing else _HINT
        ) from error
