"""The tables of the map as a source's catalogue has them now, beside what the ledger has of them:
what changed without the log is loaded anew, or the table waits where that would not be right.

A document is kept before the rows of its table are read. So what happens between the two is a
difference at the next comparison, and nothing is left out.
"""

from collections.abc import Mapping

import orjson

from penstock.model.errors import PenstockError
from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.settings import MappedTable
from penstock.sinks.tables.source_table import BY_HAND
from penstock.tables.difference import Document, rows_differ
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_rows import LedgerRow, TableRecord
from penstock.tables.states import TRANSITIONS, RowsChanged, TableEvent

# Of one table of the map: its tables at the source, by their names.
Sources = Mapping[str, TableSchema]


def compare(
    ledger: TargetLedger, tables: Mapping[TableRecord, tuple[MappedTable, Sources]],
    lacking: Mapping[str, PenstockError],
) -> Mapping[str, str]:  # fmt: skip
    """Has tables loaded anew, or wait, whose rows may not be those of the source any more; returns
    why. What is not known yet is as it is now. `lacking`: tables of which the source does not send
    a part. Raises the driver's errors."""
    known = ledger.known(each.row.id for each in tables)
    new = {
        record: documents for record, (_, now) in tables.items()
        if (documents := _documents(now)) != known[record.row.id]
    }  # fmt: skip
    waiting = {each: error for each in tables if (error := lacking.get(each.table)) is not None}
    rows, reasons = ledger.lock(each.row.id for each in (*new, *waiting)), dict[str, str]()
    for record, documents in new.items():
        table, now = tables[record]
        row, before = rows[record.row.id], known[record.row.id]
        joined = [name for name, one in now.items() if name not in before and not one.is_empty]
        if reason := _reason(table, before, now):
            _replace(ledger, row, table, reason)
        elif before and joined:
            reason = f"{', '.join(joined)} joined with rows"
            can_join = row.has_rows and (row.state, TableEvent.JOINED) in TRANSITIONS
            if table.options.type == "clone" and row.is_ours and can_join:
                ledger.load_beside(row, now.keys() - joined)
            else:
                _replace(ledger, row, table, reason)
        if reason:
            reasons[record.table] = reason
        ledger.keep_known(row.id, documents)
    for record, error in waiting.items():
        if (row := rows[record.row.id]).is_live and record.table not in reasons:
            ledger.save(row.wait(error))
            reasons[record.table] = error.message
    return reasons


def _replace(ledger: TargetLedger, row: LedgerRow, table: MappedTable, reason: str) -> None:
    """Rows that are not ours wait for an operator, and so does a log that a load would replace."""
    partitions = ledger.partitions(row.id)
    is_log = bool(partitions) and table.options.type == "log"
    if not row.has_rows or (row.is_ours and not is_log):
        ledger.load_anew(row, is_ours=row.is_ours)
        return
    hint = f"`penstock reload FILE {table.source}` replaces its rows; or make them {BY_HAND}"
    error = RowsChanged(
        f"{table.source} changed at the source without its log: {reason}",
        "tables.rows-changed",
        hint=f"{hint} {table.source}`",
    )
    for each in partitions.values() or [row]:
        ledger.save(each.wait(error))


def _reason(table: MappedTable, known: Mapping[str, str], now: Sources) -> str:
    """Why rows that are there may be others now. Those of a partition that is gone stay where rows
    are never deleted."""
    gone = sorted(known.keys() - now.keys())
    if gone and (not now or table.options.type == "clone"):
        return f"the source does not send {', '.join(gone)} any more"
    found = (
        (name, rows_differ(orjson.loads(known[name]), _document(each)))
        for name, each in now.items() if name in known
    )  # fmt: skip
    return next((f"{name}: {reason}" for name, reason in found if reason), "")


def _documents(now: Sources) -> Mapping[str, str]:
    return {
        name: orjson.dumps(_document(each), option=orjson.OPT_SORT_KEYS).decode()
        for name, each in now.items()
    }


def _document(schema: TableSchema) -> Document:
    return {
        "schema": schema.schema, "table": schema.table, "relation_id": schema.relation_id,
        "columns": schema.columns, "state": schema.state,
    }  # fmt: skip
