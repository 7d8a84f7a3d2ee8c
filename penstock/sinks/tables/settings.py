"""What a pipeline file may say about any sink of tables: its map."""

import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from penstock.model.change import Images, OnError
from penstock.model.settings import Duration, Secret, Settings
from penstock.process.plugins import plugin
from penstock.process.sqlite_file import path_of
from penstock.tables.database import TableDatabase
from penstock.tables.drift import SchemaChanges
from penstock.tables.history import HistoryColumns
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_rows import LedgerRow
from penstock.tables.ledger_tables import NAMES
from penstock.tables.staged import OWN_SID, SID, Destination, RowMapping
from penstock.tables.states import TableEvent

# How a table is kept: as it is at the source, without deletes, every version of its rows, or every
# change as a row.
Kind = Literal["clone", "append", "history", "log"]


class TableOptions(Settings):
    """How one table of the map is written; each option has a default."""

    type: Kind = "clone"
    target: str = ""
    """`schema.table` or `table`; default: the source's name, in the sink's `schema`."""
    columns: tuple[str, ...] | None = None
    """The columns that penstock writes; default: all that both the source and the target have."""
    filter: str = ""
    """SQL over the source's columns: the target has only rows for which it is true."""
    set: dict[str, str] = Field(default_factory=dict)
    """Column of the target -> SQL over the source's columns; penstock then writes only these."""
    partitions: str = ""
    """A regular expression: all tables of the schema whose whole name matches go into one
    target."""
    existing: Literal["refuse", "keep", "replace"] = "refuse"
    """Rows of the source that the target has before the first load. `refuse`: the table waits;
    `keep`: the load adds to them (by key); `replace`: the load replaces them."""
    create: bool = False
    """Make a missing target, with the source's columns and key."""
    schema_changes: SchemaChanges | None = None
    """When the source's columns change: the target follows (`add`), stays as it is (`ignore`), or
    the table waits for an operator (`ask`). Default: `add` for a target that penstock made, else
    `ignore`."""

    @field_validator("partitions")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        return value


class MapEntry(Settings):
    """The tables of one backend: `table` or `schema.table` -> options."""

    backend: str
    """The backend's name."""
    tables: dict[str, TableOptions] = Field(default_factory=dict)
    """The backend's tables, and how each is written."""

    @field_validator("tables", mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: {} if options is None else options for name, options in value.items()}
        return value


class CommitSettings(Settings):
    """When a worker commits: whichever is reached first."""

    rows: int = Field(default=20_000, ge=1)
    """Changes after which a worker commits."""
    wait: Duration = Field(default=0.2, ge=0)
    """Seconds that a change may wait for more changes."""


class MappedTable(Settings):
    """A table of the map, with its names in full."""

    backend: str
    schema_name: str
    table: str
    target_schema: str
    target: str
    options: TableOptions
    periods: HistoryColumns | None = None
    """The columns of a `history`; None for other types."""
    sid_column: str = SID
    """What the target's column for the source's name is called."""
    has_sid: bool = False
    """Whether a target that penstock makes has that column."""

    @property
    def made_sid(self) -> str:
        """The column for the source's name that `create` makes; "" for none."""
        return self.sid_column if self.has_sid or self.periods is not None else ""

    @property
    def source(self) -> str:
        """`schema.table` at the source."""
        return f"{self.schema_name}.{self.table}"

    @property
    def full_target(self) -> str:
        """`schema.table` at the destination."""
        return f"{self.target_schema}.{self.target}"

    def follows_columns(self, *, is_made: bool) -> bool:
        """Whether the target gets the source's new columns; `is_made`: penstock made it."""
        return (self.options.schema_changes or ("add" if is_made else "")) == "add"

    def mapping(
        self, sid: str, found: Destination, columns: Sequence[str] | None = None
    ) -> RowMapping:
        """How rows of a source become those of its target; only these columns of it, if not those
        of the map."""
        options, name = self.options, self.sid_column
        # One that `set` gives another value is the user's.
        is_ours = name in found.columns and options.set.get(name, OWN_SID.name) == OWN_SID.name
        return RowMapping(
            sid=sid if is_ours else None, sid_column=name, source=sid, backend=self.backend,
            columns=options.columns if columns is None else columns, filter=options.filter,
            computed={key: text for key, text in options.set.items() if not is_ours or key != name},
        )  # fmt: skip

    def enter(self, ledger: TargetLedger, sid: str, *, initial: bool) -> LedgerRow:
        """Its row of the ledger; a new one is `loading` if `initial`. Raises psycopg's errors."""
        source = self.backend, sid, self.schema_name, self.table
        event = TableEvent.AWAITED if initial else TableEvent.FOLLOWED
        return ledger.enter(source, self.full_target, event)


