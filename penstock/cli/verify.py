"""`penstock verify`: whether the tables of a sink have what their sources have."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import file_argument, json_list, print_json
from penstock.config import Pipeline, load_pipeline
from penstock.feeds import ListsTables
from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.comparing import ComparesTables, Verdict
from penstock.sinks.tables.settings import MappedTable, TableSinkSettings
from penstock.sinks.tables.table_map import TableMap

_SHOWN = 20  # differences of a table that are printed

_NOTHING = Verdict(differences=())  # of a table that cannot be compared


@click.command("verify")
@file_argument
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--sid", help="Only tables of this source.")
@click.option("--repair", is_flag=True, help="Give rows that differ the source's values.")
@json_list
def command(
    *, file: Path, tables: tuple[str, ...], sid: str | None, repair: bool, as_json: bool
) -> None:
    """Compare the tables at the destination of the pipeline in FILE with their sources.

    Both sides count and hash their rows. The command prints keys and columns that differ, never
    values. The pipeline may run meanwhile: a change in flight is no difference. Exit code 0: equal;
    1: something differs, or a source does not send a table of the map; 3: rows changed at each of
    five reads, so that the command cannot judge them.

    \b
    penstock verify FILE
    penstock verify FILE public.orders --sid eu --repair
    """
    pipeline = load_pipeline(file)
    if not isinstance(sink := pipeline.sink.sink(), ComparesTables):
        raise SettingsError(
            f"the tables of a sink of type {pipeline.sink.type} cannot be compared",
            "cli.no-comparison",
            hint="penstock compare compares a stream with its source; penstock reload loads a table"
            " anew",
        )
    found = []
    for each in _chosen(pipeline, sink.settings, tables, sid):
        report = _verified(sink, each, repair=repair) if each.schemas else _report(each)
        found.append(report)
        if not as_json:
            _print(report)
    if as_json:
        print_json(found)
    if not found:
        raise SettingsError(
            "nothing was compared",
            "cli",
            hint="no table of the map has that name and sid; one of type log is not compared",
        )
    if any(one["missing"] or (one["different"] and not one["repaired"]) for one in found):
        raise SystemExit(1)
    if any(one["unsettled"] for one in found):
        raise SystemExit(3)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table of one source in the map. Without `schemas` the source does not send it."""

    feed: ListsTables
    sid: str
    table: MappedTable
    schemas: list[TableSchema]


def _chosen(
    pipeline: Pipeline, settings: TableSinkSettings, names: tuple[str, ...], sid: str | None
) -> Iterator[_Pair]:
    table_map = TableMap(settings)
    wanted = {name if "." in name else f"public.{name}" for name in names}
    for backend in pipeline.backends:
        for feed in backend.databases():
            source = str(feed.partition)
            if sid not in (None, source):
                continue
            pairs = {
                table.source: _Pair(feed, source, table, [])
                for table in settings.tables(backend.name)
                if table.options.type != "log" and (not wanted or table.source in wanted)
            }
            sent = {each.relation_id for each in feed.schemas()}
            for schema in feed.schemas_there():
                table = table_map.mapped(backend.name, schema.schema, schema.table)
                if table is None or table.source not in pairs:
                    continue
                # All partitions that go into one target are one table there: if one is sent, the
                # others are missed.
                if schema.relation_id in sent or pairs[table.source].schemas:
                    pairs[table.source].schemas.append(schema)
            yield from pairs.values()


def _verified(sink: ComparesTables, pair: _Pair, *, repair: bool) -> dict[str, Any]:
    with pair.feed.reading() as source:
        verdict = sink.compare(
            source, partial(pair.feed.settle, source), table=pair.table, sid=pair.sid,
            schemas=pair.schemas, repair=repair,
        )  # fmt: skip
    return _report(pair, verdict, repaired=repair and bool(verdict.differences))


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
