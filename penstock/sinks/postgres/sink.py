"""The PostgreSQL sink: a sink of tables, and its preflight."""

from collections.abc import Sequence

from penstock.model.finding import Finding
from penstock.model.position import PartitionId
from penstock.model.table_schema import TableSchema
from penstock.sinks.postgres.check import check, check_tables
from penstock.sinks.postgres.database import PostgresDatabase
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.tables.sink import TableSink


class PostgresSink(TableSink):
    """A `penstock.sinks.Sink` of rows; see `settings` for what it can do."""

    settings: PostgresSinkSettings

    def __init__(self, settings: PostgresSinkSettings) -> None:
        super().__init__(settings, PostgresDatabase(settings))

    def check(self) -> Sequence[Finding]:
        """See `Sink.check`."""
        return list(check(self.settings))

    def check_tables(
        self,
        backend: str,
        schemas: Sequence[TableSchema],
        partitions: Sequence[PartitionId] = (),
    ) -> Sequence[Finding]:
        """See `LoadsTables`."""
        return list(check_tables(self.settings, backend, schemas, partitions))
