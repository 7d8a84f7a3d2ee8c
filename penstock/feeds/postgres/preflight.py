"""Preflight of a PostgreSQL source: what would keep it from running, or make it lose data.

Looks and changes nothing. Each finding says how to mend it, with SQL that can be pasted.
"""

from collections.abc import Iterator

from penstock.feeds.postgres.connect import (
    Ordinary,
    address,
    connect_ordinary,
    connect_replication,
)
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.slot import find_slot, identify_system, refuse_unusable
from penstock.feeds.postgres.tables import check_tables
from penstock.model.errors import PenstockError
from penstock.model.finding import Finding

_OLDEST, _NEWEST = 13, 18
_STANDBY_SINCE = 16  # logical decoding on a standby


def check(settings: PostgresSettings) -> list[Finding]:
    """Every finding; only the first if the server can't be asked."""
    try:
        with connect_ordinary(settings) as connection, translating("preflight"):
            findings = [
                *_server(connection, settings),
                *_role(connection, settings),
                *_slot(connection, settings),
                *check_tables(connection, settings),
            ]
        return [*findings, *_replication(settings)]
    except PenstockError as error:
        return [_failed("server", error)]


def _failed(subject: str, error: PenstockError) -> Finding:
    return Finding(level="error", subject=subject, message=error.message, remedy=error.hint)


def _setting(connection: Ordinary, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s, true)", (name,)).fetchone()
    return str(row[0]) if row and row[0] is not None else ""


def _number(connection: Ordinary, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0


def _server(connection: Ordinary, settings: PostgresSettings) -> Iterator[Finding]:
    version = connection.info.server_version // 10_000
    where = address(settings)
    if version < _OLDEST:
        yield Finding(
            level="error",
            subject="server",
            message=f"{where} is PostgreSQL {version}",
            remedy=f"upgrade it to {_OLDEST} or later",
        )
    elif version > _NEWEST:
        yield Finding(
            level="warning",
            subject="server",
            message=f"{where} is PostgreSQL {version}, newer than what penstock was tested with",
        )
    else:
        yield Finding(level="ok", subject="server", message=f"{where} is PostgreSQL {version}")
    if _number(connection, "SELECT pg_is_in_recovery()::int") and version < _STANDBY_SINCE:
        yield Finding(
            level="error",
            subject="server",
            message="it is a standby, which decodes nothing before PostgreSQL 16",
            remedy="connect to the primary",
        )
    level = _setting(connection, "wal_level")
    yield Finding(
        level="ok" if level == "logical" else "error",
        subject="wal_level",
        message=f"wal_level is {level}",
        remedy=""
        if level == "logical"
        else "ALTER SYSTEM SET wal_level = logical; and restart the server",
    )
    if _setting(connection, "server_encoding") == "SQL_ASCII":
        yield Finding(
            level="warning",
            subject="server_encoding",
            message="it is SQL_ASCII: a row that is not UTF-8 becomes a dead letter",
            remedy="load a dump into a database with encoding UTF8",
        )
    yield from _retention(connection)


def _retention(connection: Ordinary) -> Iterator[Finding]:
    keep = _setting(connection, "max_slot_wal_keep_size")
    if keep not in ("", "-1"):
        yield Finding(
            level="warning",
            subject="max_slot_wal_keep_size",
            message=f"the server gives up a slot that is more than {keep} of WAL behind",
            remedy="make it larger than the WAL of the longest outage you expect",
        )
    idle = _setting(connection, "idle_replication_slot_timeout")
    if idle not in ("", "0"):
        yield Finding(
            level="warning",
            subject="idle_replication_slot_timeout",
            message=f"the server gives up a slot that nobody reads for {idle}",
            remedy="make it longer than the longest outage you expect",
        )


def _role(connection: Ordinary, settings: PostgresSettings) -> Iterator[Finding]:
    row = connection.execute(
        "SELECT rolname, rolreplication OR rolsuper OR EXISTS ("
        " SELECT FROM pg_catalog.pg_roles r WHERE r.rolname IN ('rds_replication')"
        " AND pg_has_role(current_user, r.oid, 'member')"
        ") FROM pg_catalog.pg_roles WHERE rolname = current_user"
    ).fetchone()
    name, may = row or ("?", False)
    yield Finding(
        level="ok" if may else "error",
        subject="role",
        message=f"the role {name} {'has' if may else 'lacks'} REPLICATION",
        remedy="" if may else f'as a superuser: ALTER ROLE "{name}" REPLICATION;',
    )


def _slot(connection: Ordinary, settings: PostgresSettings) -> Iterator[Finding]:
    subject = f"slot {settings.slot}"
    slot = find_slot(connection, settings.slot)
    if slot is None:
        yield _room(
            "max_replication_slots",
            _number(connection, "SELECT count(*) FROM pg_catalog.pg_replication_slots"),
            int(_setting(connection, "max_replication_slots") or 0),
            f"{subject} does not exist yet, and will be made",
        )
    else:
        try:
            refuse_unusable(slot)
        except PenstockError as error:
            yield _failed(subject, error)
            return
        if slot.active_pid is not None:
            yield Finding(
                level="warning",
                subject=subject,
                message=f"it is in use by the process {slot.active_pid} of the server",
                remedy="a pipeline that is started now waits until that reader is gone",
            )
        elif slot.wal_status in ("extended", "unreserved"):
            yield Finding(
                level="warning",
                subject=subject,
                message=f"it is far behind: its wal_status is {slot.wal_status}",
                remedy="run the pipeline soon, or the server may give the slot up",
            )
        else:
            yield Finding(level="ok", subject=subject, message="it exists and is free")
        yield from _spare(connection)
    yield _room(
        "max_wal_senders",
        _number(connection, "SELECT count(*) FROM pg_catalog.pg_stat_replication"),
        int(_setting(connection, "max_wal_senders") or 0),
        "there is a free wal sender",
    )


def _spare(connection: Ordinary) -> Iterator[Finding]:
    """A snapshot makes a temporary slot beside ours."""
    used = _number(connection, "SELECT count(*) FROM pg_catalog.pg_replication_slots")
    limit = int(_setting(connection, "max_replication_slots") or 0)
    if used >= limit:
        yield Finding(
            level="warning",
            subject="max_replication_slots",
            message=f"all {limit} are in use: snapshots need one more",
            remedy=f"ALTER SYSTEM SET max_replication_slots = {limit + 5}; and restart the server",
        )


def _room(setting: str, used: int, limit: int, fine: str) -> Finding:
    if used < limit:
        return Finding(level="ok", subject=setting, message=f"{fine} ({used} of {limit} in use)")
    return Finding(
        level="error",
        subject=setting,
        message=f"all {limit} are in use",
        remedy=f"ALTER SYSTEM SET {setting} = {limit + 5}; and restart the server",
    )


def _replication(settings: PostgresSettings) -> Iterator[Finding]:
    try:
        with connect_replication(settings) as connection:
            identify_system(connection)
    except PenstockError as error:
        yield _failed("replication connection", error)
    else:
        yield Finding(level="ok", subject="replication connection", message="it is allowed")
