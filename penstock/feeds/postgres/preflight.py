"""Preflight of a PostgreSQL source: what would keep it from running, or make it lose data.

Looks and changes nothing. Each finding says how to mend it, with SQL that can be pasted.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from penstock.feeds.postgres.connect import Ordinary, address, connect_ordinary, connect_replication
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.publication import check_tables
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.slot import find_slot, identify_system, refuse_unusable
from penstock.model.errors import PenstockError
from penstock.model.finding import Finding, failed, finding

_OLDEST, _NEWEST = 13, 18
_STANDBY_SINCE = 16  # logical decoding on a standby

# Setting, its value for never, those that an outage of hours may exceed, which slots the server
# gives up, and what to do.
_GIVES_UP = (
    (
        "max_slot_wal_keep_size", "-1", r"\d+[kM]B|\dGB|0", "is more than {} of WAL behind",
        "make it larger than the WAL of the longest outage you expect",
    ),
    (
        "idle_replication_slot_timeout", "0", r"\d+(s|min|h)|1d", "nobody reads for {}",
        "make it longer than the longest outage you expect",
    ),
)  # fmt: skip


def findings(settings: PostgresSettings) -> Iterator[Finding]:
    """Raises Unavailable, SettingsError where the server can't be asked."""
    with connect_ordinary(settings) as connection, translating("preflight"):
        yield from _server(connection, settings)
        yield from _role(connection)
        yield from _slot(connection, settings)
        yield from check_tables(connection, settings)
    subject = "replication connection"
    try:
        with connect_replication(settings) as connection:
            identify_system(connection)
    except PenstockError as error:
        yield failed(subject, error)
    else:
        yield finding("ok", subject, "it is allowed")


def free_slots(settings: PostgresSettings, names: Collection[str]) -> Sequence[str]:
    """Those of these logical slots that the server has and nobody reads."""
    with connect_ordinary(settings) as connection, translating("preflight"):
        rows = connection.execute(
            "SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE NOT active"
            " AND plugin = 'pgoutput' AND slot_name = ANY (%s)", [list(names)],
        )  # fmt: skip
        return [str(name) for (name,) in rows]


def _setting(connection: Ordinary, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s, true)", (name,)).fetchone()
    return str(row[0]) if row and row[0] is not None else ""


def _number(connection: Ordinary, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0


def _server(connection: Ordinary, settings: PostgresSettings) -> Iterator[Finding]:
    version = connection.info.server_version // 10_000
    what = f"{address(settings)} is PostgreSQL {version}"
    if version < _OLDEST:
        yield finding(
            "error", "server", what, f"upgrade it to {_OLDEST} or later", code="postgres.server-old"
        )
    elif version > _NEWEST:
        yield finding(
            "warning", "server", f"{what}, newer than what penstock was tested with",
            code="postgres.server-new",
        )  # fmt: skip
    else:
        yield finding("ok", "server", what)
    is_standby = bool(_number(connection, "SELECT pg_is_in_recovery()::int"))
    if is_standby and version < _STANDBY_SINCE:
        message = "it is a standby, which decodes nothing before PostgreSQL 16"
        yield finding("error", "server", message, "connect to the primary", code="postgres.standby")
    if is_standby and settings.heartbeat is not None:
        yield finding(
            "error", "heartbeat", "it is a standby, and a heartbeat writes to the log",
            "leave `heartbeat` out", code="postgres.standby-heartbeat",
        )  # fmt: skip
    level = _setting(connection, "wal_level")
    if level == "logical":
        yield finding("ok", "wal_level", "wal_level is logical")
    else:
        remedy = "ALTER SYSTEM SET wal_level = logical; and restart the server"
        yield finding(
            "error", "wal_level", f"wal_level is {level}", remedy, code="postgres.wal-level"
        )
    if _setting(connection, "server_encoding") == "SQL_ASCII":
        yield finding(
            "warning", "server_encoding",
            "it is SQL_ASCII: a row that is not UTF-8 becomes a dead letter",
            "load a dump into a database with encoding UTF8", code="postgres.server-encoding",
        )  # fmt: skip
    for name, never, little, which, remedy in _GIVES_UP:
        value = _setting(connection, name)
        if value not in ("", never):
            yield finding(
                "warning" if re.fullmatch(little, value) else "ok", name,
                f"the server gives up a slot that {which.format(value)}", remedy,
                code="postgres.slot-given-up",
            )  # fmt: skip


def _role(connection: Ordinary) -> Iterator[Finding]:
    row = connection.execute(
        "SELECT rolname, rolreplication OR rolsuper OR EXISTS ("
        " SELECT FROM pg_catalog.pg_roles r WHERE r.rolname IN ('rds_replication')"
        " AND pg_has_role(current_user, r.oid, 'member')"
        ") FROM pg_catalog.pg_roles WHERE rolname = current_user"
    ).fetchone()
    name, may = row or ("?", False)
    if may:
        yield finding("ok", "role", f"the role {name} has REPLICATION")
    else:
        remedy = f'as a superuser: ALTER ROLE "{name}" REPLICATION;'
        yield finding(
            "error", "role", f"the role {name} lacks REPLICATION", remedy, code="postgres.role"
        )


def _slot(connection: Ordinary, settings: PostgresSettings) -> Iterator[Finding]:
    subject = f"slot {settings.slot}"
    used = _number(connection, "SELECT count(*) FROM pg_catalog.pg_replication_slots")
    slot = find_slot(connection, settings.slot)
    if slot is None:
        fine = f"{subject} does not exist yet, and will be made"
        yield _room(connection, "max_replication_slots", used, fine)
    else:
        try:
            refuse_unusable(slot)
        except PenstockError as error:
            yield failed(subject, error)
            return
        if slot.active_pid is not None:
            yield finding(
                "warning", subject, f"it is in use by the process {slot.active_pid} of the server",
                "a pipeline that is started now waits until that reader is gone",
                code="postgres.slot-in-use",
            )  # fmt: skip
        elif slot.wal_status in ("extended", "unreserved"):
            yield finding(
                "warning", subject, f"it is far behind: its wal_status is {slot.wal_status}",
                "run the pipeline soon, or the server may invalidate the slot",
                code="postgres.slot-behind",
            )  # fmt: skip
        else:
            kept = max(0, slot.current - slot.restart) / 2**20
            text = (
                f"it exists and is free; until it is read, {kept:,.0f} MiB of WAL are kept for it"
            )
            yield finding("ok", subject, text)
        # A snapshot makes a temporary slot beside ours.
        limit = int(_setting(connection, "max_replication_slots") or 0)
        if used >= limit:
            message = f"all {limit} are in use: snapshots need one more"
            yield finding(
                "warning", *_more("max_replication_slots", message, limit), code="postgres.no-room"
            )
    senders = _number(connection, "SELECT count(*) FROM pg_catalog.pg_stat_replication")
    yield _room(connection, "max_wal_senders", senders, "there is a free wal sender")


def _room(connection: Ordinary, setting: str, used: int, fine: str) -> Finding:
    limit = int(_setting(connection, setting) or 0)
    if used < limit:
        return finding("ok", setting, f"{fine} ({used} of {limit} in use)")
    return finding(
        "error", *_more(setting, f"all {limit} are in use", limit), code="postgres.no-room"
    )


def _more(setting: str, message: str, limit: int) -> tuple[str, str, str]:
    remedy = f"ALTER SYSTEM SET {setting} = {limit + 5}; and restart the server"
    return setting, message, remedy
