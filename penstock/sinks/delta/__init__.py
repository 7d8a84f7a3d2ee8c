"""Delta tables that many sources flow into, table by table, as the map says: see
`penstock/sinks/tables`.

The ledger is in a SQLite file. Rows of a table are one commit of delta-rs, which has how far the
source is, too: so a kill between it and the ledger's repeats nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.model.table_schema import TableSchema
from penstock.sinks import SinkPlugin
from penstock.sinks.delta.settings import DeltaSinkSettings
from penstock.sinks.delta.verify import DeltaComparison
from penstock.sinks.tables import comparing
from penstock.sinks.tables.comparing import Verdict
from penstock.sinks.tables.settings import MappedTable, wanted
from penstock.sinks.tables.sink import TableSink


class DeltaSink(TableSink):
    """See `TableSink` and `ComparesTables`."""

    def compare(
        self, source: Any, settle: Callable[[], None], *, table: MappedTable, sid: str,
        schemas: Sequence[TableSchema], repair: bool,
    ) -> Verdict:  # fmt: skip
        return comparing.compare(
            DeltaComparison, self.settings.database(), source, settle=settle, table=table, sid=sid,
            schemas=schemas, repair=repair,
        )  # fmt: skip


PLUGIN = SinkPlugin(settings=DeltaSinkSettings, build=DeltaSink, tables=wanted)
