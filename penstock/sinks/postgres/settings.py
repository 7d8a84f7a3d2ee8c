"""What a pipeline file may say about a PostgreSQL destination."""

from collections.abc import Collection, Iterator
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from penstock.process.postgres_url import PostgresUrl
from penstock.sinks.tables.settings import MapEntry, MappedTable, TableSinkSettings
from penstock.tables.history import HistoryColumns
from penstock.tables.ledger_tables import NAMES
from penstock.tables.postgres_database import PostgresDatabase


class PostgresSinkSettings(TableSinkSettings):
    """One destination database. Constructing it does no I/O."""

    shows_map: ClassVar[bool] = True  # see `penstock/service/map_api.py`

    type: Literal["postgres"] = "postgres"
    connection: PostgresUrl = Field(min_length=1)
    """`postgresql://user:password@host:port/database?key=value`, as libpq reads it."""
    schema: str = Field(default="public", min_length=1)  # type: ignore[assignment]
    """The schema of targets that name none."""
    ledger: str = Field(default="penstock", min_length=1)
    """The schema with the place, the state and the dead letters of each table."""
    history: HistoryColumns = HistoryColumns()
    """The names of the additional columns of tables of the type `history`."""
    replica_role: bool = False
    """Set `session_replication_role`, so that triggers and foreign keys of targets do not run."""

    def database(self) -> PostgresDatabase:
        return PostgresDatabase(
            self.connection.get_secret_value(), ledger=self.ledger, replica_role=self.replica_role
        )

    @model_validator(mode="after")
    def _is_no_name_twice(self) -> "PostgresSinkSettings":
        if self.sid_column in self.history.kinds:
            raise ValueError(f"sid_column and history: both have the name {self.sid_column}")
        return self

    @property
    def own_tables(self) -> Collection[tuple[str, str]]:
        return {(self.ledger, name) for name in NAMES}

    @property
    def default_schema(self) -> str:
        return self.schema

    def _mapped(self, entry: MapEntry) -> Iterator[MappedTable]:
        for table in super()._mapped(entry):
            periods = self.history if table.options.type == "history" else None
            yield table.model_copy(update={"periods": periods})