class TableSinkSettings(Settings):
    """What a sink of tables has. Constructing it does no I/O."""

    images: ClassVar[Images] = "text"
    kinds: ClassVar[Collection[Kind]] = ("clone", "append", "history")
    takes_documents: ClassVar[bool] = False

    type: str
    """The kind of sink."""
    map_file: str = ""
    """The path of `map: sqlite:///FILE`; `map` is then the file's content at the last read."""
    map: tuple[MapEntry, ...] = ()
    """The tables of each backend, and how they are written."""
    workers: int = Field(default=2, ge=1, le=64)
    """Connections that apply changes. The target's name decides which worker has a table; targets
    that foreign keys tie share one."""
    commit: CommitSettings = CommitSettings()
    sid_column: str = Field(default=SID, min_length=1)
    """The name of the column for the source's name, in targets that have such a column."""

    initial: bool = False
    """Whether changes of a table wait until its rows are loaded; `penstock run` sets it."""
    on_error: OnError = "stop"
    """What happens to a change that cannot be stored; with `penstock run` each backend has its
    own."""

    @model_validator(mode="before")
    @classmethod
    def _is_in_a_file(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(url := data.get("map"), str):
            if (path := path_of(url)) is None:
                raise ValueError("map: write a list, or sqlite:///FILE")
            return data | {"map": (), "map_file": str(path)}
        return data

    @model_validator(mode="after")
    def _is_one_table_each(self) -> "TableSinkSettings":
        if not self.map and not self.map_file:
            raise ValueError("map is missing: a list of backends with their tables")
        seen: set[tuple[str, str]] = set()
        for table in self.tables():
            key = table.backend, table.source
            if key in seen:
                raise ValueError(
                    f"map: {table.source} of the backend {table.backend} is there twice"
                )
            seen.add(key)
            if (kind := table.options.type) not in self.kinds:
                raise ValueError(
                    f"map: {table.source} has the type {kind}, which a sink of type {self.type}"
                    f" does not have: write {' or '.join(self.kinds)}"
                )
            if (table.target_schema, table.target) in self.own_tables:
                raise ValueError(f"map: the target {table.full_target} is a table of the ledger")
        return self

    @property
    def connections(self) -> int:
        """How many workers commit apart, each by a connection of its own."""
        return self.workers

    @property
    @abstractmethod
    def own_tables(self) -> Collection[tuple[str, str]]:
        """The tables (schema, name) of the ledger."""

    def tables(self, backend: str | None = None) -> Sequence[MappedTable]:
        """The tables of the map, of one backend or all."""
        return [
            table for entry in self.map if backend in (None, entry.backend)
            for table in self._mapped(entry)
        ]  # fmt: skip

    @abstractmethod
    def database(self) -> TableDatabase:
        """The destination; does no I/O."""

    @property
    @abstractmethod
    def default_schema(self) -> str:
        """Where targets are that name no schema."""

    def _mapped(self, entry: MapEntry) -> Iterator[MappedTable]:
        for name, options in entry.tables.items():
            schema, table = _split(name, "public")
            target_schema, target = _split(options.target or table, self.default_schema)
            yield MappedTable(
                backend=entry.backend, schema_name=schema, table=table,
                target_schema=target_schema, target=target, options=options,
                sid_column=self.sid_column,
            )  # fmt: skip


class DatabaseSinkSettings(TableSinkSettings):
    """What a pipeline file may say about a database of your own: see `table_sink`."""

    url: Secret
    """The database's URL, in the form that mirrors use."""
    schema: str = Field(default="main", min_length=1)  # type: ignore[assignment]
    """The schema of targets that name none."""

    def database(self) -> TableDatabase:
        found: TableDatabase = plugin("sinks", self.type).database(self.url.get_secret_value())
        return found

    @property
    def own_tables(self) -> Collection[tuple[str, str]]:
        """See `TableSinkSettings`: in a schema, or where there are none."""
        return {("penstock", name) for name in NAMES} | {
            (self.schema, f"penstock_{name}") for name in NAMES
        }

    @property
    def default_schema(self) -> str:
        return self.schema


def _split(name: str, schema: str) -> tuple[str, str]:
    """`schema.table` -> both; the first dot separates."""
    before, dot, after = name.partition(".")
    return (before, after) if dot else (schema, name)


def wanted(settings: TableSinkSettings, backend: str) -> Sequence[str]:
    """The tables that are followed: `schema.table`, or `schema.~pattern` for `partitions`."""
    return [
        f"{each.schema_name}.~{each.options.partitions}" if each.options.partitions else each.source
        for each in settings.tables(backend)
    ]
