"""Connections to the destination, and what its errors mean."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from penstock.model.errors import PenstockError, Rejected, SettingsError, Unavailable
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.tables.staging import SESSION

_PATIENCE = 10  # seconds to connect
# How lines are read, whatever the database, the role or the environment prefer.
READS = {
    "client_encoding": "UTF8", "DateStyle": "ISO, YMD", "IntervalStyle": "postgres",
    "TimeZone": "UTC", "bytea_output": "hex", "extra_float_digits": "3", "array_nulls": "on",
    "xmloption": "content", "standard_conforming_strings": "on", "lc_monetary": "C",
    "check_function_bodies": "off",
}  # fmt: skip
# Of one row: it breaks a constraint, does not fit its type, or is too large.
_OF_ROWS = re.compile("22...|23...|54000|54001|P0001")
_OF_SETUP = re.compile("28...|3D...|3F...|42...|0A...|2B...|55000")


def connect(settings: PostgresSinkSettings) -> Any:
    """A connection in autocommit mode. Raises Unavailable, SettingsError."""
    session = {**READS, **SESSION}
    if settings.replica_role:
        session["session_replication_role"] = "replica"
    with translated("connecting"):
        connection = psycopg.connect(
            settings.connection.get_secret_value(), autocommit=True, connect_timeout=_PATIENCE,
            application_name="penstock sink", keepalives_idle=10, keepalives_interval=5,
            keepalives_count=3, tcp_user_timeout=30_000,
        )  # fmt: skip
        try:
            set_session(connection, session)
        except psycopg.errors.InsufficientPrivilege as error:
            connection.close()
            raise SettingsError(
                "the role may not set session_replication_role at the destination",
                hint="GRANT SET ON PARAMETER session_replication_role TO <role>; (PostgreSQL 15 and"
                " later), or leave sink.replica_role out",
            ) from error
    return connection


def set_session(connection: Any, session: Mapping[str, str] = READS) -> None:
    """Gives a connection these settings; by default those by which texts of values are alike.
    Raises psycopg's errors."""
    marks = ", ".join(["pg_catalog.set_config(%s, %s, false)"] * len(session))
    connection.execute(
        f"SELECT {marks}".encode(), [text for pair in session.items() for text in pair]
    )


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """psycopg's errors as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translation(error, doing) from error


def translation(error: psycopg.Error, doing: str) -> PenstockError:
    """What an error of the destination means; without values, as logs carry no row data."""
    state, diagnosis = error.sqlstate or "", error.diag
    if _OF_ROWS.fullmatch(state):
        said = " ".join(re.findall("[A-Z][a-z]*", type(error).__name__)).lower()
        about = [
            f"{kind} {name}" for kind, name in (
                ("constraint", diagnosis.constraint_name), ("column", diagnosis.column_name),
                ("table", diagnosis.table_name),
            ) if name
        ]  # fmt: skip
        return Rejected(f"the destination refuses a row: {', '.join([said, *about])} ({state})")
    message = f"{doing} at the destination: {_first_line(error)} ({state or 'no connection'})"
    if _OF_SETUP.fullmatch(state):
        return SettingsError(message, hint="look at the target, its columns and the role's rights")
    return Unavailable(message)


def _first_line(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).strip().partition("\n")[0][:300]
