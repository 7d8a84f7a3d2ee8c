"""What a sink tells of poison, on the board: dead letters are counted, tables have their state."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.board import Board
from penstock.ops.reporter import Reporter

__all__ = ["post_tables", "report_poison"]

_KEYS = ("dead_letters", "tables")


def report_poison(board: Reporter, sink: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Reports what `told` says of dead letters and tables; returns the rest of it."""
    letters = told.get("dead_letters", {})
    if letters:
        board.add("sink", sink, {f"dead_letters.{reason}": n for reason, n in letters.items()})
    for table in told.get("tables", ()):
        board.report("table", _name(table), table)
    return {key: value for key, value in told.items() if key not in _KEYS}


def post_tables(board: Board, tables: Sequence[Mapping[str, Any]]) -> None:
    """What is known of tables before anybody writes."""
    for table in tables:
        board.post("table", _name(table), table)


def _name(table: Mapping[str, Any]) -> str:
    return f"{table['backend']}/{table['table']}"
