"""What the demo shows: a live screen in a terminal, a line every few seconds in a pipe, or nothing.

Draws a `Scene`, wherever its numbers come from.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.consumer.tail.lines import line
from penstock.consumer.tail.reader import Message
from penstock.process.closing import Closes

PHASES = ("setting up", "starting Spark", "streaming", "draining", "mirroring", "verdict")
_SPARKS = "▁▂▃▄▅▆▇█"
_BAR = 60
_PLAIN_EVERY = 5.0  # seconds between lines where there is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One moment of the demo. Latencies are seconds from commit to stored, None when unknown."""

    phase: str
    elapsed: float = 0.0
    total: float = 0.0
    committed: int = 0
    received: int = 0
    duplicates: int = 0
    rate: float = 0.0
    p50: float | None = None
    p99: float | None = None
    title: str = "PostgreSQL"
    source_lag: str = ""
    latest: Sequence[Message] = ()


class Screen(Closes):
    """Shows scenes; `quiet` shows none."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._rates: list[float] = []
        self._printed = ("", 0.0)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._live.start()
        return self

    def close(self) -> None:
        """Leaves the last scene on the terminal."""
        self._live.stop()

    def show(self, scene: Scene) -> None:
        """Draws a scene."""
        if self._quiet:
            return
        if self._live.is_started:
            self._rates = [*self._rates[-59:], scene.rate]
            self._live.update(draw(scene, self._rates), refresh=True)
            return
        phase, at = self._printed
        if scene.phase != phase or time.monotonic() - at >= _PLAIN_EVERY:
            self._printed = scene.phase, time.monotonic()
            self._console.print(summary(scene), highlight=False, soft_wrap=True)


def draw(scene: Scene, rates: Sequence[float]) -> RenderableType:
    """The whole screen."""
    parts: list[RenderableType] = [_phases(scene.phase)]
    if scene.phase == "streaming" and scene.total:
        parts.append(_progress(scene))
    parts += [_numbers(scene, rates), Text()]
    parts += [line(message) for message in scene.latest]
    title = f"penstock  {scene.title} → Spark → NATS JetStream"
    return Panel(Group(*parts), title=title, border_style="blue")


def summary(scene: Scene) -> str:
    """A scene in one line, for a pipe."""
    if not scene.committed:
        return f"{scene.phase} ..."
    return (
        f"{scene.phase}: {scene.committed:,} committed, {scene.received:,} received,"
        f" {scene.rate:,.0f} events/s, latency p50 {_ms(scene.p50)} p99 {_ms(scene.p99)},"
        f" {scene.duplicates} duplicates"
    )


def _phases(current: str) -> Text:
    text = Text()
    now = PHASES.index(current)
    for number, phase in enumerate(PHASES):
        style = "green" if number < now else "bold yellow" if number == now else "dim"
        text.append("✔ " if number < now else "▶ " if number == now else "· ", style=style)
        text.append(f"{phase}   ", style=style)
    return text


def _progress(scene: Scene) -> Text:
    done = int(_BAR * min(1.0, scene.elapsed / scene.total))
    seconds = f" {min(scene.elapsed, scene.total):.0f} of {scene.total:.0f} s"
    return Text.assemble(("━" * done, "yellow"), ("━" * (_BAR - done), "dim"), seconds)


def _numbers(scene: Scene, rates: Sequence[float]) -> Table:
    table = Table.grid(padding=(0, 3))
    lag = scene.committed - scene.received
    table.add_row(
        _number("events/s", f"{scene.rate:,.0f}"),
        _number("latency p50", _ms(scene.p50)),
        _number("latency p99", _ms(scene.p99)),
        _number("in flight", f"{max(0, lag):,} changes"),
    )
    table.add_row(
        _number("committed", f"{scene.committed:,}"),
        _number("received", f"{scene.received:,}"),
        _number("twice", f"{scene.duplicates}", "bold red" if scene.duplicates else "bold"),
        _number("source lag", scene.source_lag or "-"),
    )
    table.add_row(Text(_sparkline(rates), style="blue"))
    return table


def _number(name: str, value: str, style: str = "bold") -> Text:
    return Text.assemble((f"{name} ", "dim"), (value, style))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _sparkline(rates: Sequence[float]) -> str:
    top = max(rates, default=0.0) or 1.0
    return "".join(_SPARKS[min(7, int(rate / top * 7.999))] for rate in rates[-24:])
