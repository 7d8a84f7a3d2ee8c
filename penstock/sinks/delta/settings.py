"""What a pipeline file may say about Delta tables as a destination."""

import string
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from penstock.model.errors import SettingsError
from penstock.model.settings import Duration, Secret
from penstock.sinks.delta.database import DeltaDatabase
from penstock.sinks.delta.documents import declared
from penstock.sinks.delta.kinds import OnMisfit
from penstock.sinks.delta.lake import DeltaLayout
from penstock.sinks.tables.settings import (
    CommitSettings,
    Kind,
    MapEntry,
    MappedTable,
    TableOptions,
    TableSinkSettings,
)
from penstock.tables.history import HistoryColumns

_LEDGER = "_penstock.db"
# Options of the map that there are not, and what to do instead.
_REFUSED = {
    "partitions": "give the publication `publish_via_partition_root`, or map each to a target",
}


class DeltaTableOptions(TableOptions):
    """How one table of the map is written."""

    schema: str = ""  # type: ignore[assignment]
    """Of documents: the columns that rows have instead of `document`, as DDL text of Spark's. The
    columns `_rest MAP<STRING, STRING>` and `_corrupt STRING` have what has no column, and a
    document in which something did not fit."""

    @field_validator("schema")
    @classmethod
    def _is_ddl(cls, text: str) -> str:
        try:
            declared(text)
        except SettingsError as error:
            raise ValueError(f"{error.message}: {error.hint}") from None
        return text


class DeltaMapEntry(MapEntry):
    """The tables of one backend: `table` or `schema.table` -> options."""

    tables: dict[str, DeltaTableOptions] = Field(default_factory=dict)  # type: ignore[assignment]
    """Its tables, and how each is written."""


class DeltaCommitSettings(CommitSettings):
    """A commit writes files, so there are few."""

    rows: int = Field(default=100_000, ge=1)
    """Changes of one commit."""
    wait: Duration = Field(default=30.0, ge=0)
    """Seconds that a change may wait for more."""


class DeltaSinkSettings(TableSinkSettings):
    """Delta tables. Constructing it does no I/O."""

    kinds: ClassVar[Collection[Kind]] = ("clone", "append", "history", "log")
    takes_documents: ClassVar[bool] = True

    type: Literal["delta"] = "delta"
    location: str  # Spark takes an option `path` for itself
    """Where each table is: a folder or `s3://BUCKET/...`, in which `{schema}` and `{table}` are the
    target's."""
    map: tuple[DeltaMapEntry, ...] = ()
    """The tables of each backend, and how they are written."""
    options: dict[str, Secret] = Field(default_factory=dict)
    """Options of the storage, as delta-rs has them."""
    ledger: Path | None = None
    """A SQLite file with how far each table is; default: `_penstock.db` in the first folder of
    `location` that all tables share."""
    mode: Kind = "clone"
    """The `type` of tables of the map that have none."""
    every: Duration | None = None
    """Short for `commit.wait`."""
    buckets: int = Field(default=0, ge=0, le=4096)
    """Parts that rows are divided into by a hash of their key, so that a commit writes the files of
    those that it changes. Of tables that penstock makes."""
    partition_by: tuple[str, ...] = ()
    """Columns that tables are partitioned by, as far as they have them; `_day` is the day of a
    change in a log. Of tables that penstock makes."""
    history: HistoryColumns = HistoryColumns()
    """What the columns are called that tables of the type `history` have besides."""
    on_misfit: OnMisfit = "refuse"
    """What becomes of a value that its column cannot hold, as `infinity` in a timestamp: `refuse`
    it; `null`, but in a key; or `text`: dates and timestamps are strings in tables that penstock
    makes, but for those that a `schema` declares."""
    clean: Duration = Field(default=3600.0, ge=0)
    """Seconds between two compactions of a table, each after a commit; 0: none."""
    workers: int = Field(default=2, ge=1, le=64)
    """Tables that a commit writes side by side. More are worth it where the storage has to be
    waited for; each needs memory for what it merges."""
    commit: DeltaCommitSettings = DeltaCommitSettings()

    @model_validator(mode="before")
    @classmethod
    def _is_often(cls, data: Any) -> Any:
        if isinstance(data, dict) and (every := data.get("every")) is not None:
            return data | {"commit": {**(data.get("commit") or {}), "wait": every}}
        return data

    @field_validator("on_misfit", mode="before")
    @classmethod
    def _is_a_word(cls, value: object) -> object:
        return "null" if value is None else value  # YAML's `null`

    @field_validator("location")
    @classmethod
    def _has_names(cls, location: str) -> str:
        try:
            found = {
                name for _, name, _, _ in string.Formatter().parse(location) if name is not None
            }
        except ValueError as error:
            raise ValueError(f"no location: {error}") from None
        if not {"table"} <= found <= {"schema", "table"}:
            raise ValueError("write {table}, and {schema} where names are not unique, and no other")
        return location

    @model_validator(mode="after")
    def _is_for_delta(self) -> "DeltaSinkSettings":
        if self.map_file:
            raise ValueError("map: a file is for a sink of type postgres: write the list here")
        if self.sid_column in self.history.kinds:
            raise ValueError(f"sid_column and history: both have the name {self.sid_column}")
        if self.ledger is None and "://" in self.location:
            raise ValueError("ledger: name a SQLite file on a disk of this machine")
        for table in self.tables():
            for name, remedy in _REFUSED.items():
                if getattr(table.options, name):
                    raise ValueError(
                        f"map: {table.source} has `{name}`, which a sink of type delta does not"
                        f" have: {remedy}"
                    )
            options = table.options
            if getattr(options, "schema", "") and (options.filter or options.set):
                raise ValueError(
                    f"map: {table.source} has a `schema`, with which a sink of type delta has"
                    " neither `filter` nor `set`: filter and compute where the table is read"
                )
        return self

    def database(self) -> DeltaDatabase:
        ledger = self.ledger or Path(self.location.partition("{")[0] + "_").parent / _LEDGER
        options = {name: text.get_secret_value() for name, text in self.options.items()}
        return DeltaDatabase(ledger, {
            (each.target_schema, each.target): DeltaLayout(
                uri=self.location.format(schema=each.target_schema, table=each.target),
                kind=each.options.type, buckets=self.buckets, clean=self.clean, options=options,
                partition_by=self.partition_by,
                declared=declared(getattr(each.options, "schema", "")),
            )
            for each in self.tables()
        }, self.on_misfit, self.workers)  # fmt: skip

    @property
    def connections(self) -> int:
        """See `TableSinkSettings`: the ledger has one writer."""
        return 1

    @property
    def own_tables(self) -> Collection[tuple[str, str]]:
        """See `TableSinkSettings`: the ledger is elsewhere."""
        return ()

    @property
    def default_schema(self) -> str:
        return ""

    def _mapped(self, entry: MapEntry) -> Iterator[MappedTable]:
        """See `TableSinkSettings`: a target has the source's schema, and is made."""
        for table in super()._mapped(entry):
            own, given = {"create": True, "type": self.mode}, table.options.model_fields_set
            options = table.options.model_copy(
                update={name: value for name, value in own.items() if name not in given}
            )
            yield table.model_copy(update={
                "options": options,
                "target_schema": table.target_schema or table.schema_name,
                "has_sid": "sid_column" in self.model_fields_set,
                "periods": self.history if options.type == "history" else None,
            })  # fmt: skip
