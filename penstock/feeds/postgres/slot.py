"""The replication slot: reading it, making it, and the command that follows it."""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from penstock.feeds.postgres.connect import Ordinary
from penstock.feeds.postgres.failures import translated, translating
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.model.errors import PositionLost, SettingsError, Unavailable
from penstock.wire.pgoutput.lsn import format_lsn, parse_lsn

FAILOVER_SINCE = 170_000

_PATIENCE = 60.0  # seconds for which the pipeline may take to write what there is
_RECONNECTS = 5.0  # seconds in which the slot's reader may come back
_LOOK = 0.1  # seconds

_REACHED = """
SELECT active, confirmed_flush_lsn >= %s::pg_lsn
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""

# The end of the server's WAL, as a number.
_CURRENT = """coalesce(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
    ELSE pg_current_wal_lsn() END - '0/0', 0)::bigint"""

# PostgreSQL 16 only says whether a slot conflicts with recovery; 17 and later say the reason.
_FIND = f"""
SELECT s.slot_name AS name, coalesce(s.plugin, '') AS plugin, s.slot_type AS kind,
       coalesce(s.database, '') AS database, s.active_pid,
       coalesce(s.confirmed_flush_lsn - '0/0', 0)::bigint AS confirmed,
       coalesce(s.restart_lsn - '0/0', 0)::bigint AS restart,
       coalesce(s.wal_status, '') AS wal_status,
       coalesce((to_jsonb(s) ->> 'two_phase')::bool, false) AS two_phase,
       coalesce(to_jsonb(s) ->> 'invalidation_reason',
           CASE WHEN (to_jsonb(s) ->> 'conflicting')::bool THEN 'conflict' END, '')
           AS invalidation,
       coalesce((to_jsonb(s) ->> 'failover')::bool, false) AS failover,
       current_setting('server_version_num')::int AS server_version,
       current_database() AS connected_to,
       (SELECT setting::float8 / 1000 FROM pg_catalog.pg_settings
        WHERE name = 'wal_sender_timeout') AS sender_timeout,
       {_CURRENT} AS current
FROM pg_catalog.pg_replication_slots s
WHERE s.slot_name = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot as it was when we looked. LSNs are numbers, 0 for none. `current`: the end of the
    server's WAL; `sender_timeout`: seconds, 0 for never; `connected_to`: our database."""

    name: str
    plugin: str
    kind: str
    database: str
    active_pid: int | None
    confirmed: int
    restart: int
    wal_status: str
    two_phase: bool
    invalidation: str
    failover: bool
    server_version: int
    connected_to: str
    sender_timeout: float
    current: int

    @property
    def lost(self) -> bool:
        """Whether the server gave it up: it cannot be read any more."""
        return self.wal_status == "lost" or bool(self.invalidation)

    @property
    def protocol(self) -> int:
        """The highest version of pgoutput's protocol that server and penstock know."""
        return 2 if self.server_version >= 140_000 else 1

    def status(self) -> dict[str, Any]:
        """Plain JSON for the status page, and for telling one server from another."""
        return {
            "slot": self.name,
            "server_version": self.server_version,
            "protocol": self.protocol,
            "confirmed_lsn_at_start": format_lsn(self.confirmed),
            "restart_lsn_at_start": format_lsn(self.restart),
            "wal_status": self.wal_status,
            "failover": self.failover,
        }


def log_end(connection: Ordinary) -> tuple[bool, int]:
    """Whether the server is a standby, and the end of its log: 0 when that does not know yet."""
    with translating("asking the server where its log ends"):
        row = connection.execute(f"SELECT pg_is_in_recovery(), {_CURRENT}".encode()).fetchone()
    assert row is not None
    return row


def flushed_end(connection: Ordinary) -> int:
    """The end of what is sent: all that is flushed; on a standby all that is replayed."""
    with translating("asking the server where its log ends"):
        row = connection.execute(
            "SELECT coalesce(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_flush_lsn() END - '0/0', 0)::bigint"
        ).fetchone()
    return int(row[0]) if row else 0


class System(NamedTuple):
    """Which history of which server this is: a restored or promoted one differs in one of them."""

    identifier: str
    timeline: int


def identify_system(connection: Ordinary) -> System:
    """IDENTIFY_SYSTEM, on a replication connection."""
    with translating("identifying the server"):
        row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    return System(str(row[0]), int(row[1])) if row else System("", 0)


def forks(connection: Ordinary, timeline: int) -> dict[int, int]:
    """Where the history of `timeline` left each timeline before it; on a replication connection.
    Empty for the first one, and when the server has lost the file that says it."""
    if timeline <= 1:
        return {}
    try:
        row = connection.execute(f"TIMELINE_HISTORY {timeline}".encode()).fetchone()
    except psycopg.errors.UndefinedFile:
        return {}
    except psycopg.Error as error:
        raise translated(error, "reading the timeline's history") from error
    content = row[1] if row else b""
    text = content if isinstance(content, str) else bytes(content).decode()
    # `1<tab>0/3000148<tab>no recovery target specified`
    lines = [line.split("\t") for line in text.splitlines() if line.strip()[:1].isdigit()]
    return {int(line[0]): parse_lsn(line[1].strip()) for line in lines}


