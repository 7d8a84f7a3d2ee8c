"""Connections: an ordinary one for the catalogue, and one that speaks replication.

libpq does names, TLS and authentication. What a URL leaves open we set: no connection waits
without limit, and values come in the one format that the decoder reads.
"""

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from penstock.feeds import SnapshotWait
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.process.closing import closing_on_failure
from penstock.wire.pgoutput.values import SESSION

Ordinary = psycopg.Connection[tuple[Any, ...]]

# Set by a statement, which counts for more than the role, the database, `connection`, and PGTZ and
# the like in the environment: libpq sends those after the options.
_PIN = sql.SQL(
    "SELECT name, pg_catalog.set_config(name, value, false) FROM (VALUES {}) AS s (name, value)"
).format(sql.SQL(", ").join(sql.SQL("({}, {})").format(*one) for one in SESSION.items()))
_NO_LIMIT = {"statement_timeout": "0"}
# A statement may lock several tables, one after the other. Where it and DDL of the application wait
# for one another, the server ends the one that has waited for its deadlock_timeout: ours must have
# given up by then.
_BRIEF = """
SELECT pg_catalog.set_config('lock_timeout', greatest(1, least(500,
    500 * extract(epoch FROM current_setting('deadlock_timeout')::interval)))::int::text, false)
"""
_STATEMENT_TIMEOUT = 30_000  # milliseconds, for the catalogue
_CANCELLING = 2.0  # seconds for a request to end a statement
_LATE = 10.0  # seconds that a server may be late with ending a statement that took too long

_CATALOGUE = "reading the catalogue"

_READING = 3600.0  # seconds until a table's next rows count as not coming
_TRANSACTION_TIMEOUT_SINCE = 170_000

Result = TypeVar("Result")


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements end, also early once `is_stopped`, though the server hang."""

    patience = 0.0  # seconds
    is_stopped: Callable[[], bool] = staticmethod(lambda: False)

    def wait(self, gen: Generator[Any, Any, Result], *args: Any, **more: Any) -> Result:
        """Waits as psycopg does, which resumes the generator ten times a second. What gave no
        answer is closed: the answer to an old question must not be taken for one to a new one."""
        try:
            return super().wait(self._bounded(gen), *args, **more)
        except Ended:
            self.give_up()
            raise

    def _bounded(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        deadline = time.monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                self.check(deadline)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result

    def check(self, deadline: float) -> None:
        """Raises Ended once it is stopped, and after the deadline (monotonic seconds)."""
        if self.is_stopped():
            raise Ended("it was cancelled")
        if time.monotonic() > deadline:
            raise Ended(f"no answer for {self.patience:.0f} s")

    def give_up(self) -> None:
        """Closes it, and has the server end the statement, which would go on and hold its locks."""
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=_CANCELLING)
        self.close()


class Ended(psycopg.OperationalError):
    """The answer is not wanted any more, or did not come in time."""


def connect_ordinary(settings: PostgresSettings) -> Ordinary:
    """An autocommit connection whose statements end within 30 s, and do not wait for locks."""
    session = {"statement_timeout": str(_STATEMENT_TIMEOUT)}
    return _brief(_connected(settings, session, _STATEMENT_TIMEOUT / 1000 + _LATE))


def connect_replication(settings: PostgresSettings) -> Ordinary:
    """A connection of a wal sender, whose commands take no longer than `connect_timeout`."""
    return _connected(settings, _NO_LIMIT, settings.connect_timeout, replicates=True)


def connect_exporting(
    settings: PostgresSettings, patience: float, is_stopped: Callable[[], bool]
) -> Ordinary:
    """As `connect_replication`, to make a slot: that waits for older transactions, for at most
    `patience` seconds, and until it `is_stopped`."""
    session = _NO_LIMIT | {"lock_timeout": str(round(patience * 1000))}
    return _connected(settings, session, patience + _LATE, is_stopped, replicates=True)


def connect_reading(
    settings: PostgresSettings, is_stopped: Callable[[], bool]
) -> PatientConnection:
    """An autocommit connection for reading tables: values are text as in the log, statements may
    take long, until it `is_stopped`, but do not wait for locks, and row security is an error
    instead of a filter."""
    session = {"idle_in_transaction_session_timeout": "0", "row_security": "off"}
    connection = _brief(_connected(settings, _NO_LIMIT | session, _READING, is_stopped))
    if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
        with translating(f"connecting to {address(settings)}"):
            connection.execute("SET transaction_timeout = 0")
    return connection


def _brief(connection: PatientConnection) -> PatientConnection:
    with closing_on_failure(connection), translating("limiting waits for locks"):
        connection.execute(_BRIEF)
    return connection


def _connected(
    settings: PostgresSettings,
    session: dict[str, str],
    patience: float,
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    replicates: bool = False,
) -> PatientConnection:
    more = {"replication": "database"} if replicates else {}
    parameters = _parameters(settings, session) | more
    purpose = " for replication" if replicates else ""
    with translating(f"connecting to {address(settings)}{purpose}"):
        connection = PatientConnection.connect(**parameters, autocommit=True)
        connection.patience, connection.is_stopped = patience, is_stopped
        with closing_on_failure(connection):
            _pin(connection)
        return connection


def _pin(connection: Ordinary) -> None:
    """Makes values the text that the decoder reads. Raises SettingsError, SET's own errors."""
    found: dict[str, str] = dict(connection.execute(_PIN).fetchall())
    for name, value in SESSION.items():
        # A pooler may answer here what it does not do in the session of the next statement.
        told = connection.info.parameter_status(name) or found.get(name)
        if told != value:
            raise SettingsError(
                f"the session has {name} = {told}, and must have {value}",
                "postgres.session-setting",
                hint=f"connect to the server itself, or find what sets {name}",
            )


