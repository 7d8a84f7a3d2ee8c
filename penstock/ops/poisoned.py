"""A sink's reports of poison to the board: counts of dead letters, states of tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.board import Board
from penstock.ops.reporter import Reporter

_KEYS = ("dead_letters", "tables")


def report_poison(board: Reporter, sink: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Reports the dead letters and tables in `told`; returns its other fields."""
    letters = told.get("dead_letters", {})
    if letters:
        board.add("sink", sink, {f"dead_letters.{reason}": n for reason, n in letters.items()})
    for table in told.get("tables", ()):
        board.report("table", _name(table), table)
    return {key: value for key, value in told.items() if key not in _KEYS}


def post_tables(board: Board, tables: Sequence[Mapping[str, Any]]) -> None:
    """Posts the states of tables that the sink has stored."""
    for table in tables:
        board.post("table", _name(table), table)


def _name(table: Mapping[str, Any]) -> str:
    return f"{table['backend']}/{table['table']}"
