"""One SQLite file that many sources flow into, table by table, as the map says: see
`penstock/sinks/tables`."""

from penstock.sinks import SinkPlugin
from penstock.sinks.sqlite.settings import SqliteSinkSettings
from penstock.sinks.tables.settings import wanted
from penstock.sinks.tables.sink import TableSink
from penstock.tables.sqlite_database import SqliteDatabase


class SqliteSink(TableSink):
    """See `TableSink`."""


PLUGIN = SinkPlugin(
    settings=SqliteSinkSettings, build=SqliteSink, tables=wanted, database=SqliteDatabase.of_url
)
