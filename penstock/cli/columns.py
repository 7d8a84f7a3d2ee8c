"""Rows of text in columns, never cut: a pager or `cut` can do that."""

from collections.abc import Iterable, Sequence


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One line for the head and one for each row; every column as wide as its widest cell."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
