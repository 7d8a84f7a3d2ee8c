"""The replication slot: reading it, making it, and the command that follows it."""

from dataclasses import dataclass
from typing import Any

from psycopg import sql

from penstock.errors import PositionLost, SettingsError
from penstock.feeds.postgres.connect import Ordinary
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.wire.pgoutput.lsn import format_lsn, parse_lsn

__all__ = [
    "Slot",
    "System",
    "create_slot",
    "find_slot",
    "identify_system",
    "refuse_ahead",
    "refuse_unusable",
    "replication_command",
]

_FIND = """
SELECT s.plugin, s.slot_type, s.database, s.active_pid, s.confirmed_flush_lsn::text,
       s.restart_lsn::text, s.wal_status,
       coalesce((to_jsonb(s) ->> 'two_phase')::bool, false),
       coalesce(to_jsonb(s) ->> 'invalidation_reason', to_jsonb(s) ->> 'conflicting', ''),
       current_setting('server_version_num')::int,
       current_database(),
       (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
             ELSE pg_current_wal_lsn() END)::text
FROM pg_catalog.pg_replication_slots s
WHERE s.slot_name = %s
"""

# PostgreSQL 16 only says whether a slot conflicts with recovery; 17 and later say the reason.
_REASONS: dict[Any, str] = {"false": "", "true": "conflict"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot as it was when we looked. LSNs are numbers, 0 for none.

    `current` is the end of the server's WAL; `sender_timeout` its wal_sender_timeout in seconds,
    0 for never; `connected_to` the database that we are connected to.
    """

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
    server_version: int
    connected_to: str
    sender_timeout: float
    current: int

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
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Which history of which server this is: a restored or promoted one differs in one of them."""

    identifier: str
    timeline: int


def identify_system(connection: Ordinary) -> System:
    """IDENTIFY_SYSTEM, on a replication connection."""
    with translating("identifying the server"):
        row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    identifier, timeline = (str(row[0]), int(row[1])) if row else ("", 0)
    return System(identifier=identifier, timeline=timeline)


def find_slot(connection: Ordinary, name: str) -> Slot | None:
    """The slot of that name, if there is one."""
    with translating("reading the replication slots"):
        row = connection.execute(_FIND, (name,)).fetchone()
    if row is None:
        return None
    return Slot(
        name=name,
        plugin=row[0] or "",
        kind=row[1],
        database=row[2] or "",
        active_pid=row[3],
        confirmed=parse_lsn(row[4]) if row[4] else 0,
        restart=parse_lsn(row[5]) if row[5] else 0,
        wal_status=row[6] or "",
        two_phase=row[7],
        invalidation=_REASONS.get(row[8], str(row[8])),
        server_version=row[9],
        connected_to=row[10],
        sender_timeout=row[11] / 1000,
        current=parse_lsn(row[12]) if row[12] else 0,
    )


def create_slot(connection: Ordinary, name: str) -> None:
    """Makes the slot; it begins now. Waits for the transactions that run now."""
    with translating(f"creating the slot {name}"):
        connection.execute(
            "SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')", (name,)
        )


def refuse_unusable(slot: Slot) -> None:
    """Raises SettingsError for a slot of another kind, PositionLost for one that lost its WAL."""
    drop = f"SELECT pg_drop_replication_slot('{slot.name}');"
    if slot.kind != "logical" or slot.plugin != "pgoutput":
        made = slot.plugin or slot.kind
        raise SettingsError(
            f"the slot {slot.name} is of {made}, not of pgoutput",
            hint=f"choose another `slot`, or drop this one: {drop}",
        )
    if slot.database != slot.connected_to:
        raise SettingsError(
            f"the slot {slot.name} belongs to the database {slot.database}",
            hint="choose another `slot`: their names are shared by all databases of a server",
        )
    if slot.two_phase:
        raise SettingsError(
            f"the slot {slot.name} was made with two_phase, whose transactions come unfinished",
            hint=f"let penstock make one: {drop}",
        )
    if slot.wal_status == "lost" or slot.invalidation:
        reason = slot.invalidation or "wal_removed"
        raise PositionLost(
            f"the slot {slot.name} is lost ({reason}): the server removed changes it had to keep",
            hint=f"take a new snapshot and begin anew: {drop}"
            " and raise max_slot_wal_keep_size so that it does not happen again",
        )


def refuse_ahead(slot: Slot, after: int) -> None:
    """Raises PositionLost when we were further than the server is: it is an older one, and what
    it writes now would be taken for what we have."""
    if after > slot.current:
        raise PositionLost(
            f"our position {format_lsn(after)} is ahead of the server's log, which ends at"
            f" {format_lsn(slot.current)}",
            hint="the server was restored from a backup, or is another one: take a new snapshot",
        )


def replication_command(settings: PostgresSettings, slot: Slot, begin: int) -> str:
    """START_REPLICATION from `begin`, or from where the slot is if that is further on."""
    options = {
        "proto_version": str(slot.protocol),
        "publication_names": sql.Identifier(settings.publication).as_string(None),
    }
    if slot.server_version >= 140_000:
        options["messages"] = "true"
        if settings.streaming:
            options["streaming"] = "on"
    listed = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.Literal(value))
        for name, value in options.items()
    )
    command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
        sql.Identifier(slot.name), sql.SQL(f"{begin >> 32:X}/{begin & 0xFFFFFFFF:X}"), listed
    )
    return command.as_string(None)
