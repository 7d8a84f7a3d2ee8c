"""What a pipeline file may say about a PostgreSQL source. Reading it does no I/O."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from penstock.feeds.shared import BackendSettings, Names
from penstock.model.position import PartitionId
from penstock.model.settings import Duration, Secret, Settings, Size
from penstock.process.postgres_url import PostgresUrl, server_name

_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_TENANT = re.compile(r"none|database|field:.+")


def split_table(table: str) -> tuple[str, str]:
    """`public.orders` -> (`public`, `orders`); the first dot separates; raises ValueError."""
    schema, dot, name = table.partition(".")
    if not dot:
        schema, name = "public", schema
    if not schema or not name:
        raise ValueError(f"{table!r} is not a table; write schema.table, such as public.orders")
    return schema, name


def pattern_of(table: str) -> str:
    """The pattern of `schema.~PATTERN`; "" for the name of a table."""
    return table.partition(".~")[2]


class PostgresSource(Settings):
    """One of several databases with the same tables."""

    sid: str = Field(pattern=r"^[^\s:/]+$")
    """The source's name. It names the partition, and is part of event ids: do not change it
    later."""
    connection: PostgresUrl
    """The database, in the form of the backend's `connection`."""


class PostgresSettings(BackendSettings):
    """PostgreSQL databases, each followed through one logical replication slot."""

    type: Literal["postgres"] = "postgres"
    connection: PostgresUrl = Secret("")
    """`postgresql://user:password@host:port/database`, with every option of libpq as `?key=value`.
    The role needs REPLICATION, and no privilege on the tables."""
    sid: str = Field("", pattern=r"^[^\s:/]*$")
    """The source's name, if the tables of several sources go into one destination. It names the
    partition, and is part of event ids."""
    sources: tuple[PostgresSource, ...] = ()
    """Several databases with the same tables, in place of `connection`: `{sid, connection}` each.
    One query reads them. If one database is away, the others go on."""
    slot: str = ""
    """The replication slot; made if missing. It names the partition if there is no `sid`. Default:
    `penstock_BACKEND_SID`, or `penstock_BACKEND` without a `sid`."""
    publication: str = ""
    """Which tables, columns and rows the server sends. It must exist, unless `create_publication`
    is set. Without a name penstock makes a publication (named as the default of `slot`), and keeps
    it to `tables`."""
    create_publication: bool = False
    """Make the publication if missing, for `tables`, or for all tables if none are listed."""
    tables: Names = ()
    """Narrows the publication to these `schema.table`s (a bare name is in `public`);
    `schema.~PATTERN` means all tables of the schema whose whole name matches. Your own publication
    still sends the other tables: to avoid that, narrow the publication."""
    start: Literal["slot", "snapshot"] = "slot"
    """`slot`: resume at the slot's position; a new slot begins now. `snapshot`: the same, and a
    snapshot of each table's rows once."""
    failover: bool = False
    """Have standbys keep a copy of the slot (PostgreSQL 17 and later), so that a promoted standby
    has the slot."""
    on_gap: Literal["fail", "continue", "resnapshot"] = "fail"
    """When changes are lost (a slot that is gone or was made anew, another history or server),
    penstock reports the gap. `fail` then stops this backend, `continue` reads on after the gap, and
    `resnapshot` also takes a snapshot of every table."""
    tenant: str = "none"
    """The value of the column `tenant`: `none`, `database`, or `field:<column>` of the row."""
    values: Literal["typed", "bridge", "text"] = "typed"
    """How penstock writes values of columns. `typed`: each as its type. `bridge`: the same, but
    arrays as PostgreSQL's text, and null for missing columns of deleted rows. `text`: all as
    PostgreSQL's text."""
    heartbeat: Duration | None = Field(None, gt=0)
    """Seconds between two heartbeats. A heartbeat is a logical message in the WAL, so that the
    slot's `restart_lsn` moves in a database that is idle while others in the same cluster are
    not."""
    streaming: bool = True
    """Receive large transactions while they run (PostgreSQL 14 and later). They arrive sooner after
    their commit, and spill to penstock's disk instead of the server's."""
    memory: Size = Field(64 * 2**20, ge=0)
    """Bytes of memory for all in-progress transactions together; the rest goes to files in
    `spill`."""
    spill: Path | None = None
    """Folder for in-progress transactions; default: the system's folder for temporary files."""
    page_size: Size = Field(256 * 2**10, ge=1)
    """Bytes after which a page is cut: few enough to spread pages over tasks, enough that a page's
    own cost (about 30 us) does not count."""
    page_rows: int = Field(2_000, ge=1)
    """Changes after which a page is cut."""
    page_wait: Duration = Field(0.003, ge=0)
    """The least seconds between two pages. penstock cuts a page at the end of a transaction, but
    not more often than this: a trickle of single rows then makes few pages."""
    connect_timeout: Duration = Field(10.0, ge=2)
    """Seconds for making a connection (libpq's least is two)."""
    silence: Duration = Field(30.0, gt=0)
    """Seconds without a byte from the server, after which penstock connects anew. In this time
    penstock asks the server three times for an answer."""

    @property
    def partition(self) -> PartitionId:
        return PartitionId(self.sid or self.slot)

    @property
    def is_managed(self) -> bool:
        """Whether the publication is penstock's own: of the name that it gives it."""
        return self.publication == server_name(self.name, self.sid)

    @property
    def keeps_publication(self) -> bool:
        """Whether the publication is penstock's own, and altered as the tables are."""
        return self.is_managed and bool(self.tables)

    @property
    def table_names(self) -> frozenset[tuple[str, str]]:
        """(schema, table) of those that `tables` names."""
        return frozenset(split_table(each) for each in self.tables if not pattern_of(each))

    def follows(self, schema: str, table: str) -> bool:
        """Whether `tables` names the table, or a pattern of it does, or it is empty."""
        patterns = (each.partition(".~") for each in self.tables)
        return (
            not self.tables or (schema, table) in self.table_names
            or any(tilde and s == schema and re.fullmatch(p, table) for s, tilde, p in patterns)
        )  # fmt: skip

    @property
    def each(self) -> "tuple[PostgresSettings, ...]":
        return tuple(
            self.model_copy(
                update={
                    "sources": (), "sid": source.sid, "connection": source.connection,
                    "slot": (name := server_name(self.name, source.sid)),
                    "publication": self.publication or name,
                }
            )
            for source in self.sources
        ) or (self,)  # fmt: skip

    @model_validator(mode="after")
    def _has_sources(self) -> "PostgresSettings":
        if bool(self.sources) == bool(self.connection.get_secret_value()):
            raise ValueError("give connection, or sources: a list of sid and connection")
        if self.sources and (self.slot or self.sid):
            raise ValueError("slot and sid are for one connection: each of the sources has its own")
        names: dict[str, str] = {}
        for source in self.sources:
            name = server_name(self.name, source.sid)
            if name in names:
                raise ValueError(
                    f"the sources {names[name]} and {source.sid} would both have the slot {name}:"
                    " only letters, digits and underscores tell names apart there"
                )
            names[name] = source.sid
        if not self.sources:  # frozen: this is still its making
            self.__dict__["slot"] = self.slot or server_name(self.name, self.sid)
            self.__dict__["publication"] = self.publication or server_name(self.name, self.sid)
        return self

    @field_validator("slot")
    @classmethod
    def _is_a_slot(cls, value: str) -> str:
        if value and not _SLOT.fullmatch(value):
            raise ValueError("a slot's name has 1 to 63 of: lower case letters, digits, underscore")
        return value

    @field_validator("tables")
    @classmethod
    def _are_tables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in filter(None, map(pattern_of, value)):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return tuple(
            table if pattern_of(table) else ".".join(split_table(table)) for table in value
        )

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


class SpanSettings(PostgresSettings):
    """Of a reader that changes nothing at the server, and passes over nothing."""

    @classmethod
    def of(cls, settings: PostgresSettings) -> "SpanSettings":
        given = {**dict(settings), "on_gap": "fail", "heartbeat": None, "failover": False}
        return cls.model_construct(**given)

    @property
    def is_managed(self) -> bool:
        return False