def find_slot(connection: Ordinary, name: str) -> Slot | None:
    with translating("reading the replication slots"):
        return connection.cursor(row_factory=class_row(Slot)).execute(_FIND, (name,)).fetchone()


def create_slot(connection: Ordinary, name: str, *, failover: bool) -> None:
    """Makes the slot; it begins now. Waits for the transactions that run now."""
    more = ", failover => true" if failover else ""
    with translating(f"creating the slot {name}"):
        if failover:
            _refuse_failover(connection.info.server_version)
        connection.execute("SET lock_timeout = 0")
        query = f"SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput'{more})"
        connection.execute(query.encode(), (name,))


def drop_slot(connection: Ordinary, name: str) -> None:
    with translating(f"dropping the slot {name}"):
        connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (name,))


def keep_on_failover(connection: Ordinary, slot: Slot) -> None:
    """Lets standbys keep a copy of a slot that nobody reads; on a replication connection."""
    _refuse_failover(slot.server_version)
    command = sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER true)").format(sql.Identifier(slot.name))
    with translating(f"marking the slot {slot.name} for failover"):
        connection.execute(command)


def _refuse_failover(version: int) -> None:
    if version < FAILOVER_SINCE:
        raise SettingsError(
            f"failover: true needs PostgreSQL 17, and the server is {version // 10_000}",
            "postgres.failover-unsupported",
            hint="leave `failover` out; a promoted standby then has no slot, and `on_gap` decides",
        )


def refuse_foreign(slot: Slot) -> None:
    """Raises SettingsError for a slot of another kind or database."""
    drop = f"SELECT pg_drop_replication_slot('{slot.name}');"
    if slot.kind != "logical" or slot.plugin != "pgoutput":
        made = slot.plugin or slot.kind
        raise SettingsError(
            f"the slot {slot.name} is of {made}, not of pgoutput",
            "postgres.slot-plugin",
            hint=f"choose another `slot`, or drop this one: {drop}",
        )
    if slot.database != slot.connected_to:
        raise SettingsError(
            f"the slot {slot.name} belongs to the database {slot.database}",
            "postgres.slot-database",
            hint="choose another `slot`: all databases of a server share the names",
        )
    if slot.two_phase:
        raise SettingsError(
            f"the slot {slot.name} was made with two_phase, which sends unfinished transactions",
            "postgres.slot-two-phase",
            hint=f"let penstock make one: {drop}",
        )


def refuse_unusable(slot: Slot) -> None:
    """As `refuse_foreign`; and PositionLost for a slot that lost its WAL."""
    refuse_foreign(slot)
    if slot.lost:
        reason = slot.invalidation or "wal_removed"
        raise PositionLost(
            f"the slot {slot.name} is lost ({reason}): the server removed changes it had to keep",
            "postgres.slot-lost",
            hint="copy the tables anew at the consumers, and begin anew: SELECT"
            f" pg_drop_replication_slot('{slot.name}'); and raise max_slot_wal_keep_size so that it"
            " does not happen again",
        )


def replication_command(settings: PostgresSettings, slot: Slot, begin: int) -> str:
    """START_REPLICATION from `begin`, or from where the slot is if that is further on."""
    options = f"proto_version '{slot.protocol}', publication_names "
    more = ", messages 'true'" if slot.server_version >= 140_000 else ""
    if more and settings.streaming:
        more += ", streaming 'on'"
    names = sql.Literal(sql.Identifier(settings.publication).as_string(None))
    where = f"LOGICAL {begin >> 32:X}/{begin & 0xFFFFFFFF:X}"
    command = sql.SQL("START_REPLICATION SLOT {} {} ({}{}{})").format(
        sql.Identifier(slot.name), sql.SQL(where), sql.SQL(options), names, sql.SQL(more)
    )
    return command.as_string(None)


def settle(connection: Any, slot: str) -> None:
    """Waits until everything that the server has now was acknowledged; not where nothing reads the
    slot."""
    idle_at = time.monotonic() + _RECONNECTS
    deadline = time.monotonic() + _PATIENCE
    (now,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
    while True:
        row = connection.execute(_REACHED, [now, slot]).fetchone()
        if row is not None and row[0]:
            idle_at = time.monotonic() + _RECONNECTS
        if row is None or row[1] or time.monotonic() > idle_at:
            return
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the pipeline has not written what the source had {_PATIENCE:.0f} s ago",
                "cli.behind",
                hint="see /status: the pipeline may be behind; compare when it is not",
            )
        time.sleep(_LOOK)
