"""What a pipeline file may say about a PostgreSQL source. Reading it does no I/O."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict
from pydantic import BeforeValidator, Field, field_validator

from penstock.model.settings import Duration, Secret, Settings, Size

_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_TENANT = re.compile(r"none|database|field:.+")
_SCHEMES = ("postgresql://", "postgres://")


def _split(value: Any) -> Any:
    """Options of a Spark reader are text: `public.a, public.b` is a list of two."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def split_table(table: str) -> tuple[str, str]:
    """`public.orders` -> (`public`, `orders`); the first dot separates; raises ValueError."""
    schema, dot, name = table.partition(".")
    if not dot:
        schema, name = "public", schema
    if not schema or not name:
        raise ValueError(f"{table!r} is not a table; write schema.table, such as public.orders")
    return schema, name


class PostgresSettings(Settings):
    """One PostgreSQL database, followed through one logical replication slot."""

    name: str = Field("default", pattern=r"^[^\s:]+$")
    """The backend: part of every event id and of subjects, so it must not change later."""
    type: Literal["postgres"] = "postgres"
    connection: Secret
    """`postgresql://user:password@host:port/database`; everything that libpq knows may follow as
    `?key=value`. The role needs REPLICATION, and no privilege on the tables."""
    slot: str
    """The replication slot, and the name of our partition. Created if missing."""
    publication: str = Field(min_length=1)
    """Which tables, columns and rows the server sends. Must exist, unless `create_publication`."""
    create_publication: bool = False
    """Create the publication if missing, for `tables`, or for all tables if there are none."""
    tables: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Narrows the publication to these `schema.table`s (a bare name is in `public`). The server
    still sends the others: to save that, narrow the publication itself."""
    start: Literal["slot", "snapshot"] = "slot"
    """`slot`: resume where the slot is; a slot that is new begins now. `snapshot`: the same, and
    once for each table a snapshot of its rows."""
    failover: bool = False
    """Have standbys keep a copy of the slot (PostgreSQL 17 and later), so that it is there when
    one of them is promoted."""
    on_gap: Literal["fail", "continue", "resnapshot"] = "fail"
    """When changes are lost (the slot is gone or was made anew, another history or server): stop
    this backend and say so, or go on after the hole and say so; `resnapshot` then takes a snapshot
    of every table."""
    tenant: str = "none"
    """What fills the column `tenant`: `none`, `database`, or `field:<column>` of the row."""
    heartbeat: Duration | None = Field(None, gt=0)
    """Seconds between heartbeats: a logical message, written into the WAL of a database that is
    idle while others in the same cluster are not, so that the slot's `restart_lsn` moves too."""
    streaming: bool = True
    """Take large transactions while they run (PostgreSQL 14 and later): they are then spilled
    here and not at the server, and arrive sooner after their commit."""
    memory: Size = Field(64 * 2**20, ge=0)
    """Bytes of in-progress transactions that are held in memory, over all of them; what is more
    goes to files in `spill`."""
    spill: Path | None = None
    """Folder for in-progress transactions; default: the system's folder for temporary files."""
    page_size: Size = Field(256 * 2**10, ge=1)
    """Bytes after which a page is cut: small enough to spread over tasks, large enough that a
    page's own cost (about 30 us) does not count."""
    page_rows: int = Field(2_000, ge=1)
    """Changes after which a page is cut."""
    page_wait: Duration = Field(0.002, ge=0)
    """Seconds: when a transaction is over, a page is cut at once, but not more often than this, so
    that a trickle of single rows does not make a page of each."""
    connect_timeout: Duration = Field(10.0, ge=2)
    """Seconds for making a connection (libpq's least is two)."""
    silence: Duration = Field(30.0, gt=0)
    """Seconds without one byte from the server, which is asked for a sign of life three times in
    them, after which it counts as hung and the connection is made anew."""

    @field_validator("connection")
    @classmethod
    def _is_a_url(cls, value: Secret) -> Secret:
        text = value.get_secret_value()
        try:
            fine = text.startswith(_SCHEMES) and bool(conninfo_to_dict(text))
        except Error:
            fine = False  # libpq's message repeats parts of the URL, perhaps the password
        if not fine:
            raise ValueError("not a URL of the form postgresql://user:password@host:port/database")
        return value

    @field_validator("slot")
    @classmethod
    def _is_a_slot(cls, value: str) -> str:
        if not _SLOT.fullmatch(value):
            raise ValueError("a slot's name has 1 to 63 of: lower case letters, digits, underscore")
        return value

    @field_validator("tables")
    @classmethod
    def _are_tables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(".".join(split_table(table)) for table in value)

    @field_validator("tenant")
    @classmethod
    def _is_a_rule(cls, value: str) -> str:
        if not _TENANT.fullmatch(value):
            raise ValueError("write none, database or field:<column>")
        return value

    @field_validator("start", mode="before")
    @classmethod
    def _is_possible(cls, value: Any) -> Any:
        if value == "beginning":
            raise ValueError(
                "a slot has no changes from before it was made; write `snapshot`: the rows that"
                " are there, then the changes; or `slot`: resume, or from now at the first start"
            )
        return value
