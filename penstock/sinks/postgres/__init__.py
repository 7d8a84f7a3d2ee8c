"""One PostgreSQL database that many sources flow into, table by table, as the map says.

The task of a query writes: `write` divides changes among workers by their tables, a `worker` is a
thread with a connection that applies them (`penstock/tables`), each commit with its ledger rows.
"""

from penstock.sinks import SinkPlugin
from penstock.sinks.postgres.map_store import map_store
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.tables.settings import wanted
from penstock.sinks.tables.sink import TableSink
from penstock.tables.postgres_database import PostgresDatabase


class PostgresSink(TableSink):
    """See `TableSink`."""


PLUGIN = SinkPlugin(
    settings=PostgresSinkSettings,
    build=PostgresSink,
    tables=wanted,
    map_store=map_store,
    database=PostgresDatabase,
)
