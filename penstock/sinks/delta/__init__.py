"""Delta tables that many sources flow into, table by table, as the map says: see
`penstock/sinks/tables`.

The ledger is in a SQLite file. Rows of a table are one commit of delta-rs, which has how far the
source is, too: so a kill between it and the ledger's repeats nothing.
"""

from penstock.sinks import SinkPlugin
from penstock.sinks.delta.settings import DeltaSinkSettings
from penstock.sinks.tables.settings import wanted
from penstock.sinks.tables.sink import TableSink


class DeltaSink(TableSink):
    """See `TableSink`."""


PLUGIN = SinkPlugin(settings=DeltaSinkSettings, build=DeltaSink, tables=wanted)
