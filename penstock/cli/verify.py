"""`penstock verify`: whether the tables of a sink have what their sources have."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from penstock.cli.options import file_argument
from penstock.config import Pipeline, load_pipeline
from penstock.feeds.postgres.connect import connect_reading
from penstock.feeds.postgres.feed import PostgresFeed
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.table_schema import TableSchema
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.postgres.verify import TableComparison, Verdict
from penstock.sinks.tables.settings import MappedTable
from penstock.sinks.tables.table_map import TableMap

_PATIENCE = 60.0  # seconds for which the pipeline may take to write what there is
_RECONNECTS = 5.0  # seconds in which the slot's reader may come back
_LOOK = 0.1  # seconds
_SHOWN = 20  # differences of a table that are printed

_NOTHING = Verdict(differences=())  # of a table that cannot be compared

_REACHED = """
SELECT active, confirmed_flush_lsn >= %s::pg_lsn
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""


@click.command("verify")
@file_argument
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--sid", help="Of one source only.")
@click.option("--repair", is_flag=True, help="Give rows that differ what the source has.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
def command(
    *, file: Path, tables: tuple[str, ...], sid: str | None, repair: bool, as_json: bool
) -> None:
    """Compare the tables at the destination of the pipeline in FILE with their sources.

    Both sides count and hash their rows; keys and columns that differ are named, never values. The
    pipeline may run meanwhile: a change that is on its way is no difference. Exit code 0: equal;
    1: something differs, or a source does not send a table of the map; 3: rows changed at each of
    five looks, so that nobody can tell.

    \b
    penstock verify FILE
    penstock verify FILE public.orders --sid eu --repair
    """
    pipeline = load_pipeline(file)
    if pipeline.sink.plug_in.settings is not PostgresSinkSettings:
        raise SettingsError(
            f"the tables of a sink of type {pipeline.sink.type} cannot be compared",
            "cli.no-comparison",
            hint="penstock compare compares a stream with its source; penstock reload loads a table"
            " anew",
        )
    settings = cast(PostgresSinkSettings, pipeline.sink.settings)
    found = []
    for each in _chosen(pipeline, settings, tables, sid):
        report = _verified(settings, each, repair=repair) if each.schemas else _report(each)
        found.append(report)
        if not as_json:
            _print(report)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    if not found:
        raise SettingsError(
            "nothing was compared", "cli", hint="no table of the map has that name or sid"
        )
    if any(one["missing"] or (one["different"] and not one["repaired"]) for one in found):
        raise SystemExit(1)
    if any(one["unsettled"] for one in found):
        raise SystemExit(3)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table of one source in the map. Without `schemas` the source does not send it."""

    feed: PostgresFeed
    sid: str
    table: MappedTable
    schemas: list[TableSchema]


def _chosen(
    pipeline: Pipeline, settings: PostgresSinkSettings, names: tuple[str, ...], sid: str | None
) -> Iterator[_Pair]:
    table_map = TableMap(settings)
    wanted = {name if "." in name else f"public.{name}" for name in names}
    for backend in pipeline.backends:
        for each in cast(PostgresSettings, backend.settings).each:
            source, feed = str(each.partition), PostgresFeed(each)
            if sid not in (None, source):
                continue
            pairs = {
                table.source: _Pair(feed, source, table, [])
                for table in settings.tables(backend.name)
                if not wanted or table.source in wanted
            }
            for schema in feed.schemas():
                table = table_map.mapped(backend.name, schema.schema, schema.table)
                if table is not None and table.source in pairs:
                    # All partitions that go into one target are one table there.
                    pairs[table.source].schemas.append(schema)
            yield from pairs.values()


def _verified(settings: PostgresSinkSettings, pair: _Pair, *, repair: bool) -> dict[str, Any]:
    database = settings.database()
    with (
        closing(connect_reading(pair.feed.settings, lambda: False)) as source,
        closing(database.connect()) as target,
        database.translated("comparing"),
    ):
        comparison = TableComparison(
            source, target, table=pair.table, schemas=pair.schemas, sid=pair.sid,
            settle=lambda: _settle(source, pair.feed.settings.slot), database=database,
        )  # fmt: skip
        verdict = comparison.run()
        if repair and verdict.differences:
            comparison.repair(verdict.differences)
    return _report(pair, verdict, repaired=repair and bool(verdict.differences))


def _settle(source: Any, slot: str) -> None:
    """Waits until everything that the source has now was written; not where nothing writes."""
    idle_at = time.monotonic() + _RECONNECTS
    deadline = time.monotonic() + _PATIENCE
    (now,) = source.execute("SELECT pg_current_wal_lsn()").fetchone()
    while True:
        row = source.execute(_REACHED, [now, slot]).fetchone()
        if row is not None and row[0]:
            idle_at = time.monotonic() + _RECONNECTS
        if row is None or row[1] or time.monotonic() > idle_at:
            return
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the pipeline has not written what the source had {_PATIENCE:.0f} s ago",
                "cli.behind",
                hint="see /status: it may be behind; compare when it is not",
            )
        time.sleep(_LOOK)


def _report(pair: _Pair, verdict: Verdict = _NOTHING, *, repaired: bool = False) -> dict[str, Any]:
    return {
        "backend": pair.table.backend,
        "sid": pair.sid,
        "table": pair.table.source,
        "target": pair.table.full_target,
        "missing": not pair.schemas,
        "different": len(verdict.differences),
        "unsettled": verdict.unsettled,
        "repaired": repaired,
        "differences": [each._asdict() for each in verdict.differences],
    }


def _print(report: dict[str, Any]) -> None:
    name = f"{report['backend']}/{report['sid']} {report['table']} -> {report['target']}"
    if report["missing"]:
        click.echo(f"missing    {name} (the source does not send it)")
        return
    word = "unsettled" if report["unsettled"] else "equal"
    if report["different"]:
        word = "repaired" if report["repaired"] else "different"
    more = f" ({report['unsettled']} rows changed all the time)" if report["unsettled"] else ""
    click.echo(f"{word:10} {name}{more}")
    for each in report["differences"][:_SHOWN]:
        columns = f": {', '.join(each['columns'])}" if each["columns"] else ""
        click.echo(f"           {each['kind']} {each['key']}{columns}")
    if report["different"] > _SHOWN:
        click.echo(f"           and {report['different'] - _SHOWN} more")
