"""The screen draws whatever moment it is given, in a terminal, in a pipe and quietly."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from penstock.consumer.tail.reader import Message
from penstock.demo.screen import PHASES, Scene, Screen, draw, summary

MESSAGE = Message(
    sequence=1,
    subject="cdc.orders.update",
    stored_at=datetime(2026, 1, 1, tzinfo=UTC),
    headers={},
    body={
        "event_id": "default:0/0:0",
        "backend": "default",
        "operation": "UPDATE",
        "schema": "public",
        "collection": "orders",
        "key": {"id": 5},
        "data": {"id": 5, "status": "paid"},
    },
)
BUSY = Scene(
    phase="streaming",
    elapsed=3,
    total=30,
    committed=1500,
    received=1490,
    rate=499.6,
    p50=0.0411,
    p99=0.0985,
    latest=[MESSAGE],
)


def drawn(scene: Scene, *, terminal: bool, quiet: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None, quiet=quiet)
    with Screen(console) as screen:
        screen.show(scene)
    return out.getvalue()


def test_the_numbers_and_the_last_changes_are_on_the_screen() -> None:
    text = drawn(BUSY, terminal=True)
    for part in (
        "3 of 30 s",
        "500",
        "41 ms",
        "98 ms",
        "10 changes",
        "1,490",
        "public.orders",
        "id=5",
    ):
        assert part in text


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_can_be_drawn_before_there_is_anything_to_show(phase: str) -> None:
    console = Console(file=io.StringIO(), width=40)
    console.print(draw(Scene(phase=phase)))
    assert summary(Scene(phase=phase)) == f"{phase} ..."


def test_a_pipe_gets_one_line_of_a_phase_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.demo.screen._PLAIN_EVERY", 0.0)
    out = io.StringIO()
    with Screen(Console(file=out, width=120)) as screen:
        for committed in (0, 0, 1, 1):
            screen.show(Scene(phase="starting Spark", committed=committed))
        screen.show(BUSY)
        screen.show(BUSY)
    first, *more = out.getvalue().splitlines()
    assert first == "starting Spark ..."
    assert [line.partition(":")[0] for line in more] == ["streaming", "streaming"]


def test_a_pipe_gets_one_line_without_escapes() -> None:
    text = drawn(BUSY, terminal=False)
    assert text.count("\n") == 1
    assert "1,490 received" in text
    assert "\x1b" not in text


def test_quiet_shows_nothing() -> None:
    assert drawn(BUSY, terminal=True, quiet=True) == ""
