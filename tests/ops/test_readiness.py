"""When changes can flow: a table of named cases."""

from typing import Any

import pytest

from penstock.ops.board import Board
from penstock.ops.health import readiness
from penstock.ops.reports import KINDS

BEGUN = {"begun": True, "blocked": "", "last_error": "", "restarts": 0}
A, B = ("query", "a", BEGUN), ("query", "b", BEGUN)
READ_A = ("source", "a", {"connected": True})
READ_B = ("source", "b", {"connected": True})

CASES: dict[str, tuple[list[tuple[Any, str, dict[str, Any]]], bool, str]] = {
    "nothing reported yet": ([], False, "backend a: has not begun"),
    "one has begun": ([A], False, "backend b: has not begun"),
    "all have begun, and no reader has reported": ([A, B], True, ""),
    "all are read": ([A, B, READ_A, READ_B], True, ""),
    "one cannot begin": (
        [A, ("query", "b", BEGUN | {"begun": False, "last_error": "refused"})],
        False,
        "backend b: has not begun: refused",
    ),
    "one stands still": (
        [A, READ_A, ("query", "b", BEGUN | {"blocked": "no publication"})],
        True,
        "backend b: stands still: no publication",
    ),
    "all stand still": (
        [(kind, name, BEGUN | {"blocked": "x"}) for kind, name in (("query", "a"), ("query", "b"))],
        False,
        "backend a: stands still: x",
    ),
    "one is disconnected": (
        [A, B, READ_A, ("source", "b", {"connected": False, "last_error": "reset"})],
        True,
        "backend b: is disconnected: reset",
    ),
    "one is disconnected and the other has stopped": (
        [A, B, ("source", "a", {"stopped": True}), ("source", "b", {"connected": False})],
        False,
        "backend a: has stopped",
    ),
    "the sink is away": (
        [A, B, READ_A, READ_B, ("sink", "s", {"connected": False})],
        False,
        "sink s: is disconnected",
    ),
    "the breaker is open": (
        [A, B, ("sink", "s", {"connected": True, "breaker": "open"})],
        False,
        "sink s: the circuit breaker is open",
    ),
    "the breaker tries": ([A, B, ("sink", "s", {"breaker": "half-open"})], True, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_readiness(case: str) -> None:
    reports, ready, reason = CASES[case]
    board = Board("/nowhere")
    for kind, name, fields in reports:
        board.post(name, KINDS[kind](**fields))
    found, reasons = readiness(board.snapshot(), ["a", "b"], None)
    assert found is ready
    assert reason in reasons if reason else reasons == ()


def test_an_instance_on_standby_is_not_ready() -> None:
    found = readiness(Board("/nowhere").snapshot(), ["a"], "another instance owns the pipeline")
    assert found == (False, ("another instance owns the pipeline",))
