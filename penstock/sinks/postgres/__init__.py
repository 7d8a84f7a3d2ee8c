"""One PostgreSQL database that many sources flow into, table by table, as the map says.

The task of a query writes: `write` divides changes among workers by their tables, a `worker` is a
thread with a connection that applies them (`penstock/tables`), each commit with its ledger rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.model.table_schema import TableSchema
from penstock.sinks import SinkPlugin
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.postgres.verify import PostgresComparison
from penstock.sinks.tables import comparing
from penstock.sinks.tables.comparing import Verdict
from penstock.sinks.tables.settings import MappedTable, wanted
from penstock.sinks.tables.sink import TableSink
from penstock.tables.postgres_database import PostgresDatabase


class PostgresSink(TableSink):
    """See `TableSink` and `ComparesTables`."""

    def compare(
        self, source: Any, settle: Callable[[], None], *, table: MappedTable, sid: str,
        schemas: Sequence[TableSchema], repair: bool,
    ) -> Verdict:  # fmt: skip
        return comparing.compare(
            PostgresComparison, self.settings.database(), source, settle=settle, table=table,
            sid=sid, schemas=schemas, repair=repair,
        )  # fmt: skip


PLUGIN = SinkPlugin(
    settings=PostgresSinkSettings, build=PostgresSink, tables=wanted, database=PostgresDatabase
)