def take_any_bytes(connection: Ordinary) -> None:
    """Has values of a database in SQL_ASCII, which accepts any bytes, come as they are: asked for
    UTF-8 the server would end at the first that is none, and the decoder sets one value aside."""
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.pgconn.exec_(b"SET client_encoding TO 'SQL_ASCII'")


def _parameters(settings: PostgresSettings, session: dict[str, str]) -> dict[str, Any]:
    given = conninfo_to_dict(settings.connection.get_secret_value())
    options = " ".join(f"-c {name}={value}" for name, value in session.items())
    defaults: dict[str, Any] = {
        "application_name": "penstock",
        "connect_timeout": max(2, round(settings.connect_timeout)),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round(settings.silence * 1000),
        # An encrypted stream can only be read through libpq: TLS if it must be, GSS on request.
        "gssencmode": "disable",
    }
    fixed = {
        "client_encoding": "UTF8",
        "options": f"{given.get('options') or ''} {options}".strip(),
    }
    return defaults | {k: v for k, v in given.items() if v is not None} | fixed


def rows_of(connection: Ordinary, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of one statement, if it has any. Raises psycopg's errors."""
    found = connection.execute(query.encode(), parameters or None)
    return found.fetchall() if found.description else []


def address(settings: PostgresSettings) -> str:
    """`host:port/database`, for messages: nothing secret."""
    given = conninfo_to_dict(settings.connection.get_secret_value())
    host, port = given.get("host") or "localhost", given.get("port") or 5432
    return f"{host}:{port}/{database_name(settings)}"


def database_name(settings: PostgresSettings) -> str:
    """The database that `connection` names (libpq's default is the user's name)."""
    given = conninfo_to_dict(settings.connection.get_secret_value())
    return str(given.get("dbname") or given.get("user") or "postgres")


class SideConnection:
    """An ordinary connection for small questions beside the stream: made when first needed, and
    made anew, once, when it was closed meanwhile (by an idle_session_timeout, or a proxy)."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._connection: Ordinary | None = None

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of one statement. Raises Unavailable or SettingsError."""
        is_new = self._connection is None
        connection = self._connection = self._connection or connect_ordinary(self._settings)
        try:
            with translating(_CATALOGUE):
                return rows_of(connection, query, *parameters)
        except Unavailable:
            if is_new or not connection.closed:
                raise
            self.close()
        return self.rows(query, *parameters)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_EVERY = 2.0  # seconds

# A prepared transaction has no process: the lock of its own id leads from other locks to its name.
_BLOCKERS = """
WITH ours AS (SELECT unnest(%s::int[]) AS pid)
SELECT DISTINCT blocker, to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
FROM (
    SELECT format('process %%s (%%s)', b.pid, coalesce(b.state, b.backend_type)), b.xact_start
    FROM ours, unnest(pg_catalog.pg_blocking_pids(ours.pid)) AS p (pid)
    JOIN pg_catalog.pg_stat_activity b ON b.pid = p.pid
    UNION ALL
    SELECT format('the prepared transaction %%L', x.gid), x.prepared
    FROM ours
    JOIN pg_catalog.pg_locks w ON w.pid = ours.pid AND NOT w.granted
    JOIN pg_catalog.pg_locks h ON h.granted AND h.pid IS NULL AND h.locktype = w.locktype
        AND (h.transactionid = w.transactionid
             OR (h.database, h.relation) = (w.database, w.relation))
    JOIN pg_catalog.pg_locks own ON own.pid IS NULL AND own.locktype = 'transactionid'
        AND own.virtualtransaction = h.virtualtransaction
    JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = own.transactionid
) AS found (blocker, since)
ORDER BY blocker
"""
_CIRCLE = """
WITH RECURSIVE before (pid) AS (
    SELECT unnest(pg_catalog.pg_blocking_pids(ours.pid)) FROM unnest(%s::int[]) AS ours (pid)
    UNION
    SELECT unnest(pg_catalog.pg_blocking_pids(before.pid)) FROM before
)
SELECT true FROM before WHERE pid = ANY (%s::int[]) LIMIT 1
"""


class LockWait:
    """What connections of ours wait for: locks and new slots wait for older transactions. Used as
    the `is_stopped` of connections with these `pids`: it looks every few seconds, and reports in
    words to `on_wait`, "" at the end. `seen` is what it found last. `is_circle`: one of them waits
    for a transaction that waits, itself or behind others, for another of them. It stops them then:
    the server sees no deadlock between several connections."""

    def __init__(self, settings: PostgresSettings, wait: SnapshotWait) -> None:
        self.pids: list[int] = []
        self.seen = ""
        self.is_circle = False
        self._side = SideConnection(settings)
        self._wait = wait
        self._look_at: float | None = time.monotonic() + _EVERY  # None: it is over

    def __call__(self) -> bool:
        if self._wait.is_stopped():
            return True
        if self._look_at is not None and self.pids and time.monotonic() >= self._look_at:
            with suppress(PenstockError):
                found = self._side.rows(_BLOCKERS, self.pids)
                text = ", ".join(f"{blocker} since {since}" for blocker, since in found)
                self.seen = text or self.seen  # nothing, where the wait has just timed out
                self._wait.on_wait(text)
                self.is_circle = bool(text and self._side.rows(_CIRCLE, self.pids, self.pids))
            self._look_at = time.monotonic() + _EVERY
        return self.is_circle

    def begin_again(self) -> None:
        """For the next try, with other connections."""
        self.pids.clear()
        self.is_circle = False

    def close(self) -> None:
        self._look_at = None
        self._side.close()
        self._wait.on_wait("")
