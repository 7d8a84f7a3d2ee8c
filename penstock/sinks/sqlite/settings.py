"""What a pipeline file may say about a SQLite file as a destination."""

from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import model_validator

from penstock.sinks.tables.settings import Kind, TableSinkSettings
from penstock.tables.ledger_tables import NAMES
from penstock.tables.sqlite_database import SqliteDatabase


class SqliteSinkSettings(TableSinkSettings):
    """One file. Constructing it does no I/O."""

    kinds: ClassVar[Collection[Kind]] = ("clone", "append")

    type: Literal["sqlite"] = "sqlite"
    file: Path
    """The file; made if missing. Its folder must exist."""
    workers: int = 1
    """Always 1, because a SQLite file has one writer."""

    def database(self) -> SqliteDatabase:
        return SqliteDatabase(self.file)

    @property
    def own_tables(self) -> Collection[tuple[str, str]]:
        return {(self.default_schema, f"penstock_{name}") for name in NAMES}

    @property
    def default_schema(self) -> str:
        """See `TableSinkSettings`: what SQLite calls the file itself."""
        return "main"

    @model_validator(mode="after")
    def _is_for_sqlite(self) -> "SqliteSinkSettings":
        if self.workers != 1:
            raise ValueError("workers: a SQLite file has one writer: leave it out")
        if self.map_file:
            raise ValueError(
                "map: a file is for a sink of type postgres: write the list here"
                " (penstock map FILE export prints it)"
            )
        for table in self.tables():
            if table.target_schema != self.default_schema:
                raise ValueError(
                    f"map: the target {table.full_target}: SQLite has no schemas: write"
                    f" {table.target_schema}_{table.target}"
                )
        return self
