"""Lists: as JSON, or as rows of text in columns, never cut: a pager or `cut` can do that."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

Rows = Sequence[Mapping[str, Any]]


def print_list(rows: Rows, *, as_json: bool, none: str, table: Callable[[Rows], None]) -> None:
    """Prints the rows, as JSON or by `table`; `none` where there is no row."""
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo(none)
    else:
        table(rows)


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One line for the head and one for each row; every column as wide as its widest cell."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
