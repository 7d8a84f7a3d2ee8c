"""`penstock preview`: some rows of each table, before and after what a pipeline makes of them."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from penstock.cli.options import file_argument
from penstock.config import Pipeline, load_pipeline
from penstock.consumer.tail.lines import printable
from penstock.model.errors import PenstockError
from penstock.model.images import base64_of
from penstock.snapshots.preview import (
    MadeRow,
    RowPreview,
    TablePreview,
    previews,
    tables_of,
)
from penstock.snapshots.statements import RowTransform

_NAME = 24  # characters that names of columns are padded to, at most


@click.command("preview")
@file_argument
@click.option(
    "--rows", default=5, show_default=True, type=click.IntRange(1, 100), help="Rows of each table."
)
@click.option("--table", "names", multiple=True, help="Only this table; may be repeated.")
@click.option("--sid", help="The source, if a backend has several; default: the first.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
def command(*, file: Path, rows: int, names: Sequence[str], sid: str | None, as_json: bool) -> None:
    """Show some rows of the tables of the pipeline in FILE, before and after its `transform`, or
    the `filter` and `set` of its map.

    The command writes nothing. It reads sources in read-only transactions, without a slot or a
    publication, and computes the rows of a sink of tables in a transaction that is rolled back.
    With a `transform` it starts a local Spark, for some seconds.

    \b
    penstock preview FILE
    penstock preview FILE --table public.orders --rows 2

    ~ marks a column whose value changes, + a new column, - a column that is left out. Exits with 1
    if a table or a row has a problem.
    """
    pipeline = load_pipeline(file)
    tables, found = tables_of(pipeline, names, sid or ""), list[TablePreview]()
    console = Console()
    width = console.width if console.is_terminal else sys.maxsize
    with _statements(pipeline) as statements:
        for each in previews(pipeline, tables, rows, statements):
            found.append(each)
            if not as_json:
                click.echo("\n".join(lines(each, width)))
        refusal = "" if statements is None else statements.refusal
    if as_json:
        document = {"pipeline": pipeline.name, "tables": found, "snapshots_refused": refusal}
        click.echo(orjson.dumps(document, default=_plain, option=orjson.OPT_INDENT_2))
    elif refusal:
        click.echo(f"snapshots are refused: transform {refusal}", err=True)
    if any(each.problem or any(row.problem for row in each.rows) for each in found):
        raise SystemExit(1)


def _statements(pipeline: Pipeline) -> AbstractContextManager[RowTransform | None]:
    if not pipeline.transform:
        return nullcontext()
    from penstock.spark.preview import local_statements

    click.echo("starting a local Spark for transform", err=True)
    return local_statements(pipeline)


def lines(table: TablePreview, width: int) -> Iterator[str]:
    """A table for people, in lines of this width."""
    source = f"{table.backend}/{table.sid}" if table.target else table.backend
    target = f" -> {table.target}" if table.target else ""
    number = sum(row.before is not None or row.problem is not None for row in table.rows)
    count = f"{number} row{'' if number == 1 else 's'}"
    yield f"{table.table} of {source}{target}: {count}"
    yield from _problem(table.problem, "  ")
    for row in table.rows:
        yield from _row(row, table, width)
    yield ""


def _row(row: RowPreview, table: TablePreview, width: int) -> Iterator[str]:
    head = f"  {row.operation} {_key(row.key)}".rstrip() or "  of no single row:"
    if row.left_out_by:
        yield f"{head}: left out by {row.left_out_by}"
        yield from _cut(_values(row.before, row.before, width), width)
        return
    if row.problem or not row.made:
        yield head
        yield from _problem(row.problem, "    ")
        return
    for made in row.made:
        yield f"{head}{_becomes(row, made, table)}"
        yield from _cut(_values(row.before, made.after, width), width)


def _becomes(row: RowPreview, made: MadeRow, table: TablePreview) -> str:
    """What a change has become, besides its values."""
    parts = [
        made.operation if made.operation != row.operation else "",
        made.table if made.table not in (table.table, table.target) else "",
        _key(made.key) if made.key not in (None, row.key) else "",
    ]
    return f" -> {' '.join(filter(None, parts))}" if any(parts) else ""


def _values(before: Any, after: Any, width: int) -> Iterator[str]:
    """Each column, with its value before and after if these differ."""
    before, after = ({} if each is None else each for each in (before, after))
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        before, after = {"": before} if before else {}, {"": after}
    names = [*before, *(name for name in after if name not in before)]
    size = min(max(map(len, names), default=0), _NAME)
    for name in names:
        start = f"{printable(name):<{size}}"
        old, new = _text(before.get(name)), _text(after.get(name))
        if name not in after:
            yield f"    - {start} {old}"
        elif name not in before:
            yield f"    + {start} {new}"
        elif before[name] == after[name]:
            yield f"      {start} {new}"
        elif len(line := f"    ~ {start} {old} -> {new}") <= width:
            yield line
        else:
            yield f"    ~ {start} {old}"
            yield f"      {'':<{size}} -> {new}"


def _problem(problem: PenstockError | None, indent: str) -> Iterator[str]:
    if problem is not None:
        yield f"{indent}error: {problem.message} [{problem.code}]"
        for line in problem.hint.splitlines():
            yield f"{indent}hint:  {line}"


def _key(key: Any) -> str:
    found = key.items() if isinstance(key, Mapping) else ()
    return " ".join(f"{printable(name)}={_text(value)}" for name, value in found)


def _cut(found: Iterator[str], width: int) -> Iterator[str]:
    for line in found:
        yield line if len(line) <= width else f"{line[: width - 1]}…"


def _plain(value: Any) -> Any:
    """What JSON has no type for."""
    if isinstance(value, PenstockError):
        return {"message": value.message, "code": value.code, "remedy": value.hint}
    return base64_of(value) if isinstance(value, bytes) else str(value)


def _text(value: Any) -> str:
    return printable(orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode())
